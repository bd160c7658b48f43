"""Messages between the hub and its clients: nodes, worlds, questions to the launcher."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pytest_mnode.protocol.launcher_requests import LauncherRequest
from pytest_mnode.protocol.world import WorldInfo


@dataclass(frozen=True)
class StartPool:
    """Bring nodes and agents up before anything asks for them; torch too where a node is here."""


@dataclass(frozen=True)
class Collect:
    """How the controller's pytest was configured, so that fork servers collect the same items.

    args: what to collect from, of which only `files` are wanted. coverage: configuration of
    coverage.py that ranks measure with; "" where they do not. ranks: some items run in ranks.
    """

    args: tuple[str, ...]
    files: frozenset[str]
    options: dict[str, Any]
    inifile: str | None
    rootdir: str
    cwd: str
    sys_path: tuple[str, ...]
    basetemp: str
    markers: tuple[str, ...] = ()
    coverage: str = ""
    ranks: bool = True

    def only(self, files: frozenset[str]) -> Collect:
        """The same of these files alone."""
        others = self.files - files
        return replace(self, args=tuple(a for a in self.args if a not in others), files=files)


@dataclass(frozen=True)
class LeaseNodes:
    """Ask for `nodes` free nodes (None: all), alone on the fabric if `exclusive`.

    on: names of these nodes, where no others will do. ranks: a world is to be opened on them at
    once; without, nodes of other machines are granted before torch is imported there.
    """

    seq: int
    nodes: int | None
    exclusive: bool
    label: str
    on: tuple[str, ...] = ()
    ranks: bool = True


@dataclass(frozen=True)
class ReleaseNodes:
    lease: int


@dataclass(frozen=True)
class OpenWorld:
    """Ask for a world on nodes of a lease (None: all of them in order).

    held: id of the world that is wanted, where it still lives. file: of the test that asks.
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
    """Give a world back. new_group: as WorldInfo has it.

    held: it is idle for this client alone, and lives until the client closes it without.
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
    """Nobody waits for the answer to this client's request `seq` any more."""

    seq: int


@dataclass(frozen=True)
class ClientGone:
    """A pytest-xdist worker ended; what it held is free."""

    client: str


@dataclass(frozen=True)
class StopHub:
    pass


@dataclass(frozen=True)
class Granted:
    seq: int
    lease: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    seq: int
    world: WorldInfo


@dataclass(frozen=True)
class Answer:
    seq: int
    value: Any


@dataclass(frozen=True)
class Refused:
    """`kind` is the name of the class in errors.py to raise."""

    seq: int
    kind: str
    text: str
    node: str = ""
