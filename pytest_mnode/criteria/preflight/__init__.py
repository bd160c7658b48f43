"""Checks of every node before anything else runs: read once per run, judged node by node.

`node_probe` is a small program that runs on all nodes at the same time: it reads the machine and
tries the paths to all others (`tcp`, `datagrams`, `directories`). `survey` is the
controller's side of it; `answers` has the messages between the two. Checks of
`pytest_mnode.checks.node` judge a survey, with what `node_links` says of a node's interfaces and
ports, or the ranks' `environment`. `survey_check` says how; `survey_fixture` is for tests.

This module imports nothing, because the program starts on every node and must start quickly.
"""
