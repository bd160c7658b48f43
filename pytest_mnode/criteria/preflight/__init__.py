"""What holds on every node before anything is run on it: asked once, judged node by node.

`survey` is a small program that runs on all nodes at the same time (facts of each, and its way to
all others); `conduct` is the controller's side of it, `ranks` what the ranks of a world find in
their environment. `questions` are functions from what was learnt and the spec to what was measured
of one node, and read nothing. `asking` is for tests. What is run to measure speed is in `bench`.

Imports nothing: the survey is started on every node, and has to be quick.
"""
