"""The rack: an embedded cluster of N nodes as namespaces of this machine, with real links.

`Rack` is the launcher. launcher, channel, probe, plan and protocol run in the controller;
rack_init, node_init, mounts and wiring run inside the rack, which cleanup.rack starts. sockets and
sysfs_tree are values for both. enter runs commands on nodes. Faults are not here but in `faults`.
"""

from pytest_mnode.launchers.rack.launcher import Rack
from pytest_mnode.launchers.rack.plan import Link
from pytest_mnode.launchers.rack.sockets import Layout

__all__ = ["Layout", "Link", "Rack"]
