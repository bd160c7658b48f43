"""What holds on every node before anything is run on it: read once, judged node by node.

`node_probe` is a small program that runs on all nodes at the same time: it reads the machine and
tries the paths to all others (`tcp`, `datagrams`, `payloads`, `directories`). `survey` is the
controller's side of it; `orders` and `answers` are what travels between the two. `judges` are pure
functions from a survey and the spec to measurements of one node; `environment` reads and judges
what ranks find. `survey_fixture` is for tests.

Imports nothing: the program is started on every node, and has to be quick.
"""
