"""Nodes as Slurm shows them: `scontrol --oneliner show node`."""

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
"""Slurm itself is bringing it back, or will when it is asked for."""
_AWAY = {"NO_RESPOND", "NOT_RESPONDING", "POWERING_DOWN", "POWER_DOWN", "REBOOT_ISSUED", "REBOOT",
         "UNKNOWN"}  # fmt: skip
"""It does not answer now, or has not yet: UNKNOWN are all after slurmctld was restarted."""
_OFF = {"POWERED_DOWN", "POWERING_UP", "POWER_UP"}
"""Slurm switches it on for a job."""
ASIDE = frozenset({"MAINT", "RESERVED"})
"""Flags of a node that is kept for a reservation."""
_KEPT_IDLE = {"RESERVED", "MAINT", "PLANNED"}
"""Versions before 21.08 say so of an idle node instead of IDLE, later ones beside it."""
_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN",
          "%": "POWERING_DOWN", "$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED",
          "-": "PLANNED"}  # fmt: skip
"""Flags that versions before 21.08 show as a mark. Source: sinfo(1), NODE STATE CODES."""
_SAME_FLAG = {"MAINTENANCE": "MAINT", "POWER": "POWERED_DOWN"}
"""Words of newer and of older versions."""
_GPU = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node at one moment; None is what Slurm did not say.

    name: Slurm's; hostname: what the node calls itself; address: where it is reached, a name or
        an address.
    state: the base state, such as IDLE, ALLOCATED, DOWN; flags: what stands beside it, such as
        DRAIN or NOT_RESPONDING.
    reason: what the operator, or Slurm, wrote down for its state.
    gpus: how many GPUs it is configured with; None where none are spoken of.
    counts_gpus: whether they are among the resources that Slurm accounts for.
    features: those it has now, which --constraint asks for.
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

    @property
    def lost(self) -> bool:
        """Slurm itself has given it up; what ran there is over."""
        return self.state in _LOST

    @property
    def usable(self) -> bool:
        """Can be given to a job, now or when the job that has it ends; if it is set aside, to
        those of a reservation."""
        return not self.lost and not {self.state, *self.flags} & (_AWAY | _BROKEN)

    @property
    def up(self) -> bool:
        """What has it can start commands there, even where no other job will be given it, as on one
        that is drained."""
        return not self.lost and not {self.state, *self.flags} & (_AWAY | _OFF)

    @property
    def hopeless(self) -> bool:
        """No job will have it before somebody mends it."""
        words = {self.state, *self.flags}
        return bool(words & _BROKEN) and not words & _RETURNING

    @property
    def set_aside(self) -> bool:
        """Kept for a reservation now."""
        return bool({self.state, *self.flags} & ASIDE)

    @property
    def text(self) -> str:
        """`DOWN+DRAIN: Not responding`."""
        states = "+".join([self.state, *sorted(self.flags)])
        return f"{states}: {self.reason}" if self.reason else states


def nodes_from_text(text: str) -> tuple[NodeState, ...]:
    """All nodes in the output of `scontrol --oneliner show node`.

    Raises ClusterError, one line, where a node has no state.
    """
    try:
        return tuple(_from_record(record) for record in records(text, "NodeName"))
    except KeyError as error:
        raise ClusterError(f"scontrol show node: cannot be read: no {error.args[0]}=") from None


def gpus_of(gres: str) -> int | None:
    """How many GPUs a list of generic resources counts: `gpu:a100:8(S:0-1),nic:2` is 8."""
    counts = [int(count) for count in _GPU.findall(gres)]
    return sum(counts) if counts else None


def shortage(nodes: Iterable[NodeState], wanted: int, partition: str | None = None) -> str | None:
    """What is missing for a job on `wanted` nodes even if nobody else ran; None: nothing is.

    partition: count its nodes only.
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
    # A mark behind a state, such as DOWN*, says in one letter what a word may say again.
    state = record["State"].upper()
    words = [word.rstrip("".join(_MARKS)) for word in state.split("+")]
    words = [_SAME_FLAG.get(word, word) for word in words]
    flags = set(words[1:]) | {word for mark, word in _MARKS.items() if mark in state}
    if words[0] in _KEPT_IDLE:
        flags, words = {*flags, words[0]}, ["IDLE"]
    reason = record.get("Reason", "")
    return NodeState(
        name=record["NodeName"],
        state=words[0],
        flags=frozenset(flags),
        reason=text_of(re.sub(r"\s*\[[^\]]*@[^\]]*\]$", "", reason)),
        hostname=text_of(record.get("NodeHostName")),
        address=text_of(record.get("NodeAddr")),
        cpus=number(record.get("CPUTot")),
        cpus_allocated=number(record.get("CPUAlloc")),
        gpus=gpus_of(record.get("Gres", "")),
        partitions=tuple(filter(None, record.get("Partitions", "").split(","))),
        counts_gpus=bool(re.search(r"(?:^|,)gres/gpu[:=]", record.get("CfgTRES", ""))),
        features=frozenset((text_of(record.get("ActiveFeatures")) or "").split(",")) - {""},
    )
