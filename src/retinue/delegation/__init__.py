"""Delegation tools for agents: their names, schemas, behaviour and answers."""
