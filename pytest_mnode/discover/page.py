"""Conversion of a page's entries to YAML with a comment above each. Pure."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 100
_INDENT = "  "
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./*+-]*")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a page. value: as YAML on one line; "" if only `items` or `children` follow.

    items: texts of a list, one on each line. left_out: written as a comment, for the operator to
    fill in.
    """

    key: str
    value: str = ""
    comment: str = ""
    children: tuple[Entry, ...] = ()
    left_out: bool = False
    gap: bool = False
    items: tuple[str, ...] = ()


def rendered(preface: Sequence[str], entries: Sequence[Entry]) -> str:
    """The text of a page: paragraphs of comment, then its keys."""
    lines: list[str] = []
    for paragraph in preface:
        lines += [*_commented(paragraph, ""), "#"] if paragraph else ["#"]
    if lines and lines[-1] == "#":
        lines.pop()
    for entry in entries:
        lines += ["", *_entry(entry, "")] if not lines or entry.gap else list(_entry(entry, ""))
    return "\n".join(lines) + "\n"


def _entry(entry: Entry, indent: str) -> Iterator[str]:
    if entry.comment:
        yield from _commented(entry.comment, indent)
    head = f"{entry.key}: {entry.value}".rstrip()
    yield f"{indent}# {head}" if entry.left_out else f"{indent}{head}"
    for item in entry.items:
        yield f"{indent}{_INDENT}- {scalar(item)}"
    for child in entry.children:
        yield from _entry(child, indent + _INDENT)


def _commented(text: str, indent: str) -> list[str]:
    """`text` as the lines of one comment paragraph, even if a machine's text has line breaks."""
    prefix = f"{indent}# "
    lines = textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [prefix.rstrip()]


def printable(text: str) -> str:
    """`text` on one line, without characters that end a comment or a terminal's line."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def scalar(text: str) -> str:
    """A text as a YAML scalar: unquoted if YAML cannot read it as another type."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text if "*" not in text else json.dumps(text)
    return json.dumps(printable(text), ensure_ascii=False)


def listed(words: Sequence[str]) -> str:
    """A YAML list on one line."""
    return f"[{', '.join(scalar(word) for word in words)}]"


def mapped(values: Mapping[str, str]) -> str:
    """A YAML mapping on one line; values are YAML already."""
    return f"{{{', '.join(f'{key}: {value}' for key, value in values.items())}}}"
