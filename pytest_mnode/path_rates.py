"""Rates of every path between two nodes, in tables compact enough for hundreds of nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal


class State(StrEnum):
    """The state of a node, a rail or a path."""

    PASSED = "passed"
    FAILED = "failed"
    SUSPECT = "suspect"
    NOT_TESTED = "not tested"

    @property
    def letter(self) -> str:
        """The letter of this state in tables: p, f, s, or - if not tested."""
        return "-" if self is State.NOT_TESTED else self.value[0]


BY_LETTER = {state.letter: state for state in State}
NOT_MEASURED = "-"
_TRIED = re.compile(r"[^-]")
_NO_STATE = re.compile(f"[^{''.join(BY_LETTER)}]")
_RATES = re.compile(r"(?:\s*(?:-|\d+(?:\.\d+)?)(?!\S))*\s*")


@dataclass(frozen=True, slots=True)
class PathRates:
    """Path and rail tables of a run; rows are in the order of `nodes`.

    rails: names of the NICs, or groups of NICs, that every node has. bound_mbits_s: lowest accepted
    rate of a rail. states: a row per sender, with the letter (`State.letter`) of each receiver.
    mbits_s: a row per sender, with whole Mbit/s per receiver on the path's slowest rail, or "-",
    separated by blanks. rail_states: a row per node, with a letter per rail. rail_mbits_s: a row
    per node, with the best rate of each rail's slower direction.
    """

    nodes: tuple[str, ...]
    rails: tuple[str, ...]
    bound_mbits_s: float
    states: tuple[str, ...]
    mbits_s: tuple[str, ...]
    rail_states: tuple[str, ...]
    rail_mbits_s: tuple[str, ...]
    kind: Literal["paths"] = "paths"

    def __post_init__(self) -> None:
        if not math.isfinite(self.bound_mbits_s):
            raise ValueError(f"a bound of {self.bound_mbits_s} Mbit/s cannot be judged")
        nodes, rails = len(self.nodes), len(self.rails)
        for letters, rates, columns in (
            (self.states, self.mbits_s, nodes),
            (self.rail_states, self.rail_mbits_s, rails),
        ):
            if not (
                len(letters) == len(rates) == nodes
                and all(len(row) == columns and not _NO_STATE.search(row) for row in letters)
                and all(len(row.split()) == columns and _RATES.fullmatch(row) for row in rates)
            ):
                raise ValueError("tables of paths do not have a state and a rate in each place")

    def paths(self) -> Iterator[tuple[str, str, State, float | None]]:
        """Sender, receiver, state and rate of every ordered pair."""
        for sender, letters, row in zip(self.nodes, self.states, self.mbits_s, strict=True):
            for receiver, letter, rate in zip(self.nodes, letters, row.split(), strict=True):
                if receiver != sender:
                    mbits_s = None if rate == NOT_MEASURED else float(rate)
                    yield sender, receiver, BY_LETTER[letter], mbits_s

    def of(self, names: Collection[str]) -> PathRates:
        """The rates of these nodes only."""
        kept = [place for place, name in enumerate(self.nodes) if name in names]
        if len(kept) == len(self.nodes):
            return self
        rows = [self.mbits_s[place].split() for place in kept]
        return replace(
            self,
            nodes=tuple(self.nodes[place] for place in kept),
            states=tuple("".join(self.states[a][b] for b in kept) for a in kept),
            mbits_s=tuple(" ".join(row[b] for b in kept) for row in rows),
            rail_states=tuple(self.rail_states[place] for place in kept),
            rail_mbits_s=tuple(self.rail_mbits_s[place] for place in kept),
        )

    def connected(self) -> Iterator[tuple[str, str]]:
        """Pairs of nodes with a path that was tried, in either direction."""
        for sender, letters in zip(self.nodes, self.states, strict=True):
            for found in _TRIED.finditer(letters):
                yield sender, self.nodes[found.start()]


def parts(nodes: Iterable[str], tables: Iterable[PathRates]) -> tuple[tuple[str, ...], ...]:
    """Groups of `nodes` that paths connect, directly or through other nodes; largest first."""
    part = {name: [name] for name in nodes}
    left = len(part)
    for one, other in (pair for table in tables for pair in table.connected()):
        if left == 1:
            break
        if one in part and other in part and (whole := part[one]) is not part[other]:
            joined = part[other]
            whole += joined
            part.update(dict.fromkeys(joined, whole))
            left -= 1
    distinct = {id(some): some for some in part.values()}.values()
    return tuple(sorted((tuple(sorted(some)) for some in distinct), key=len, reverse=True))
