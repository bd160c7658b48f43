"""Readers of machine facts: each reads one kind (a counter, a table, a log) into a value.

They decide nothing and know of no test. What cannot be read is None or absent, never zero.
"""
