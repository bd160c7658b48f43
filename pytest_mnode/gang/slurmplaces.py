"""Where sbatch's options send jobs, and which nodes that leaves for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.slurm import NodeState, expand
from pytest_mnode.launchers.slurm.nodes import ASIDE

ONLY, NEVER = ("--nodelist", "-w"), ("--exclude", "-x")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_ACCOUNT")


@dataclass(frozen=True, slots=True)
class Place:
    """What options ask for; empty or None where they do not.

    partitions: any of them; features: as --constraint has them, all of each of the alternatives.
    only, never: nodes by name, as --nodelist and --exclude have them; only (): any.
    """

    partitions: tuple[str, ...] = ()
    reservation: str | None = None
    features: tuple[frozenset[str], ...] = ()
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    @classmethod
    def read(cls, options: Sequence[str]) -> Place:
        """Raises UsageError for a constraint that is more than one choice of features, and for
        names that are a file's."""
        partitions = option_of(options, "--partition", "-p") or ""
        return cls(
            tuple(filter(None, partitions.split(","))),
            option_of(options, "--reservation"),
            features_of(option_of(options, "--constraint", "-C") or ""),
            _names(options, *ONLY),
            _names(options, *NEVER),
        )

    def out(self, names: Sequence[str], among: Collection[str] = ()) -> list[str]:
        """Of all nodes those that a job must not get; among: the only ones it may; (): any.

        Raises UsageError for a name that no node has.
        """
        there = set(names)
        for option, some in ((ONLY[0], self.only), (NEVER[0], self.never)):
            if unknown := [name for name in some if name not in there]:
                told = f"{option}={','.join(some)}: {', '.join(unknown)}"
                raise UsageError(f"--mnode-slurm-args: {told}: no such node")
        kept = set(among or there) & set(self.only or there) - set(self.never)
        return [name for name in names if name not in kept]

    def nodes(
        self, nodes: Iterable[NodeState], reserved: Collection[str] = ()
    ) -> tuple[NodeState, ...]:
        """Those of these nodes that a job may get, now or when others end.

        reserved: names of the reservation's nodes, which nobody else gets, where there is one.
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
        """These nodes; of the jobs' own reservation without the flags that keep them for it."""
        if not self.reservation:
            return tuple(nodes)
        return tuple(replace(node, flags=node.flags - ASIDE) for node in nodes)


def option_of(options: Sequence[str], long: str, short: str | None = None) -> str | None:
    """What sbatch takes for an option's value: that of the last time it is given."""
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
    """Options without this one, which has a value."""
    kept: list[str] = []
    value = False
    for word in options:
        mine = word.startswith((f"{long}=", short)) and word[:2] in (short, "--")
        if not (value or mine or word == long):
            kept.append(word)
        value = not value and word in (long, short)
    return kept


def _names(options: Sequence[str], long: str, short: str) -> tuple[str, ...]:
    text = option_of(options, long, short) or ""
    if "/" in text:
        raise UsageError(
            f"--mnode-slurm-args: {long}={text}: a file is not read here; accepted: names, n[01-16]"
        )
    return expand(text)


def features_of(constraint: str) -> tuple[frozenset[str], ...]:
    """`a&b` or `a|b`, as alternatives of features that a node must have together."""
    if not constraint:
        return ()
    if re.search(r"[\[\]()*]", constraint) or ("|" in constraint and re.search("[&,]", constraint)):
        raise UsageError(
            f"constraint {constraint}: which nodes have it cannot be told here; accepted: "
            "features joined by &, or by |"
        )
    alternatives = [re.split("[&,]", part) for part in constraint.split("|")]
    return tuple(frozenset(filter(None, map(str.strip, some))) for some in alternatives)


def left_out(environ: Mapping[str, str]) -> list[str]:
    """Variables that sbatch would take for options: jobs go where the spec and the arguments say,
    as that is where nodes are counted. The user's account is kept."""
    return [
        name for name in environ if name.startswith(("SBATCH_", "SLURM_")) and name not in _KEPT
    ]
