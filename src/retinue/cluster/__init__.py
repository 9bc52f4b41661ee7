"""Subagents on more than one machine: hub, nodes, and the runtime that uses them."""
