"""Node states, read from `scontrol --oneliner show node`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.slurm.records import number, records, text_of

_LOST = {"DOWN", "FAIL", "ERROR", "FUTURE", "POWERED_DOWN", "NOT_EXISTING"}
_BROKEN = {"DOWN", "FAIL", "FAILING", "ERROR", "FUTURE", "NOT_EXISTING", "INVAL", "INVALID_REG",
           "DRAIN", "DRAINED", "DRAINING"}  # fmt: skip
_RETURNING = {"POWERING_UP", "POWER_UP", "POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN", "REBOOT",
              "REBOOT_REQUESTED", "REBOOT_ISSUED"}  # fmt: skip
"""States of a node that Slurm is bringing back, or brings back when a job needs it."""
_AWAY = {"NO_RESPOND", "NOT_RESPONDING", "POWERING_DOWN", "POWER_DOWN", "REBOOT_ISSUED", "REBOOT",
         "UNKNOWN"}  # fmt: skip
"""States of a node that does not respond, or not yet: all are UNKNOWN after slurmctld restarts."""
_OFF = {"POWERED_DOWN", "POWERING_UP", "POWER_UP"}
"""States of a node that Slurm powers on for a job."""
ASIDE = frozenset({"MAINT", "RESERVED"})
"""Flags of a node that is kept for a reservation."""
_KEPT_IDLE = {"RESERVED", "MAINT", "PLANNED"}
"""States of an idle node that versions before 21.08 show instead of IDLE, later ones as flags."""
_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN",
          "%": "POWERING_DOWN", "$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED",
          "-": "PLANNED"}  # fmt: skip
"""Flags that versions before 21.08 show as one character. Source: sinfo(1), NODE STATE CODES."""
_SAME_FLAG = {"MAINTENANCE": "MAINT", "POWER": "POWERED_DOWN"}
"""Flags whose name differs between versions, and the name used here."""
_GPU = re.compile(r"(?:^|,)gpu(?::[^:,()]+)*:(\d+)")
"""A type and no_consume may come before the number. Source: slurm.conf(5), Gres."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """State of one node at one moment; a field is None if Slurm does not report it.

    name: Slurm's name; hostname: the node's own name; address: name or address at which other
        nodes reach it.
    state: the base state, such as IDLE, ALLOCATED, DOWN; flags: further states, such as DRAIN or
        NOT_RESPONDING.
    reason: the operator's, or Slurm's, reason for its state.
    gpus: number of GPUs in its configuration; None if it lists none.
    counts_gpus: whether Slurm accounts for its GPUs.
    features: active features, which --constraint selects.
    gres: its generic resources as configured. memory_mbytes: memory for jobs.
    """

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str | None = None
    hostname: str | None = None
    address: str | None = None
    cpus: int | None = None
    cpus_allocated: int | None = None
    gpus: int | None = None
    partitions: tuple[str, ...] = ()
    counts_gpus: bool = False
    features: frozenset[str] = frozenset()
    gres: str = ""
    memory_mbytes: int = 0

    @property
    def lost(self) -> bool:
        """Whether Slurm has given up the node; what ran on it has ended."""
        return self.state in _LOST

    @property
    def usable(self) -> bool:
        """Whether a job can get it, now or when its current job ends; if it is set aside, only a
        job of a reservation."""
        return not self.lost and not {self.state, *self.flags} & (_AWAY | _BROKEN)

    @property
    def up(self) -> bool:
        """Whether the job that has it can start commands on it. A drained node is up, although no
        other job can get it."""
        return not self.lost and not {self.state, *self.flags} & (_AWAY | _OFF)

    @property
    def hopeless(self) -> bool:
        """Whether no job can get it until an operator repairs it."""
        words = {self.state, *self.flags}
        return bool(words & _BROKEN) and not words & _RETURNING

    @property
    def set_aside(self) -> bool:
        """Whether it is kept for a reservation now."""
        return bool({self.state, *self.flags} & ASIDE)

    @property
    def text(self) -> str:
        """State, flags and reason, such as `DOWN+DRAIN: Not responding`."""
        states = "+".join([self.state, *sorted(self.flags)])
        return f"{states}: {self.reason}" if self.reason else states


def nodes_from_text(text: str) -> tuple[NodeState, ...]:
    """All nodes in the output of `scontrol --oneliner show node`.

    Raises ClusterError, one line, if a node has no state.
    """
    try:
        return tuple(_from_record(record) for record in records(text, "NodeName"))
    except KeyError as error:
        raise ClusterError(f"scontrol show node: cannot be read: no {error.args[0]}=") from None


def gpus_of(gres: str) -> int | None:
    """Number of GPUs in a list of generic resources (`gpu:a100:8(S:0-1),nic:2` is 8), or None."""
    counts = [int(count) for count in _GPU.findall(gres)]
    return sum(counts) if counts else None


def gpus_to_request(per_node: int, nodes: Iterable[NodeState]) -> int:
    """GPUs per node to request of a cluster with these nodes; 0 if Slurm has no GPUs configured: it
    would refuse the request, and nodes come with their GPUs anyway."""
    return per_node if any(node.gpus is not None for node in nodes) else 0


def shortage(nodes: Iterable[NodeState], wanted: int, partition: str | None = None) -> str | None:
    """What a job on `wanted` nodes lacks even on an empty cluster; None if nothing.

    partition: count only its nodes.
    """
    there = [n for n in nodes if partition is None or partition in n.partitions]
    usable = [node for node in there if not node.hopeless]
    if len(usable) >= wanted:
        return None
    where = f"partition {partition}" if partition else "this cluster"
    have = f"{where} has {len(usable)} usable of {count(len(there))}"
    out = [f"{node.name} ({node.text})" for node in there if node.hopeless]
    return have + (f"; missing: {', '.join(out)}" if out else "")


def _from_record(record: Mapping[str, str]) -> NodeState:
    # A character after a state, as in DOWN*, is a flag that may also appear as a word.
    state = record["State"].upper()
    words = [word.rstrip("".join(_MARKS)) for word in state.split("+")]
    words = [_SAME_FLAG.get(word, word) for word in words]
    flags = set(words[1:]) | {word for mark, word in _MARKS.items() if mark in state}
    if words[0] in _KEPT_IDLE:
        flags, words = {*flags, words[0]}, ["IDLE"]
    reason, gres = record.get("Reason", ""), record.get("Gres", "")
    return NodeState(
        name=record["NodeName"],
        state=words[0],
        flags=frozenset(flags),
        reason=text_of(re.sub(r"\s*\[[^\]]*@[^\]]*\]$", "", reason)),
        hostname=text_of(record.get("NodeHostName")),
        address=text_of(record.get("NodeAddr")),
        cpus=number(record.get("CPUTot")),
        cpus_allocated=number(record.get("CPUAlloc")),
        gpus=gpus_of(gres),
        partitions=tuple(filter(None, record.get("Partitions", "").split(","))),
        counts_gpus=bool(re.search(r"(?:^|,)gres/gpu[:=]", record.get("CfgTRES", ""))),
        features=frozenset((text_of(record.get("ActiveFeatures")) or "").split(",")) - {""},
        gres=gres,
        memory_mbytes=(number(record.get("RealMemory")) or 0)
        - (number(record.get("MemSpecLimit")) or 0),
    )
