"""What is judged of a node: pure functions `(survey, spec, node) -> list[Measurement]`.

Each judges what one key below `criteria.preflight` promises, and returns [] where the spec does not
promise it or there is nothing to judge, such as other nodes to compare one with.
"""
