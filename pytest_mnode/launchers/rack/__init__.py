"""The rack: an embedded cluster of N nodes as namespaces of this machine, with real links.

`Rack` is the launcher; `namespaces` is for programs that run inside it. The controller side
(launcher, line, probe, plan, protocol) never leaves the host; keeper, inside, node_init, mounts
and wiring run within the rack; sockets and shown are values for both; enter gets commands from
the one to the other. What goes wrong on purpose is not here but in `faults`.
"""

from pytest_mnode.launchers.rack.launcher import Rack
from pytest_mnode.launchers.rack.plan import Link
from pytest_mnode.launchers.rack.sockets import Layout

__all__ = ["Layout", "Link", "Rack"]
