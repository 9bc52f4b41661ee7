"""Editor for the entry of this server in the configuration files of MCP clients."""
