"""What a style of launch promises the ranks of a job, and who reported, met and saw too much.

Pure: from what the ranks said to a list of what is wrong, each with node, rank and variable. The
variables themselves are judged in `variables`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.criteria.launching.reports import RankReport

CANARY = "MNODE_CANARY"
"""Set where a job is submitted from, for every submission; no rank may see it."""
LOGIN = frozenset({"HOME", "USER", "PATH", "LANG"})
"""What an ordinary user's environment has here."""
_SHELL = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"})
"""What a shell, or Python itself, adds."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "torchrun": (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("MASTER_ADDR", "MASTER_PORT"),
    ),
    "deepspeed": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    "megatron": (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        # Its script makes the others of these, whoever starts the tasks.
        *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    ),
    "plain": (),
}
"""Variables that a rank of each style must have."""
_ADDED: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("TORCHELASTIC_", "TORCH_NCCL_", "ROLE_", "GROUP_", "OMP_NUM_THREADS"),
    "deepspeed": ("CROSS_", "LOCAL_SIZE", "CUDA_VISIBLE_DEVICES", "NCCL_ASYNC_ERROR_HANDLING"),
    "megatron": ("SLURM_", "CUDA_VISIBLE_DEVICES"),
    "plain": (),
}
"""Beginnings of what launchers of each style add of their own."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a job must find.

    nodes: names as nodes report them, in the order of ranks. per_node: ranks of each.
    accelerators: of each node. pins: variables that every rank of a node must have, by node.
    outside: names of variables where the job was submitted from; own: names the job asked for.
    hosts: how nodes name themselves where that is otherwise; nodes of one name are one machine.
    added: beginnings of those that the way of submitting adds; profile: the user's profile adds
    more, of any name.
    """

    style: str
    nodes: tuple[str, ...]
    per_node: int
    accelerators: int
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    hosts: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    profile: bool = False

    @property
    def size(self) -> int:
        return len(self.nodes) * self.per_node


@dataclass(frozen=True, slots=True)
class Wrong:
    """One thing that is not as it should be. rank: None where it is the node's, or unknown."""

    node: str
    rank: int | None
    variable: str
    what: str

    def __str__(self) -> str:
        rank = f" rank {self.rank}" if self.rank is not None else ""
        return f"{self.node}{rank}: {self.what}"


def not_reported(reports: Sequence[RankReport], facts: Collection[str]) -> str:
    """Which ranks did not say what is judged here, in words; "" where all did."""
    if not reports:
        return "no rank reported"
    lines = []
    for fact in facts:
        silent = [report for report in reports if fact in report.unsaid]
        if silent:
            what = f"reported no {fact} ({len(silent)} of {len(reports)} ranks)"
            lines.append(str(Wrong(silent[0].node, silent[0].rank, "", what)))
    return "; ".join(lines)


def leaked(expected: Expected, reports: Sequence[RankReport]) -> list[Wrong]:
    """Variables of where the job was submitted from that ranks see, the canary first.

    Where a profile adds variables, which may have the same names, only the canary tells: a rank
    that does not see it sees nothing of there.
    """
    allowed = LOGIN | _SHELL | expected.own | set(REQUIRED[expected.style])
    allowed |= {name for pins in expected.pins.values() for name in pins}
    found = []
    for report in reports:
        if expected.profile and CANARY not in report.names:
            continue
        for name in sorted((report.names & expected.outside) - allowed):
            if not name.startswith((*_ADDED[expected.style], *expected.added)):
                what = f"{name} of the submitting environment is visible"
                found.append(Wrong(report.node, report.rank, name, what))
    return sorted(found, key=lambda wrong: wrong.variable != CANARY)


def missing_ranks(expected: Expected, reports: Sequence[RankReport]) -> list[Wrong]:
    """Nodes on which fewer ranks, or more, said anything than run there."""
    said = Counter(report.node for report in reports)
    found = []
    for node in (*expected.nodes, *sorted(set(said) - set(expected.nodes))):
        due = expected.per_node if node in expected.nodes else 0
        if said[node] != due:
            found.append(Wrong(node, None, "", f"{said[node]} of {due} ranks reported"))
    return found


def not_met(expected: Expected, reports: Sequence[RankReport]) -> list[Wrong]:
    """Ranks that did not meet all the others, or got a wrong sum of them."""
    size = expected.size
    found = []
    for report in reports:
        met = report.met
        if met is None:
            what = report.error or "met nobody"
        elif met.size != size:
            alone = " alone" if met.size == 1 else ""
            what = f"met{alone}: {met.size} of {size} ranks by a collective"
        elif met.total != size * (size + 1) // 2 or sorted(met.ranks) != list(range(size)):
            what = f"a wrong sum over all ranks: {met.total}, from ranks {list(met.ranks)}"
        else:
            continue
        found.append(Wrong(report.node, report.rank, "", what))
    return found
