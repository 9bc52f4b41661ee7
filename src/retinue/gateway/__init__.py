"""The way to models: keys stay here, tokens are counted as they pass, budgets hold."""
