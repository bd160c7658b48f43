"""sbatch options of gangs, and the nodes that they allow, so that only usable nodes count. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.jobs.slurm import sbatch
from pytest_mnode.launchers.hosts import expand
from pytest_mnode.launchers.slurm import NodeState, Slurm
from pytest_mnode.launchers.slurm.nodes import ASIDE
from pytest_mnode.launchers.slurm.records import reserved_nodes

ONLY, NEVER = ("--nodelist", "-w"), ("--exclude", "-x")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_ACCOUNT")


@dataclass(frozen=True, slots=True)
class Target:
    """Restrictions of a job's nodes by options; () or None without such an option.

    partitions: a node must be in one of them. features: alternatives of --constraint, each a set
    that a node must have. only, never: names from --nodelist and --exclude; only: () for any.
    """

    partitions: tuple[str, ...] = ()
    reservation: str | None = None
    features: tuple[frozenset[str], ...] = ()
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    @classmethod
    def read(cls, options: Sequence[str]) -> Target:
        """Raises UsageError for a constraint that is not supported, and for a file of names."""
        partitions = option_of(options, "--partition", "-p") or ""
        return cls(
            tuple(filter(None, partitions.split(","))),
            option_of(options, "--reservation"),
            features_of(option_of(options, "--constraint", "-C") or ""),
            _names(options, *ONLY),
            _names(options, *NEVER),
        )

    def out(self, names: Sequence[str], among: Collection[str] = ()) -> list[str]:
        """Nodes of `names` that a job must not get. among: the only nodes it may get; () for any.

        Raises UsageError for a name that no node has.
        """
        there = set(names)
        for option, some in ((ONLY[0], self.only), (NEVER[0], self.never)):
            if unknown := [name for name in some if name not in there]:
                given = f"{option}={','.join(some)}: {', '.join(unknown)}"
                raise UsageError(f"--mnode-slurm-args: {given}: no such node")
        blocked = set(among or there) & set(self.only or there) - set(self.never)
        return [name for name in names if name not in blocked]

    def nodes(
        self, nodes: Iterable[NodeState], reserved: Collection[str] = ()
    ) -> tuple[NodeState, ...]:
        """Those of these nodes that a job may get, now or when others end.

        reserved: names of the nodes of its reservation, if it has one.
        """
        return tuple(
            node
            for node in nodes
            if node.usable
            and set(self.partitions) & set(node.partitions)
            and (node.name in reserved if self.reservation else not node.set_aside)
            and (not self.features or any(some <= node.features for some in self.features))
        )

    def unreserved(self, nodes: Iterable[NodeState]) -> tuple[NodeState, ...]:
        """These nodes, without the flags of a reservation if the jobs are in one."""
        if not self.reservation:
            return tuple(nodes)
        return tuple(replace(node, flags=node.flags - ASIDE) for node in nodes)


def option_of(options: Sequence[str], long: str, short: str | None = None) -> str | None:
    """The value of an option: the last one given; None if it is not given."""
    found = None
    for at, word in enumerate(options):
        if word.startswith(f"{long}="):
            found = word.partition("=")[2]
        elif word in (long, short):
            found = options[at + 1] if at + 1 < len(options) else None
        elif short and word.startswith(short) and not word.startswith("--"):
            found = word[2:]
    return found


def without(options: Sequence[str], long: str, short: str) -> list[str]:
    """Options without this option and its value."""
    blocked: list[str] = []
    value = False
    for word in options:
        mine = word.startswith((f"{long}=", short)) and word[:2] in (short, "--")
        if not (value or mine or word == long):
            blocked.append(word)
        value = not value and word in (long, short)
    return blocked


def _names(options: Sequence[str], long: str, short: str) -> tuple[str, ...]:
    text = option_of(options, long, short) or ""
    if "/" in text:
        raise UsageError(
            f"--mnode-slurm-args: {long}={text}: a file of names is not supported; accepted: "
            "names, n[01-16]"
        )
    return expand(text)


def features_of(constraint: str) -> tuple[frozenset[str], ...]:
    """Alternatives of `a|b`, or one set of `a&b`."""
    if not constraint:
        return ()
    if re.search(r"[\[\]()*]", constraint) or ("|" in constraint and re.search("[&,]", constraint)):
        raise UsageError(
            f"constraint {constraint}: its nodes cannot be counted; accepted: features joined by "
            "&, or by |"
        )
    alternatives = [re.split("[&,]", part) for part in constraint.split("|")]
    return tuple(frozenset(filter(None, map(str.strip, some))) for some in alternatives)


def submitting(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment to submit from, without what sbatch would use as options, because only the
    spec and the arguments define which nodes are counted. The user's account is kept."""
    options = ("SBATCH_", "SLURM_")
    given = sbatch.submitting(environ).items()
    return {name: v for name, v in given if name in _KEPT or not name.startswith(options)}


_UNCOUNTED = re.compile(
    r"(--(?:gpus|gpus-per-task|gpus-per-socket|cpus-per-gpu|mem-per-cpu|mem-per-gpu|mincpus|tmp"
    r"|tres-per-\w+|nodefile|sockets-per-node|cores-per-socket|threads-per-core|extra-node-info"
    r"|contiguous|switches))(?:=.*)?|(-[GFB])(?!-).*"
)
_SALLOCS = re.compile(
    r"-I\d*|--immediate(=.*)?|--(no-)?bell|-K\w*|--kill-command(=.*)?|--no-shell|--x11(=.*)?"
)
"""Options of salloc or srun that sbatch rejects."""
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_TYPED = re.compile(r"([A-Za-z][\w.-]*):(?:([\w.-]+):)?(\d+)(?:\(.*\))?")


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requests of a job per node. gres: (name, type or None for any, count)."""

    gres: tuple[tuple[str, str | None, int], ...] = ()
    memory_mbytes: float = 0.0
    cpus: int = 0

    @classmethod
    def read(cls, options: Sequence[str]) -> Requirements:
        """Raises UsageError for options that are not supported, and for unreadable values."""
        for word in options:
            if match := _UNCOUNTED.fullmatch(word):
                raise UsageError(
                    f"--mnode-slurm-args: {match[1] or match[2]}: its nodes cannot be counted; "
                    "accepted: --gpus-per-node, --gres, --mem, --cpus-per-task"
                )
        gpus = option_of(options, "--gpus-per-node") or ""
        listed = [f"gpu:{one}" for one in filter(None, gpus.split(","))]
        asked = [_gres(one, f"--gpus-per-node={gpus}", "4, a100:4") for one in listed]
        text = option_of(options, "--gres") or ""
        some = [] if text.lower() == "none" else [one for one in text.split(",") if one]
        asked += [_gres(one, f"--gres={text}", "gpu:4, gpu:a100:4") for one in some]
        return cls(tuple(asked), _mbytes(options), _cpus(options))

    def met_by(self, node: NodeState) -> bool:
        """Whether a node has as much as a job requests."""
        has = [
            (match[1], match[2], int(match[3]))
            for one in re.split(r",(?![^()]*\))", node.gres)
            if (match := _TYPED.fullmatch(one))
        ]
        return (
            all(_count(has, name, kind) >= count for name, kind, count in self.gres)
            and node.memory_mbytes >= self.memory_mbytes
            and (node.cpus or 0) >= self.cpus
        )


def for_sbatch(options: Sequence[str]) -> list[str]:
    """Options without those only salloc has, because --mnode-slurm-args is for both."""
    return [word for word in options if not _SALLOCS.fullmatch(word)]


def _count(has: Sequence[tuple[str, str | None, int]], name: str, kind: str | None) -> int:
    return sum(count for n, k, count in has if n == name and kind in (None, k))


def _gres(text: str, option: str, accepted: str) -> tuple[str, str | None, int]:
    name, *rest = text.removeprefix("gres/").split(":")
    count = rest.pop() if rest and rest[-1].isdigit() else "1"
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name) or len(rest) > 1 or not all(rest):
        raise UsageError(f"--mnode-slurm-args: {option}: invalid; accepted: {accepted}")
    return name, rest[0] if rest else None, int(count)


def _mbytes(options: Sequence[str]) -> float:
    text = option_of(options, "--mem")
    if text is None:
        return 0.0
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if match is None:
        raise UsageError(f"--mnode-slurm-args: --mem={text}: invalid; accepted: 64G, 512000M")
    return int(match[1]) * _UNITS[match[2] or "M"]


def _cpus(options: Sequence[str]) -> int:
    text = option_of(options, "--cpus-per-task", "-c")
    if text is not None and not text.isdigit():
        raise UsageError(f"--mnode-slurm-args: --cpus-per-task={text}: invalid; accepted: 16")
    return int(text or 0)


def is_free(node: NodeState) -> bool:
    """Whether no job uses the node, or keeps it from others: a job with exclusive topology blocks
    its neighbours."""
    used = node.flags & {"COMPLETING", "BLOCKED"} or node.cpus_allocated
    return node.state == "IDLE" and not used


class SlurmRoom:
    """The nodes of a job's partitions or reservation that meet its options.

    options: of sbatch or salloc. Raises UsageError for options that are not supported.
    """

    def __init__(self, slurm: Slurm, options: Sequence[str]) -> None:
        self.target, self._requirements = Target.read(options), Requirements.read(options)
        self._slurm = slurm

    def usable(self) -> tuple[NodeState, ...]:
        """Nodes that a job may get, now or when others end. Raises ClusterError, UsageError."""
        target = replace(self.target, partitions=self.target.partitions or (self._default(),))
        there = self._slurm.nodes()
        out = set(target.out([node.name for node in there]))
        found = filter(self._requirements.met_by, target.nodes(there, self._reserved()))
        return tuple(node for node in found if node.name not in out)

    def _reserved(self) -> tuple[str, ...]:
        """Nodes of the jobs' reservation; () without one."""
        if (name := self.target.reservation) is None:
            return ()
        return reserved_nodes(
            self._slurm.run("scontrol", "--oneliner", "show", "reservation"), name
        )

    def _default(self) -> str:
        """Name of the default partition. Raises ClusterError without one."""
        named = self._slurm.run("sinfo", "--noheader", "--format=%P").split()
        default = [name.rstrip("*") for name in named if name.endswith("*")]
        if not default:
            raise ClusterError(
                f"Slurm has no default partition; name one of {', '.join(named)} by "
                "--mnode-slurm-args=--partition=NAME or, for gangs, in the spec, "
                "scheduler: {names: {partition: …}}"
            )
        return default[0]
