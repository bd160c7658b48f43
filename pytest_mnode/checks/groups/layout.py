"""Meshes to try, and the ranks of their groups, computed independently of torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

from pytest_mnode.errors import UsageError

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec.checks import GroupsCriterion


@dataclass(frozen=True, slots=True)
class Layout:
    """Named dimensions over ranks 0 … size-1, outermost first: ranks are neighbours along the last.

    Raises ValueError unless each size has a name of its own, and for a size below 1.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes) or len(set(self.names)) < len(self.names):
            raise ValueError(f"names {self.names} do not each name one of the sizes {self.sizes}")
        if min(self.sizes, default=0) < 1:
            raise ValueError(f"sizes {self.sizes}; give dimensions of 1 or more")

    @classmethod
    def of(cls, **sizes: int) -> Self:
        """A layout by keywords, such as `Layout.of(pp=2, dp=4, tp=8)`."""
        return cls(tuple(sizes), tuple(sizes.values()))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def wider_than_one(self, names: Iterable[str]) -> tuple[str, ...]:
        """The dimensions of `names` along which this layout has more than one rank."""
        sizes = dict(zip(self.names, self.sizes, strict=True))
        return tuple(name for name in names if sizes.get(name, 1) > 1)

    def groups(self, *names: str) -> tuple[tuple[int, ...], ...]:
        """All groups along these dimensions, in the order of their first rank.

        The ranks of a group differ along these dimensions only; they are in order, outermost first.
        """
        fixed = [number for number, name in enumerate(self.names) if name not in names]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(itertools.product(*map(range, self.sizes))):
            found.setdefault(tuple(place[number] for number in fixed), []).append(rank)
        return tuple(map(tuple, found.values()))

    def group_of(self, rank: int, *names: str) -> tuple[int, ...]:
        """The group of `rank` along these dimensions."""
        return next(group for group in self.groups(*names) if rank in group)

    def __str__(self) -> str:
        return shown_sizes(dict(zip(self.names, self.sizes, strict=True)))


def plan_layouts(nodes: int, per_node: int) -> tuple[Layout, ...]:
    """Meshes to try over nodes × ranks per node: tp inside a node, pp and dp over nodes.

    If the ranks of a node can be divided, dp is also tried inside it, beside tp.
    """
    stages = smallest_factor(nodes) if nodes > 1 else 1
    inner = smallest_factor(per_node)
    layouts = [
        Layout.of(dp=nodes, tp=per_node),
        Layout.of(pp=stages, dp=nodes // stages, tp=per_node),
    ]
    if 1 < inner < per_node:
        tp = per_node // inner
        layouts.append(Layout.of(pp=stages, dp=nodes // stages * inner, tp=tp))
    if nodes == 1:  # only the ranks of the one node are left for dp and pp
        layouts[1] = Layout.of(pp=inner, dp=per_node // inner, tp=1)
    return tuple(dict.fromkeys(layouts))


def layouts(promise: GroupsCriterion, world: World) -> tuple[Layout, ...]:
    """The meshes to try over a world: those that the spec names, else those planned.

    Raises UsageError, one line, for a mesh that does not fit the world.
    """
    if promise.meshes is None:
        return plan_layouts(len(world.nodes), world.local_size)
    return tuple(asked_layout(mesh, world.size) for mesh in promise.meshes)


def asked_layout(sizes: Mapping[str, int | str], ranks: int) -> Layout:
    """A mesh that the spec names, over `ranks` ranks.

    Raises UsageError, one line, if it does not fit them.
    """
    text = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    given = {name: size for name, size in sizes.items() if isinstance(size, int)}
    fixed = prod(given.values())
    full = len(given) == len(sizes)
    if ranks % fixed or (full and fixed != ranks):
        least = "" if full else "a multiple of "
        raise UsageError(
            f"mesh {{{text}}} needs {least}{fixed} ranks, and there are {ranks}; "
            "give other sizes, or rest for one of them"
        )
    # Layout.of does not accept a dimension named cls.
    return Layout(tuple(sizes), tuple(given.get(name, ranks // fixed) for name in sizes))


def smallest_factor(number: int) -> int:
    """The smallest prime that divides a number; 1 for 1."""
    return next((f for f in range(2, number + 1) if number % f == 0), 1)


def shown_sizes(sizes: Mapping[str, int]) -> str:
    """Names with the sizes of their groups, such as "dp 4 × tp 2"."""
    return " × ".join(f"{name} {size}" for name, size in sizes.items())
