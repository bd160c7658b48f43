"""Counters of the fabric's ports, read on all nodes before and after each criterion, and judged."""
