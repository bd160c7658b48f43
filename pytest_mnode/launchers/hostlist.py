"""Lists of hosts as Slurm writes them: `node[01-16,20],login`, `rack[0-1]n[0-3]`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from pytest_mnode.errors import UsageError

MOST_HOSTS = 65_536
_PART = re.compile(r"\[([^][]*)\]|([^][,\s]+)")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> tuple[str, ...]:
    """Host names in the order in which they are written; none for an empty text.

    A range keeps the width of its first number: `n[08-10]` is n08, n09, n10.
    Raises UsageError, one line, that shows what cannot be read.
    """
    found: list[str] = []
    for item in _split(text):
        found += _one(item, text)
        if len(found) > MOST_HOSTS:
            raise UsageError(f"hosts {_shown(text)}: more than {MOST_HOSTS}")
    return tuple(found)


def compress(names: Iterable[str]) -> str:
    """Host names as ranges of their last number, `node[0-3,7],login`: the inverse of `expand`.

    Names with other numbers before it are grouped by these; the order is that of first met.
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        match = _LAST_NUMBER.fullmatch(name)
        if match is None:
            groups[name, "", -1] = []
            continue
        head, digits, tail = match.groups()
        width = len(digits)
        # node10 goes on from node08 where that came before, else from node8.
        if (width == 1 or digits[0] != "0") and (head, tail, width) not in groups:
            width = 0
        groups.setdefault((head, tail, width), []).append(int(digits))
    return ",".join(_compressed(*key, numbers) for key, numbers in groups.items())


def _compressed(head: str, tail: str, width: int, numbers: list[int]) -> str:
    runs = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        ends = [f"{number:0{width}d}" for _, number in run]
        runs.append(ends[0] if len(ends) == 1 else f"{ends[0]}-{ends[-1]}")
    inside = ",".join(runs)
    return f"{head}{f'[{inside}]' if len(numbers) > 1 else inside}{tail}"


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    items, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if not 0 <= depth <= 1:
            break
        if letter == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
    if depth != 0:
        raise UsageError(f"hosts {_shown(text)}: brackets do not match")
    items.append(text[start:])
    return [item.strip() for item in items if item.strip()]


def _one(item: str, text: str) -> list[str]:
    parts: list[list[str]] = []
    total, at = 1, 0
    for match in _PART.finditer(item):
        if match.start() != at:
            break
        at = match.end()
        plain = match[2]
        parts.append([plain] if plain is not None else _numbers(match[1], text))
        total *= len(parts[-1])
        if total > MOST_HOSTS:
            raise UsageError(f"hosts {_shown(text)}: more than {MOST_HOSTS}")
    if at != len(item):
        raise UsageError(f"hosts {_shown(text)}: {item[at:]!r} is not part of a host name")
    return ["".join(names) for names in itertools.product(*parts)]


def _numbers(inside: str, text: str) -> list[str]:
    found: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or not piece.isascii():
            raise UsageError(
                f"hosts {_shown(text)}: [{_cut(inside)}]: accepted: numbers and ranges, [01-16,20]"
            )
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise UsageError(f"hosts {_shown(text)}: {piece.strip()} runs backwards")
        if count > MOST_HOSTS:
            raise UsageError(f"hosts {_shown(text)}: more than {MOST_HOSTS}")
        found += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    return found


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
