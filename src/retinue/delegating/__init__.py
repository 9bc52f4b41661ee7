"""The tools by which any agent delegates: what they are called, take, do and answer."""
