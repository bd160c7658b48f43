"""Requests to a run's launcher: one class per request, nodes by their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class LauncherRequest:
    """A request to the launcher.

    does: the operation, worded to follow "cannot".
    limit_s: how long to wait for the answer.
    """

    does: ClassVar[str]
    limit_s: ClassVar[float] = 150.0


@dataclass(frozen=True, slots=True)
class DescribeRun(LauncherRequest):
    """Request for the run's nodes and what they share: a `launchers.nodes.RunDescription`."""

    does: ClassVar[str] = "describe the run"


@dataclass(frozen=True, slots=True)
class NodeCommands(LauncherRequest):
    """Request for the local commands, one per node, that run `argv` there: lists of arguments."""

    nodes: tuple[str, ...]
    argv: tuple[str, ...]
    does: ClassVar[str] = "run commands on nodes"


@dataclass(frozen=True, slots=True)
class SwitchPower(LauncherRequest):
    """Switch a node off as if unplugged, or boot it with its old name, addresses and links.

    Real machines may take minutes; the spec says how many.
    """

    node: str
    limit_s: ClassVar[float] = 3600.0


@dataclass(frozen=True, slots=True)
class PowerOff(SwitchPower):
    does: ClassVar[str] = "switch nodes off"


@dataclass(frozen=True, slots=True)
class PowerOn(SwitchPower):
    does: ClassVar[str] = "switch nodes on"


@dataclass(frozen=True, slots=True)
class LinkRates(LauncherRequest):
    """Request for the rates last set on a node's link, in Mbit/s: (send rate, receive rate)."""

    node: str
    link: str
    does: ClassVar[str] = "report the rate of a node's link"


@dataclass(frozen=True, slots=True)
class SetLinkRate(LauncherRequest):
    """Set the rate of a node's link.

    direction: "tx" (traffic that the node sends), "rx" (traffic that it receives), or "both".
    """

    node: str
    link: str
    rate_mbit_s: float
    direction: str = "both"
    does: ClassVar[str] = "change the rate of a node's link"


@dataclass(frozen=True, slots=True)
class SetPairRate(LauncherRequest):
    """Limit at the switch the IPv4 traffic from `source` to `target`; None removes the limit.

    The packets wait in a separate queue there and do not delay other packets.
    """

    source: str
    target: str
    link: str
    rate_mbit_s: float | None
    does: ClassVar[str] = "limit the rate between two nodes"


@dataclass(frozen=True, slots=True)
class SetLinkUp(LauncherRequest):
    """Set the switch port of a node's link up or down; the node's carrier follows."""

    node: str
    link: str
    up: bool
    does: ClassVar[str] = "switch a node's link up or down"


@dataclass(frozen=True, slots=True)
class SetLinkPresent(LauncherRequest):
    """Remove a node's link with its interface, or restore it."""

    node: str
    link: str
    present: bool
    does: ClassVar[str] = "remove or restore a node's link"
