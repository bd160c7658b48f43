"""The table of known causes, read from `known.toml`, and the causes found in a text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from pytest_mnode.logs.kernel_log import FAULTS
from pytest_mnode.logs.xids import xid
from pytest_mnode.machine.cpus import format_cpulist

_XIDS = [(number, xid(number, "")) for number in range(1, 200)]
_CALM = (45, 63, 92, 106, 107, 162)
"""These end no program: 45 follows whatever did, 63 says that a row of memory was remapped, 92 that
many errors were corrected, and the others are for information."""
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_NO_WIDTH = (_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT)


Words = tuple[frozenset[str], ...]
"""Of each set, a line that matches contains at least one text. In lower case, without digits."""
_SHOWN = 300


def words_of(pattern: re.Pattern[str]) -> Words:
    """Words that are in every line that the pattern matches; empty if it needs none."""
    return tuple(words for words in _words(_parser.parse(pattern.pattern)) if words)


def _words(parsed: Iterable[tuple[Any, Any]]) -> list[frozenset[str]]:
    run, found = "", []
    for op, arg in parsed:
        text = _text(op, arg)
        if text is not None:
            run += text
            continue
        found.append(frozenset({run} - {""}))
        run = ""
        if op is _constants.SUBPATTERN:
            found += _words(arg[-1])
        elif op is _constants.BRANCH:
            # Of each way, the set whose shortest text is longest lets the fewest lines pass.
            ways = [max(_words(way), key=lambda w: min(map(len, w), default=0)) for way in arg[1]]
            found.append(frozenset().union(*ways) if all(ways) else frozenset())
        elif op in _REPEATS and arg[0] > 0:
            found += _words(arg[2])
    return [*found, frozenset({run} - {""})]


def _text(op: Any, arg: Any) -> str | None:
    """The text that this part always matches, in lower case; None if it differs or has a digit."""
    if op in _NO_WIDTH:
        return ""
    if op is _constants.LITERAL:
        return None if chr(arg).isdigit() else chr(arg).lower()
    if op is _constants.IN and all(kind is _constants.LITERAL for kind, _ in arg):
        small = {chr(code).lower() for _, code in arg}
        return small.pop() if len(small) == 1 and not any(map(str.isdigit, small)) else None
    if op is _constants.SUBPATTERN:
        parts = [_text(*part) for part in arg[-1]]
        return None if None in parts else "".join(part or "" for part in parts)
    return None


@dataclass(frozen=True, slots=True)
class KnownCause:
    """One entry of the table. order: its position; smaller is weightier.

    otherwise: patterns that count only in a line without a match of any `patterns`. cases: the same
    cause with meanings and remedies of their own, which come before it. by_victims: see
    `Cause.by_victim`.
    """

    order: int
    name: str
    root: bool
    meaning: str
    remedy: str
    patterns: tuple[re.Pattern[str], ...]
    otherwise: tuple[re.Pattern[str], ...] = ()
    cases: tuple[KnownCause, ...] = ()
    in_info: bool = False
    by_victims: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of a cause, and the words that every line has that it matches."""

    kind: KnownCause
    pattern: re.Pattern[str]
    words: Words


def _one_of(numbers: Iterable[int]) -> str:
    return f"(?:{'|'.join(map(str, numbers))})"


@cache
def known_causes() -> tuple[KnownCause, ...]:
    """All known causes, weightiest first; `known.toml` explains its format."""
    data = tomllib.loads(Path(__file__).with_name("known.toml").read_text("utf-8"))
    fragments = data["fragments"] | {
        "xid_harmless": _one_of(n for n, one in _XIDS if one.blame == "corrected" or n in _CALM),
        "xid_of_program": _one_of(
            n for n, one in _XIDS if one.blame == "nobody" and n not in _CALM
        ),
    }

    def whole(pattern: str) -> str:
        """The pattern with its fragments, which may have fragments themselves."""
        return re.sub(r"%(\w+)%", lambda found: whole(fragments[found[1]]), pattern)

    def compiled(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(whole(one)) for one in patterns)

    def known(order: int, name: str, entry: Mapping[str, Any]) -> KnownCause:
        return KnownCause(
            order=order,
            name=name,
            root=entry.get("root", True),
            meaning=entry["meaning"],
            remedy=entry["remedy"],
            patterns=compiled(
                (*FAULTS.get(entry.get("kernel", ""), ()), *entry.get("patterns", ()))
            ),
            otherwise=compiled(entry.get("otherwise", ())),
            cases=tuple(known(order, name, case) for case in entry.get("cases", ())),
            in_info=entry.get("in_info", False),
            by_victims=entry.get("by_victims", False),
        )

    return tuple(known(order, *item) for order, item in enumerate(data["causes"].items()))


@cache
def rules() -> tuple[Rule, ...]:
    """All patterns in the order in which they are tried."""
    kinds = [one for kind in known_causes() for one in (*kind.cases, kind)]
    specific = [(kind, pattern) for kind in kinds for pattern in kind.patterns]
    general = [(kind, pattern) for kind in kinds for pattern in kind.otherwise]
    return tuple(Rule(kind, pattern, words_of(pattern)) for kind, pattern in (*specific, *general))


_BEGINNING = 3
"""Letters of a word by which it is looked up."""


@cache
def _rules_by_word() -> dict[str, tuple[tuple[str, int], ...]]:
    """Each word of a rule's rarest set, which has the longest words, with the rule's number, by the
    word's first letters; by "" if it has fewer."""
    found: dict[str, list[tuple[str, int]]] = {}
    for at, rule in enumerate(rules()):
        for word in max(rule.words, key=lambda words: min(map(len, words)), default=("",)):
            beginning = word[:_BEGINNING] if len(word) >= _BEGINNING else ""
            found.setdefault(beginning, []).append((word, at))
    return {beginning: tuple(words) for beginning, words in found.items()}


def candidates(line: str) -> tuple[Rule, ...]:
    """Rules whose words the line has, in their order; most lines have none."""
    small = line.lower()
    parts = {"", *(small[at : at + _BEGINNING] for at in range(len(small) - _BEGINNING + 1))}
    by_word = _rules_by_word()
    numbers = {at for part in parts & by_word.keys() for word, at in by_word[part] if word in small}
    some = (rules()[at] for at in sorted(numbers))
    return tuple(
        rule for rule in some if all(any(word in small for word in words) for words in rule.words)
    )


@cache
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
    def by_victim(self) -> bool:
        """Whether its rank and host only saw what another one did."""
        return self.kind.by_victims

    @property
    def order(self) -> int:
        """Its position in the table; smaller is weightier."""
        # Why some node was lost, a fault of a named machine may tell.
        if self.name == "node lost" and not self.known:
            return known_cause("Xid").order
        # A monitor kills a rank that does not answer.
        if self.name == "killed" and not self.known:
            return known_cause("rank lost").order
        # That some rank did not arrive is no more than a failed rendezvous.
        unnamed = self.name == "rank did not join" and (not self.ranks or self.by_victim)
        return known_cause("rendezvous failed").order if unnamed else self.kind.order

    @property
    def known(self) -> int:
        """Number of known parts of the culprit; of what a victim reports, the peer counts most."""
        parts = (self.ranks, self.host, self.device, self.peer)
        return sum(map(bool, parts)) + 3 * (self.by_victim and self.peer is not None)

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
