"""Who or what is to blame: words for people, and the nodes as data for whoever judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

_ANYBODY = frozenset[str]()


class Culprit(str):
    """A node, device, path or setting in words, with its nodes as data, whole, however many.

    nodes: nodes to blame for sure. either: sets of nodes of which one may be to blame, such as the
    two ends of a path; an empty set stands for all nodes that took part. Words without a node, such
    as a setting of the spec, may concern any of these.

    It is a text, so that it reads and compares like one. A text made from it is a plain text again:
    `merged` makes other words for the same nodes.
    """

    __slots__ = ("either", "nodes")
    nodes: frozenset[str]
    either: frozenset[frozenset[str]]

    def __new__(
        cls,
        words: str,
        nodes: str | Iterable[str] = (),
        either: Iterable[Iterable[str]] = (),
    ) -> Self:
        self = super().__new__(cls, words)
        self.nodes = frozenset([nodes] if isinstance(nodes, str) else nodes)
        self.either = frozenset(map(frozenset, either))
        if not (self.nodes or self.either):
            self.either = frozenset([_ANYBODY])
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.nodes, self.either)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(str)  # in JSON the words; its nodes stand beside them

    @classmethod
    def of(cls, culprit: str) -> Self:
        """A culprit as it is, or a plain text, whose nodes are not known."""
        return culprit if isinstance(culprit, cls) else cls(culprit)

    @classmethod
    def merged(cls, words: str, culprits: Iterable[str | None]) -> Self:
        """Words for all of these culprits together, with the nodes of each."""
        every = [cls.of(one) for one in culprits if one is not None]
        return cls(
            words,
            (name for one in every for name in one.nodes),
            (group for one in every for group in one.either),
        )

    @classmethod
    def one_of(cls, words: str, culprits: Iterable[str]) -> Self:
        """Words for culprits of which one is to blame, and nobody knows which."""
        every = cls.merged(words, culprits)
        anybody = [_ANYBODY] if _ANYBODY in every.either else []
        return cls(words, (), anybody or [every.nodes.union(*every.either)])

    @property
    def record(self) -> dict[str, Any]:
        """Plain values, as reports and JSON have them beside each other."""
        return {
            "culprit": str(self),
            "culprit_nodes": tuple(sorted(self.nodes)),
            "culprit_either": tuple(sorted(tuple(sorted(group)) for group in self.either)),
        }

    @property
    def suspected(self) -> Self:
        """The same words, with no node to blame for sure: each of its nodes may be."""
        return type(self)(str(self), (), [*self.either, *([name] for name in self.nodes)])
