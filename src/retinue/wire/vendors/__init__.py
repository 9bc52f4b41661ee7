"""What the vendors of models are asked and say, each in its own format."""
