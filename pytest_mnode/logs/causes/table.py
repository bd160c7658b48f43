"""The table of known causes, read from `known.toml`, and the causes found in a text."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pytest_mnode.machine.cpus import format_cpulist

_SHOWN = 300


@dataclass(frozen=True, slots=True)
class KnownCause:
    """One entry of the table. order: its position; smaller is weightier."""

    order: int
    name: str
    root: bool
    meaning: str
    remedy: str
    patterns: tuple[re.Pattern[str], ...]
    in_info: bool = False
    unless_other: bool = False


@cache
def known_causes() -> tuple[KnownCause, ...]:
    """All known causes, weightiest first; `known.toml` explains its format."""
    data = tomllib.loads(Path(__file__).with_name("known.toml").read_text("utf-8"))
    fragments = data["fragments"]

    def compiled(pattern: str) -> re.Pattern[str]:
        return re.compile(re.sub(r"%(\w+)%", lambda found: fragments[found[1]], pattern))

    return tuple(
        KnownCause(
            order=order,
            name=name,
            root=entry.get("root", True),
            meaning=entry["meaning"],
            remedy=entry["remedy"],
            patterns=tuple(map(compiled, entry.get("patterns", ()))),
            in_info=entry.get("in_info", False),
            unless_other=entry.get("unless_other", False),
        )
        for order, (name, entry) in enumerate(data["causes"].items())
    )


@cache
def in_order_of_matching() -> tuple[KnownCause, ...]:
    """All known causes; those that match only lines without another cause come last."""
    return tuple(sorted(known_causes(), key=lambda cause: cause.unless_other))


def known_cause(name: str) -> KnownCause:
    """The entry of this name."""
    return next(cause for cause in known_causes() if cause.name == name)


@dataclass(frozen=True, slots=True)
class Cause:
    """A known cause found in a text, with the line that shows it and its culprit.

    ranks, host, device, peer: as far as lines name them; equal causes of several ranks are merged.
    line: its first 300 characters.
    """

    kind: KnownCause
    line: str
    ranks: tuple[int, ...] = ()
    host: str | None = None
    device: str | None = None
    peer: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", self.line[:_SHOWN])

    @property
    def name(self) -> str:
        """The name in the table."""
        return self.kind.name

    @property
    def root(self) -> bool:
        """Whether it explains the failure; otherwise it follows from another one."""
        return self.kind.root

    @property
    def order(self) -> int:
        """Its position in the table; smaller is weightier."""
        return self.kind.order

    @property
    def known(self) -> int:
        """Number of known parts of the culprit."""
        return sum(map(bool, (self.ranks, self.host, self.device, self.peer)))

    @property
    def culprit(self) -> str:
        """Text such as "rank 3 on node2, mlx5_3:1, peer 10.0.0.7"; empty if no line names one."""
        several = "s" if len(self.ranks) > 1 else ""
        ranks = f"rank{several} {format_cpulist(self.ranks)}" if self.ranks else ""
        on = " on ".join(filter(None, [ranks, self.host or ""]))
        return ", ".join(filter(None, [on, self.device, self.peer and f"peer {self.peer}"]))

    @property
    def short(self) -> str:
        """Text without rank and host, such as "port went down (mlx5_3:1)"."""
        parts = ", ".join(
            filter(None, [self.device, self.peer and f"peer {self.peer}", self.detail])
        )
        return f"{self.name} ({parts})" if parts else self.name

    @property
    def text(self) -> str:
        """One line: culprit, name and meaning, the line that shows it, and the remedy."""
        who = f"{self.culprit}: " if self.culprit else ""
        what = f"{self.name} ({self.kind.meaning}{f': {self.detail}' if self.detail else ''})"
        return f"{who}{what}; {self.line!r}; {self.kind.remedy}"
