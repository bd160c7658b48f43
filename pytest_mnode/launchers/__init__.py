"""Nodes and launchers: the machines of a run, and the commands that start programs on them.

Nothing here knows about ranks, torch or tests.
"""
