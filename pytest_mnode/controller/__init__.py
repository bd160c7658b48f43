"""The controller: the pytest process that the user started, and each worker of pytest-xdist.

session: the run's state in one pytest process; rank_tests: runs tests in ranks; world_test: drives
one test through its ranks; rank_reports: merges the reports of ranks. pool: starts the nodes and
the hub, once per run. hub: a thread that owns nodes and worlds (worlds, leases, agents), and
routes messages. client: the other modules' connection to the hub. The controller
joins no process group, never imports torch.
"""
