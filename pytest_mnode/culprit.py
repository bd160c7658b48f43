"""Who or what is to blame: words for people; nodes, devices, paths, ranks and settings as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

_ANYBODY = frozenset[str]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of the nodes is to blame, whole, however many; each sorted, and empty if not known.

    devices: NICs, GPUs, ports and the like as (node, device). paths: (sender, receiver), nodes; a
    path that fails both ways is there twice. ranks: of the world. settings: keys and variables.
    """

    devices: tuple[tuple[str, str], ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    ranks: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _PARTS:
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _PARTS)

    @classmethod
    def of_all(cls, every: Iterable[Parts]) -> Self:
        """The parts of all of these."""
        every = list(every)
        joined: dict[str, Any] = {
            name: tuple(x for one in every for x in getattr(one, name)) for name in _PARTS
        }
        return cls(**joined)


def _hashable(one: Any) -> Any:
    return tuple(one) if isinstance(one, list) else one


_PARTS = tuple(one.name for one in fields(Parts))


class Culprit(str):
    """A node, device, path or setting in words, with its nodes as data, whole, however many.

    nodes: nodes to blame for sure. either: sets of nodes of which one may be to blame, such as the
    two ends of a path; an empty set stands for all nodes that took part. Words without a node may
    concern any of these, except where nothing but settings is to blame: then no node is. parts:
    what of the nodes.

    It is a text, so that it reads and compares like one. A text made from it is a plain text again:
    `merged` makes other words for the same nodes and parts.
    """

    __slots__ = ("either", "nodes", "parts")
    nodes: frozenset[str]
    either: frozenset[frozenset[str]]
    parts: Parts

    def __new__(
        cls,
        words: str,
        nodes: str | Iterable[str] = (),
        either: Iterable[Iterable[str]] = (),
        parts: Parts | None = None,
    ) -> Self:
        self = super().__new__(cls, words)
        self.nodes = frozenset([nodes] if isinstance(nodes, str) else nodes)
        self.either = frozenset(map(frozenset, either))
        self.parts = parts or Parts()
        if not (self.nodes or self.either or self.parts.settings):
            self.either = frozenset([_ANYBODY])
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.nodes, self.either, self.parts)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(str)  # in JSON the words; its nodes and parts stand beside them

    @classmethod
    def of(cls, culprit: str) -> Self:
        """A culprit as it is, or a plain text, whose nodes are not known."""
        return culprit if isinstance(culprit, cls) else cls(culprit)

    @classmethod
    def device(cls, words: str, node: str, *devices: str) -> Self:
        """Words for devices of one node, which is to blame for sure."""
        return cls(words, node, parts=Parts(devices=tuple((node, name) for name in devices)))

    @classmethod
    def rank(cls, words: str, node: str, *ranks: int) -> Self:
        """Words for ranks on one node, which is to blame for sure."""
        return cls(words, node, parts=Parts(ranks=ranks))

    @classmethod
    def path(cls, words: str, *paths: tuple[str, str]) -> Self:
        """Words for paths, each from a sender to a receiver, of which either may be to blame."""
        return cls(words, either=paths, parts=Parts(paths=paths))

    @classmethod
    def merged(cls, words: str, culprits: Iterable[str | None]) -> Self:
        """Words for all of these culprits together, with the nodes and parts of each."""
        every = [cls.of(one) for one in culprits if one is not None]
        return cls(
            words,
            (name for one in every for name in one.nodes),
            (group for one in every for group in one.either),
            Parts.of_all(one.parts for one in every),
        )

    @classmethod
    def one_of(cls, words: str, culprits: Iterable[str]) -> Self:
        """Words for culprits of which one is to blame, and nobody knows which."""
        every = cls.merged(words, culprits)
        anybody = [_ANYBODY] if _ANYBODY in every.either else []
        return cls(words, (), anybody or [every.nodes.union(*every.either)], every.parts)

    @property
    def record(self) -> dict[str, Any]:
        """Plain values, as reports and JSON have them beside each other."""
        return {
            "culprit": str(self),
            "culprit_nodes": tuple(sorted(self.nodes)),
            "culprit_either": tuple(sorted(tuple(sorted(group)) for group in self.either)),
            "culprit_parts": asdict(self.parts) if self.parts else None,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `record`, also of what JSON made of it; raises KeyError and TypeError."""
        given = record["culprit_parts"] or {}
        parts: dict[str, Any] = {name: map(_hashable, found) for name, found in given.items()}
        words, nodes, either = (record[f"culprit{end}"] for end in ("", "_nodes", "_either"))
        return cls(words, nodes, either, Parts(**parts))

    @property
    def suspected(self) -> Self:
        """The same words, with no node to blame for sure: each of its nodes may be."""
        either = [*self.either, *([name] for name in self.nodes)]
        return type(self)(str(self), (), either, self.parts)
