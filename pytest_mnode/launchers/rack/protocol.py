"""What controller and keeper say to each other: one JSON text per packet of a local socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pytest_mnode.launchers.rack.plan import Link, Plan
from pytest_mnode.launchers.rack.sockets import Layout
from pytest_mnode.machine.numa_cores import NumaCores

PACKET_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Setup:
    """Controller to keeper, first and once."""

    plan: Plan
    rootless: bool
    controller_pid: int
    cleanup_dirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Controller to keeper: `do` is power_off, power_on, set_rate, set_pair_rate, set_link
    or set_presence.

    way: of a rate: "tx" is what the node sends, "rx" what it gets, "both" both.
    peer: index of the node that sends, where a rate is that of a pair.
    rate_mbit_s: 0 takes the rate of a pair away.
    """

    id: int
    do: str
    node: int
    link: str = ""
    rate_mbit_s: float = 0.0
    up: bool = True
    way: str = "both"
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Keeper to controller: done, or why not. `id` 0 is the answer to Setup."""

    id: int
    error: str | None = None
    keeper_pid: int | None = None
    """Answer to Setup only: the rack's first process, as the controller sees it."""


@dataclass(frozen=True, slots=True)
class Booted:
    """Keeper to controller: a node is up; `pid` of its first process as the rack sees it."""

    node: int
    pid: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Keeper to controller: a node is gone."""

    node: int
    reason: str


Packet = Setup | Request | Reply | Booted | Lost


def encode(packet: Packet) -> bytes:
    """Bytes of one packet."""
    return json.dumps({"is": type(packet).__name__, **asdict(packet)}).encode()


def decode(data: bytes) -> Packet:
    """The packet of these bytes."""
    fields = json.loads(data)
    return _DECODERS[fields.pop("is")](fields)


def _setup(fields: dict[str, Any]) -> Setup:
    plan = fields.pop("plan")
    for link in ("fabric", "management"):
        plan[link] = Link(**plan[link])
    if plan["layout"] is not None:
        places = tuple(plan["layout"].pop("accelerators"))
        plan["layout"] = Layout(accelerators=places, **plan["layout"])
    plan["machine"] = tuple(
        NumaCores(m["number"], m["size_bytes"], tuple(tuple(core) for core in m["cores"]))
        for m in plan["machine"]
    )
    fields["cleanup_dirs"] = tuple(fields["cleanup_dirs"])
    return Setup(plan=Plan(**plan), **fields)


_DECODERS: dict[str, Callable[[dict[str, Any]], Packet]] = {
    "Setup": _setup,
    "Request": lambda fields: Request(**fields),
    "Reply": lambda fields: Reply(**fields),
    "Booted": lambda fields: Booted(**fields),
    "Lost": lambda fields: Lost(**fields),
}
