"""Common parts of real engines on a rack: nodes, a login node, daemons, faults."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Link, Rack
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn, SetLinkUp
from tests.engines.switch import Switch

COMMAND_LIMIT_S = 120.0
_NEW_S = 60.0
_LOCK = "lock"


class OnRack(ABC):
    """A rack of compute nodes, named node0 …, and a login node after them.

    All of it belongs to the rack, and so ends with the process that made it; the rack's cleanup
    daemon removes the directory if this process cannot. links: the fabric and management links, if
    other than the rack's default.
    """

    env: dict[str, str]
    """Variables that commands need in addition to their own."""

    def __init__(self, name: str, nodes: int, links: Sequence[Link] = ()) -> None:
        remove_abandoned(f"mnode-{name}-")
        # Daemons have sockets in here, and socket paths must be short.
        self.directory = Path(tempfile.mkdtemp(prefix=f"mnode-{name}-"))
        self._lock = (self.directory / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.directory / "log").mkdir()
        self.rack = Rack(nodes + 1, *links, mode="root", cleanup_dirs=[str(self.directory)])
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
        self._lock.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def node(self, name: str) -> Node:
        return next(node for node in self.rack.nodes if node.name == name)

    def command(self, *argv: str, on: str = "") -> list[str]:
        """A local command that runs this one on the login node, or on the named node."""
        return self.rack.commands([self.node(on) if on else self.login], argv)[0]

    def run(
        self,
        *argv: str,
        on: str = "",
        limit_s: float = COMMAND_LIMIT_S,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node to its end."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            self.command(*argv, on=on),
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env={**os.environ, **(env or {}), **self.env},
            **options,
        )

    def start(
        self, *argv: str, on: str = "", env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command on a node; the caller must end it, which also ends its children."""
        return subprocess.Popen(
            self.command(*argv, on=on),
            text=True,
            errors="replace",
            env={**os.environ, **(env or {}), **self.env},
            **options,
        )

    def await_that(self, holds: Callable[[], bool], limit_s: float, what: str) -> float:
        """Poll until `true` holds; seconds it took."""
        start = time.monotonic()
        while not holds():
            took = time.monotonic() - start
            assert took < limit_s, f"not within {limit_s:g} s: {what}\n{self.logs()}"
            time.sleep(0.1)
        return time.monotonic() - start

    # Faults and their repair.

    def set_links(self, name: str, up: bool) -> None:
        """Set both links of a node up or down, at the switch."""
        for link in ("mgmt0", "fab0"):
            self.rack.ask(SetLinkUp(name, link, up))

    def power_off(self, name: str) -> None:
        """Cut the power of a node."""
        self.rack.ask(PowerOff(name))
        self._daemons[name].wait(60)

    def power_on(self, name: str) -> None:
        """Boot the node and its daemon, if it is off."""
        if self._daemons[name].poll() is not None:
            self.rack.ask(PowerOn(name))
            self.start_daemon_of(name)

    @abstractmethod
    def start_daemon_of(self, name: str) -> None:
        """Start the daemons of a compute node, under the node's name."""

    def start_switch(self) -> None:
        """Let commands on the nodes switch nodes off and on."""
        self.switch = Switch(self.directory, self._power)

    def _power(self, what: str, name: str) -> None:
        {"off": self.power_off, "on": self.power_on}[what](name)

    # Daemons.

    def log(self, name: str) -> Path:
        return self.directory / "log" / f"{name}.out"

    def logs(self) -> str:
        """Last lines of the logs of all daemons."""
        files = sorted(file for file in (self.directory / "log").iterdir() if file.stat().st_size)
        return "\n".join(f"{f.name}:\n{f.read_text(errors='replace')[-800:]}" for f in files)

    def end_daemon(self, name: str) -> None:
        """End a daemon that `start_daemon` started."""
        self.kill_daemon(name)
        del self._daemons[name]

    def kill_daemon(self, name: str) -> None:
        """SIGKILL a daemon; it stays registered."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def start_daemon(self, name: str, node: Node, argv: Sequence[str]) -> None:
        """Start a daemon that stays in the foreground."""
        with self.log(name).open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                self.rack.commands([node], argv)[0],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def remove_abandoned(prefix: str) -> None:
    """Remove directories of engines whose process was killed while their nodes still wrote there.

    Their lock is free. A directory that was just made may not be locked yet.
    """
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if time.time() - directory.stat().st_mtime < _NEW_S:
                continue
            with (directory / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use, owned by another user, or removed meanwhile
            continue
        shutil.rmtree(directory, ignore_errors=True)
