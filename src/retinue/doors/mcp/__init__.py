"""The door for agents: subagents as tools of the Model Context Protocol."""
