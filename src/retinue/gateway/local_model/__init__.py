"""The local model: weights, installation, server process and client."""
