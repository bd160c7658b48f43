"""Messages between the hub and its clients: nodes, worlds, requests to the launcher."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pytest_mnode.protocol.launcher_requests import LauncherRequest


@dataclass(frozen=True)
class StartPool:
    """Start nodes and agents in advance; also import torch if nodes share this machine's kernel."""


@dataclass(frozen=True)
class Collect:
    """Configuration of the controller's pytest, so that fork servers collect the same items.

    args: pytest's arguments, of which only `files` are collected. options: each pickled, because
    its class may be of a conftest.py. coverage: coverage.py configuration for ranks; "" if they do
    not measure. ranks: whether some items run in ranks. collected: node ids that the controller
    collected, by file, of files in which ranks may have further tests.
    """

    args: tuple[str, ...]
    files: frozenset[str]
    options: dict[str, bytes]
    inifile: str | None
    rootdir: str
    cwd: str
    sys_path: tuple[str, ...]
    basetemp: str
    markers: tuple[str, ...] = ()
    coverage: str = ""
    ranks: bool = True
    collected: dict[str, frozenset[str]] = field(default_factory=dict)

    def only(self, files: frozenset[str]) -> Collect:
        """The same configuration, restricted to these files."""
        others = self.files - files
        return replace(self, args=tuple(a for a in self.args if a not in others), files=files)


@dataclass(frozen=True)
class LeaseNodes:
    """Request `nodes` free nodes (None: all), alone on the fabric if `exclusive`.

    on: names of the required nodes; empty if any will do. ranks: the client will open a world on
    them at once; if false, nodes of other machines are granted before torch is imported there.
    """

    seq: int
    nodes: int | None
    exclusive: bool
    label: str
    on: tuple[str, ...] = ()
    ranks: bool = True


@dataclass(frozen=True)
class LeaseIdleWorlds:
    """Request all idle worlds, as they are; their nodes stay free."""

    seq: int


@dataclass(frozen=True)
class ReleaseNodes:
    lease: int


@dataclass(frozen=True)
class OpenWorld:
    """Request a world on `nodes` of a lease (None: all of its nodes, in order).

    held: id of a held world that is preferred if it still exists. file: of the requesting test.
    """

    seq: int
    lease: int
    procs_per_node: int
    fresh: bool
    nodes: tuple[str, ...] | None = None
    held: str = ""
    file: str = ""


@dataclass(frozen=True)
class CloseWorld:
    """Give a world back. new_group: see WorldInfo.

    held: keep the idle world for this client only, until the client closes it with `held` false.
    """

    world: str
    reusable: bool
    new_group: bool = False
    held: bool = False


@dataclass(frozen=True)
class AskLauncher:
    seq: int
    request: LauncherRequest


@dataclass(frozen=True)
class Withdraw:
    """Withdraw this client's request `seq`: nobody waits for its answer any more."""

    seq: int


@dataclass(frozen=True)
class ClientGone:
    """A pytest-xdist worker ended; its leases and worlds are free."""

    client: str


@dataclass(frozen=True)
class StopHub:
    pass


@dataclass(frozen=True)
class Answer:
    """The answer to LeaseNodes (a Lease), to OpenWorld (a WorldInfo), to LeaseIdleWorlds (a Lease
    of no node, and a tuple of WorldInfo) or to AskLauncher."""

    seq: int
    value: Any


@dataclass(frozen=True)
class Refused:
    """A request was refused. kind: name of the class in errors.py to raise."""

    seq: int
    kind: str
    text: str
    node: str = ""
