"""Which CPUs each rank of a node gets: pure, from what the node shows and what is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Core = tuple[int, ...]
"""CPUs that are threads of one core."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank gets. Without CPUs it is left as it is, and `why` says so.

    numa_node: of its accelerator; None where not known.
    shared_with: local ranks that get the same CPUs because there are not enough.
    """

    cpus: tuple[int, ...]
    numa_node: int | None
    shared_with: tuple[int, ...] = ()
    why: str = ""


def shares(
    homes: Sequence[int | None], cores: Mapping[int, Sequence[Core]], exclusive: bool
) -> list[Share]:
    """A share for each local rank.

    homes: NUMA node of each rank's accelerator. cores: of each NUMA node, as far as ranks may use
    them. exclusive: ranks beside the same NUMA node get cores of their own; else all of them.
    """
    every = []
    for rank, home in enumerate(homes):
        near = cores.get(home, ()) if home is not None else ()
        if home is None:
            every.append(Share((), None, why="the NUMA node of its accelerator is not known"))
        elif not near:
            why = f"none of the CPUs of NUMA node {home}, its accelerator's, may be used here"
            every.append(Share((), home, why=why))
        else:
            beside = [other for other, node in enumerate(homes) if node == home]
            mine = _part(near, beside.index(rank), len(beside)) if exclusive else near
            with_me = [
                other
                for number, other in enumerate(beside)
                if other != rank and exclusive and set(_part(near, number, len(beside))) & set(mine)
            ]
            every.append(
                Share(tuple(sorted(cpu for core in mine for cpu in core)), home, tuple(with_me))
            )
    return every


def _part(cores: Sequence[Core], number: int, of: int) -> Sequence[Core]:
    """Part `number` of cores shared by `of` ranks; where they do not suffice, one in turn."""
    if len(cores) < of:
        return [cores[number % len(cores)]]
    length, left = divmod(len(cores), of)
    start = number * length + min(number, left)
    return cores[start : start + length + (number < left)]
