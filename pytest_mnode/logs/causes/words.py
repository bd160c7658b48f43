"""Words that a line must contain for a regular expression to match it. Pure.

Nearly all lines of a log match no known cause. A line without the words of an expression is not
searched for it, which costs a fraction of the search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_NO_WIDTH = (_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT)


Words = tuple[frozenset[str], ...]
"""Of each set, a line that matches contains at least one text. In lower case, without digits."""


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
            ways = [max(_words(way), key=_shortest) for way in arg[1]]
            found.append(frozenset().union(*ways) if all(ways) else frozenset())
        elif op in _REPEATS and arg[0] > 0:
            found += _words(arg[2])
    return [*found, frozenset({run} - {""})]


def _shortest(words: frozenset[str]) -> int:
    return min(map(len, words), default=0)


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
