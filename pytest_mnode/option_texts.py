"""The Option class and parsers of option texts: each returns a value or raises a usage error."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Given:
    """The text of an option and its origin; a relative path starts from `directory`."""

    where: str
    text: str
    directory: Path

    @property
    def by_option(self) -> bool:
        return self.where.startswith("--")

    def wrong(self, accepted: str, text: str | None = None) -> pytest.UsageError:
        value = self.text if text is None else text
        return pytest.UsageError(f"{self.where}={value}: accepted: {accepted}")


@dataclass(frozen=True, slots=True)
class Option:
    """An option. initial: its default text. see: the page of docs/ with details."""

    name: str
    metavar: str
    help: str
    read: Callable[[Given], Any]
    initial: str = ""
    see: str = ""

    @property
    def flag(self) -> str:
        return f"--mnode-{self.name}"

    @property
    def ini_key(self) -> str:
        return "mnode_" + self.name.replace("-", "_")

    @property
    def full_help(self) -> str:
        return f"{self.help} (default: {self.initial})" if self.initial else self.help


@dataclass(frozen=True, slots=True)
class Free:
    """All nodes that are free, but at most `at_most` of them."""

    at_most: int


def whole(least: int) -> Callable[[Given], int | None]:
    def read(given: Given) -> int | None:
        text = given.text
        if not text and not given.by_option:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise given.wrong(f"a whole number of {least} or more")
        return int(text)

    return read


def nodes(given: Given) -> int | Free | None:
    word, colon, most = given.text.partition(":")
    if word != "free":
        try:
            return whole(1)(given)
        except pytest.UsageError as error:
            raise pytest.UsageError(f"{error}, or free") from None
    if colon and not (most.isascii() and most.isdigit() and int(most)):
        raise given.wrong("free, or free:N with a whole number of 1 or more")
    return Free(int(most) if colon else sys.maxsize)


def budget(given: Given) -> float | None:
    if not given.text and not given.by_option:
        return None
    from pytest_mnode.spec.quantity import duration_s

    try:
        return duration_s(given.text)
    except ValueError:
        raise given.wrong("a time, such as 2h, 90min or 30s") from None


def choice(accepted: tuple[str, ...]) -> Callable[[Given], str]:
    def read(given: Given) -> str:
        if given.text not in accepted:
            raise given.wrong(", ".join(accepted))
        return given.text

    return read


def choice_or_installed(accepted: tuple[str, ...], group: str) -> Callable[[Given], str]:
    """One of these, or the name of an entry point of the group."""

    def read(given: Given) -> str:
        if given.text in accepted:
            return given.text
        from importlib.metadata import entry_points

        names = (*accepted, *sorted(entry.name for entry in entry_points(group=group)))
        return choice(names)(given)

    return read


def seconds(given: Given) -> float:
    try:
        value = float(given.text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise given.wrong("seconds, more than 0")
    return value


def seconds_if_given(given: Given) -> float | None:
    return seconds(given) if given.text or given.by_option else None


text = attrgetter("text")


def patterns(given: Given) -> tuple[str, ...]:
    return tuple(p for p in re.split(r"\s*[,\n]\s*", given.text) if p)


EXPERIMENTS = (
    *("algorithm", "mtu", "overlap", "compression", "accumulation", "network", "topology"),
    *("placement", "loader", "fsdp", "channels"),
)
"""Keys of criteria.tuning that are experiments, in the order of a run."""


def experiments(given: Given) -> tuple[str, ...]:
    names = patterns(given)
    if unknown := [one for one in names if one not in {*EXPERIMENTS, "all"}]:
        raise given.wrong(f"all, {', '.join(EXPERIMENTS)}", unknown[0])
    return EXPERIMENTS if "all" in names else names


def words(given: Given) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(given.text))
    except ValueError as error:
        raise given.wrong(f"arguments as for a shell ({error})") from None


def variables(given: Given) -> dict[str, str]:
    """Variables by name. Raises UsageError for a name without a value that is not set here."""
    import os
    from fnmatch import fnmatchcase

    found: dict[str, str] = {}
    for word in words(given):
        name, equals, value = word.partition("=")
        named = {name: value} if equals else {}
        if not equals:
            named = {n: value for n, value in os.environ.items() if fnmatchcase(n, name)}
        plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        if (equals and not plain) or (plain and not named):
            raise given.wrong(
                "NAME=VALUE, or NAME or PATTERN* of variables that are set here", word
            )
        found |= named
    return found


def path(given: Given) -> Path | None:
    if not given.text:
        if given.by_option:
            raise given.wrong("the path of a file")
        return None
    try:
        return given.directory / Path(given.text).expanduser()
    except RuntimeError as error:  # "~name" of an unknown user
        raise given.wrong(f"a path ({error})") from None


def spec(given: Given) -> Path | None:
    """The path of a spec's file, or profile:NAME as it is."""
    from pytest_mnode.spec.profiles import PREFIX

    return Path(given.text) if given.text.startswith(PREFIX) else path(given)


def new_file(given: Given) -> Path | None:
    """The path of a file in an existing directory; the path is not a directory itself."""
    found = path(given)
    if found is not None and (found.is_dir() or not found.parent.is_dir()):
        raise given.wrong("a file in a directory that exists", str(found))
    return found


def directory(given: Given) -> Path | None:
    found = path(given)
    accepted = "a directory, or a new name"
    try:
        if found is not None and found.exists() and not found.is_dir():
            raise given.wrong(accepted, str(found))
    except OSError as error:  # the name is too long, or a parent directory cannot be read
        raise given.wrong(f"{accepted} ({error.strerror})") from None
    return found
