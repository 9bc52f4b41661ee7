"""This server's entry in the configuration of other programs."""
