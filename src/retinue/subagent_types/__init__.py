"""Subagent types: one folder with a SUBAGENT.md for each, and their loader and writer."""
