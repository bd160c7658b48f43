"""Nodes and launchers: which machines there are, and which commands start something on them.

Nothing here knows about ranks, torch or tests.
"""
