"""The controller: the pytest process that the user started, and each worker of pytest-xdist.

session: the run as one pytest process sees it; item_runner: runs a test in ranks; conductor and
hearing: drive one test through its ranks; rank_reports: reads what the ranks report.
pool: starts the nodes and the hub, once per run. hub: a thread that owns nodes and worlds (desk,
leases, worlds, agents, launcher_calls), on an exchange of messages. client: how the other modules
talk to the hub. The controller joins no process group and does not import torch.
"""
