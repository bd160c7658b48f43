"""Judges whether ranks run, allocate and send beside their accelerators. Pure: values to findings.

`machine` gathers what probes read of a node, `facts` is what a rank tells of itself, `judge` puts
the questions; each question has a module of its own. What is not known is inconclusive.
"""
