"""Pydantic schemas of the documents that people and callers write.

They are slow to load. Code on a steward's start path uses the functions in `retinue.formats`,
which import a schema when it is first needed.
"""
