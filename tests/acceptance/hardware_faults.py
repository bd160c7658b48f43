"""Plugin of red runs: faults of hardware that the rack itself has not.

Only for `-p`: to import it adds its faults to those of --mnode-fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_mnode.faults.registry import Undo, fault, path, whole, word
from pytest_mnode.faults.tools import inside, on_node, undone_inside
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack

# In a node's own mounts: its real /sys stays visible below `real`, where links of the tree point.
_SHOW = """
import sys
from pytest_mnode.machine import namespaces
tree, bind = sys.argv[1], namespaces.MS_BIND
namespaces.mount("/sys", f"{tree}/real", flags=bind | namespaces.MS_REC)
namespaces.mount(f"{tree}/sys", "/sys", flags=bind)
"""


@fault(path("DIR"))
def machine_shown(rack: Rack, node: Node, where: str) -> Undo:
    """A node shows the machine of `server` in this directory, beside its own interfaces."""
    on_node(rack, node, [sys.executable, "-c", _SHOW, where])
    return undone_inside(rack, node, "unmount", "/sys")


@fault(word("LINK", None, "an interface"), whole("BYTES", None))
def small_mtu(rack: Rack, node: Node, link: str, size_bytes: int) -> Undo:
    """An interface of a node has a small MTU."""

    def set_to(size: int) -> None:
        on_node(rack, node, ["sh", "-c", f"echo {size} >/sys/class/net/{link}/mtu"])

    set_to(size_bytes)
    return lambda: set_to(1500)


@fault(path("FILE"))
def logged(rack: Rack, node: Node, where: str) -> Undo:
    """A node's kernel log is the one record in this file."""
    inside(rack, node, "replace", "/dev/kmsg", data=Path(where).read_bytes())
    return undone_inside(rack, node, "unmount", "/dev/kmsg")
