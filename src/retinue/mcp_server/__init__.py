"""MCP server that offers subagents as tools."""
