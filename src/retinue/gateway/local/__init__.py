"""The model that runs here: its weights, the one process that serves it, and the way there."""
