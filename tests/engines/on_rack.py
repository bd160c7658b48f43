"""What real engines on a rack have in common: nodes, a login node behind them, daemons, faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_mnode.cluster.node import Node
from pytest_mnode.cluster.rack import Rack
from tests.engines.switch import Switch


class OnRack:
    """A rack of compute nodes, named node0 …, and a login node that comes after them.

    Everything hangs on the rack, and so ends with the process that made it; the directory goes
    with the rack's keeper where this process cannot remove it any more.
    """

    env: dict[str, str]
    """What commands need beside what they are to have themselves."""

    def __init__(self, name: str, nodes: int) -> None:
        # Daemons have sockets in here, and their names must be short.
        self.directory = Path(tempfile.mkdtemp(prefix=f"mnode-{name}-"))
        self.rack = Rack(nodes + 1, mode="root", cleanup_dirs=[str(self.directory)])
        self.computes: Sequence[Node] = self.rack.nodes[:nodes]
        self.login: Node = self.rack.nodes[nodes]
        self.names = tuple(node.name for node in self.computes)
        self.env = {}
        self.switch: Switch | None = None
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def close(self) -> None:
        """Take everything down."""
        if self.switch is not None:
            self.switch.close()
            self.switch = None
        self.rack.close()
        for process in self._daemons.values():
            process.kill()
            process.wait()
        self._daemons.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def node(self, name: str) -> Node:
        return next(node for node in self.rack.nodes if node.name == name)

    def command(self, *argv: str, on: str = "") -> list[str]:
        """A local command that runs this one on the login node, or on the node of that name."""
        return self.rack.commands([self.node(on) if on else self.login], argv)[0]

    def set_links(self, name: str, up: bool) -> None:
        """Both cables of a node, at the switch."""
        for link in ("mgmt0", "fab0"):
            self.rack.set_link(self.node(name), link, up)

    def start_daemon(self, name: str, node: Node, argv: Sequence[str]) -> None:
        """Start one that stays in the foreground; its output is kept as log/NAME.out."""
        with (self.directory / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                self.rack.commands([node], argv)[0],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
