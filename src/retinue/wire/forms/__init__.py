"""What people and callers write: its keys, what each accepts, and what to say else.

Making these takes longer than all else that a steward needs before it is ready: whoever is part of
its start asks the functions of `wire`, which load them when something is first read.
"""
