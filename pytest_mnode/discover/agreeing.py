"""What most nodes have, and which nodes have something else. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)
_MOST_NAMED = 8
_ALIKE = 1.1


@dataclass(frozen=True, slots=True)
class Agreed(Generic[V]):
    """A value and who has it.

    value: of more nodes than any other; None where no node tells one, or where none is the most
    frequent. having: nodes that have it. odd: every other node, with what it has, in words.
    """

    value: V | None
    having: tuple[str, ...]
    odd: tuple[tuple[str, str], ...]

    @property
    def differences(self) -> str:
        """What other nodes have, in words; "" where all have the same or none tells any."""
        by_text: dict[str, list[str]] = {}
        for node, text in self.odd:
            by_text.setdefault(text, []).append(node)
        if not self.having and len(by_text) < 2:
            return ""
        return "; ".join(f"{named(nodes)}: {text}" for text, nodes in by_text.items())


def agreed(values: Mapping[str, V | None], text: Callable[[V], str] = str) -> Agreed[V]:
    """What most nodes have, of values by node name, None where a node does not tell."""
    counted = Counter(value for value in values.values() if value is not None).most_common()
    tied = len(counted) > 1 and counted[1][1] == counted[0][1]
    usual = counted[0][0] if counted and not tied else None
    return Agreed(
        usual,
        tuple(n for n, value in values.items() if usual is not None and value == usual),
        tuple(
            (node, "not told" if value is None else text(value))
            for node, value in values.items()
            if usual is None or value != usual
        ),
    )


def alike(sizes: Iterable[int | None]) -> dict[int, int]:
    """The least of those sizes that are within a tenth above it, by size.

    For what follows from the memory that a kernel found, which is the same on no two nodes.
    """
    found: dict[int, int] = {}
    least = 0
    for size in sorted({size for size in sizes if size is not None}):
        if size > least * _ALIKE:
            least = size
        found[size] = least
    return found


def named(nodes: Sequence[str], most: int = _MOST_NAMED) -> str:
    """Names joined by commas, and how many more there are."""
    more = f" and {len(nodes) - most} more" if len(nodes) > most else ""
    return ", ".join(nodes[:most]) + more


def where(having: Sequence[str], count: int) -> str:
    """Which of `count` nodes."""
    if len(having) == count and count > 1:
        return f"all {count} nodes"
    if len(having) == 1 and count == 1:
        return having[0]
    return f"{len(having)} of {count} nodes ({named(having)})"
