"""Readers of the texts of options: each gives a value, or says what is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Given:
    """The text of an option and where it was given; a relative path starts from `directory`."""

    where: str
    text: str
    directory: Path

    @property
    def by_option(self) -> bool:
        return self.where.startswith("--")

    def wrong(self, accepted: str, text: str | None = None) -> pytest.UsageError:
        value = self.text if text is None else text
        return pytest.UsageError(f"{self.where}={value}: accepted: {accepted}")


def whole(least: int) -> Callable[[Given], int | None]:
    def read(given: Given) -> int | None:
        text = given.text
        if not text and not given.by_option:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise given.wrong(f"a whole number of {least} or more")
        return int(text)

    return read


def choice(accepted: tuple[str, ...]) -> Callable[[Given], str]:
    def read(given: Given) -> str:
        if given.text not in accepted:
            raise given.wrong(", ".join(accepted))
        return given.text

    return read


def seconds(given: Given) -> float:
    try:
        value = float(given.text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise given.wrong("seconds, more than 0")
    return value


text = attrgetter("text")


def patterns(given: Given) -> tuple[str, ...]:
    return tuple(p for p in re.split(r"\s*[,\n]\s*", given.text) if p)


def words(given: Given) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(given.text))
    except ValueError as error:
        raise given.wrong(f"arguments as for a shell ({error})") from None


def path(given: Given) -> Path | None:
    if not given.text:
        if given.by_option:
            raise given.wrong("the path of a file")
        return None
    try:
        return given.directory / Path(given.text).expanduser()
    except RuntimeError as error:  # of "~name", where nobody has the name
        raise given.wrong(f"a path ({error})") from None


def new_file(given: Given) -> Path | None:
    """A file that can be written: its directory is there, and it is no directory itself."""
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
    except OSError as error:  # the name is too long, or what is above it may not be read
        raise given.wrong(f"{accepted} ({error.strerror})") from None
    return found
