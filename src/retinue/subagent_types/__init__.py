"""Subagent types are data: a folder for each, with its SUBAGENT.md."""
