"""Model gateway: a proxy that holds the API keys, counts tokens and enforces budgets."""
