"""Judges of a node: pure functions `(survey, spec, node) -> list[Measurement]`.

Each judges what one key below `criteria.preflight` promises. It returns [] if the spec lacks the
key, or if there is nothing to judge, such as no other node to compare with. A culprit in plain
words is a fault of the node that is judged; any other names its nodes.
"""
