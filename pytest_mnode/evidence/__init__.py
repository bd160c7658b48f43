"""What was read, and the rules that judge it: rows, checks and their reducers.

Imports nothing heavy: a check is imported on every node where it reads.
"""
