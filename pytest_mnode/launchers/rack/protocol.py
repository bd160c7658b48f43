"""Messages between controller and rack: one pickled object per packet of a private socket."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mnode.launchers.rack.plan import Plan
from pytest_mnode.protocol.launcher_requests import LauncherRequest

PACKET_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Setup:
    """Controller to cleanup daemon: the first packet, sent once."""

    plan: Plan
    rootless: bool


@dataclass(frozen=True, slots=True)
class Request:
    """Controller to rack."""

    id: int
    what: LauncherRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """Rack to controller: done, or the error. `id` 0 is the reply to Setup."""

    id: int
    error: str | None = None
    rack_pid: int | None = None
    """Reply to Setup only: pid of the rack's first process, as the controller sees it."""


@dataclass(frozen=True, slots=True)
class Booted:
    """Rack to controller: a node is up; `pid` of its first process as the rack sees it."""

    node: int
    pid: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Rack to controller: a node is lost."""

    node: int
    reason: str


Packet = Setup | Request | Reply | Booted | Lost
