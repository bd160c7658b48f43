"""Requests to a run's launcher: one class per request, nodes by their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class LauncherRequest:
    """does: what the launcher does, in words that follow "cannot".

    offered_by: a launcher that can. limit_s: how long its answer is waited for.
    """

    does: ClassVar[str]
    offered_by: ClassVar[str] = "rack"
    limit_s: ClassVar[float] = 150.0


@dataclass(frozen=True, slots=True)
class DescribeRun(LauncherRequest):
    """The run's nodes and what they share: a `launchers.nodes.RunDescription`."""

    does: ClassVar[str] = "describe the run"


@dataclass(frozen=True, slots=True)
class NodeCommands(LauncherRequest):
    """The local commands, one per node, that run `argv` there: a list of lists of words."""

    nodes: tuple[str, ...]
    argv: tuple[str, ...]
    does: ClassVar[str] = "run commands on nodes"


@dataclass(frozen=True, slots=True)
class SwitchPower(LauncherRequest):
    """Switch a node off, as by a pulled plug, or boot it with its old name, addresses and links.

    Machines may take minutes; the spec says how many.
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
    """The last set rates of a node's link in Mbit/s: (what it sends, what it receives)."""

    node: str
    link: str
    does: ClassVar[str] = "say how fast a node's link is"


@dataclass(frozen=True, slots=True)
class SetLinkRate(LauncherRequest):
    """direction: "tx" for what the node sends, "rx" for what it receives, or "both"."""

    node: str
    link: str
    rate_mbit_s: float
    direction: str = "both"
    does: ClassVar[str] = "change the rate of a node's link"


@dataclass(frozen=True, slots=True)
class SetPairRate(LauncherRequest):
    """Limit what `target` receives from `source` (IPv4) at the switch; None removes the limit.

    Packets wait in a queue of their own there and hold up no others.
    """

    source: str
    target: str
    link: str
    rate_mbit_s: float | None
    does: ClassVar[str] = "limit the rate between two nodes"


@dataclass(frozen=True, slots=True)
class SetLinkUp(LauncherRequest):
    """Switch port of a node's link up or down; the node sees a carrier, or none."""

    node: str
    link: str
    up: bool
    does: ClassVar[str] = "switch a node's link up or down"


@dataclass(frozen=True, slots=True)
class SetLinkPresent(LauncherRequest):
    """Take a node's link away, with its interface, or give it back."""

    node: str
    link: str
    present: bool
    does: ClassVar[str] = "take a node's link away or give it back"


@dataclass(frozen=True, slots=True)
class SlurmNames(LauncherRequest):
    """Slurm's name of each node, by the node's own name: a dict."""

    does: ClassVar[str] = "say what Slurm calls a node"
    offered_by: ClassVar[str] = "slurm"
