"""Request and answer formats of model vendors."""
