"""All faults, with name, function and accepted form; and the parser of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pytest_mnode.errors import UsageError
from pytest_mnode.spec.quantity import SIZE, duration_s

Undo = Callable[[], None]
Function = TypeVar("Function", bound=Callable[..., Undo])


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value of a fault, as a user writes it after the node.

    name: as shown in forms, with its unit, such as "MBIT_S".
    accepted: the accepted values, in words.
    read: converts text to a value; raises ValueError.
    default: the fault's default, in words; None if the value is required. Without a value, the
        function gets None, and uses its default.
    """

    name: str
    accepted: str
    read: Callable[[str], object]
    default: str | None


@dataclass(frozen=True, slots=True)
class Program:
    """A program or library of another package, without which a fault cannot be injected.

    package: its Debian package.
    find: returns its path, or None if it is not installed.
    """

    name: str
    package: str
    find: Callable[[], str | None]

    def path(self) -> str:
        """Raises UsageError if it is not installed."""
        found = self.find()
        if found is None:
            raise UsageError(f"this fault needs {self.name}: install it (Debian: {self.package})")
        return found


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    function: takes the rack, the nodes and a value per parameter (None if not given); returns
        the undo.
    nodes: number of nodes that it takes, joined by "+".
    program: what it needs of another package.
    """

    name: str
    function: Callable[..., Undo]
    nodes: int
    parameters: tuple[Parameter, ...]
    program: Program | None

    @property
    def about(self) -> str:
        """One line that describes the effect."""
        return (self.function.__doc__ or "").strip().splitlines()[0]

    @property
    def form(self) -> str:
        """How to write it: "slow_link:NODE[:MBIT_S[:LINK]]"."""
        text = self.name + (":NODE" if self.nodes == 1 else ":NODE+NODE")
        for parameter in self.parameters:
            text += f":{parameter.name}" if parameter.default is None else f"[:{parameter.name}"
        return text + "]" * text.count("[")

    @property
    def default(self) -> str:
        """The defaults of all parameters, in words."""
        defaults = [f"{p.name} {p.default}" for p in self.parameters if p.default is not None]
        return ", ".join(defaults)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a fault is there, in seconds after its injection was asked for.

    lasts_s: None for until it is undone. every_s: from one begin to the next; None for once.
    """

    after_s: float
    lasts_s: float | None = None
    every_s: float | None = None


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault to inject, with its nodes and values. `text` is the user's text.

    when: None for at once, and until it is undone.
    """

    fault: Fault
    nodes: tuple[str, ...]
    values: tuple[object, ...]
    text: str
    when: Schedule | None = None


FAULTS: dict[str, Fault] = {}
"""Every fault by name."""


def fault(
    *parameters: Parameter, nodes: int = 1, program: Program | None = None
) -> Callable[[Function], Function]:
    """Decorator that adds a function to FAULTS under its own name."""

    def enter(function: Function) -> Function:
        name = function.__name__
        FAULTS[name] = Fault(name, function, nodes, parameters, program)
        return function

    return enter


SCHEDULED = "@AFTER[+LASTS[/EVERY]]"
_SCHEDULE = re.compile(r"@([0-9.]+ *[a-z]+)(?:\+([0-9.]+ *[a-z]+)(?:/([0-9.]+ *[a-z]+))?)?$")


def parse(text: str) -> tuple[Injection, ...]:
    """Read "NAME:NODE[:VALUE…][@AFTER[+LASTS[/EVERY]]][,…]"; raises UsageError, one line that says
    what is accepted."""
    return tuple(_parse_one(part.strip()) for part in text.split(","))


def _parse_one(whole: str) -> Injection:
    text, when = _scheduled(whole)
    name = text.partition(":")[0]
    found = FAULTS.get(name)
    if found is None:
        raise UsageError(
            f"fault {text!r}: no fault {name!r}; accepted: {', '.join(sorted(FAULTS))}"
        )
    # The last value may contain colons.
    words = text.split(":", 1 + len(found.parameters) if found.parameters else -1)
    if len(words) > 2 + len(found.parameters):
        raise UsageError(f"fault {text!r}: too many values; accepted: {found.form}")
    nodes = tuple(words[1].split("+")) if len(words) > 1 else ()
    if len(nodes) != found.nodes or not all(nodes) or len(set(nodes)) < len(nodes):
        what = "one node" if found.nodes == 1 else f"{found.nodes} different nodes joined by +"
        raise UsageError(f"fault {text!r}: needs {what}; accepted: {found.form}")
    given = [*words[2:], *[""] * (2 + len(found.parameters) - len(words))]
    values = tuple(
        _value(text, found, parameter, word)
        for parameter, word in zip(found.parameters, given, strict=True)
    )
    return Injection(found, nodes, values, whole, when)


def _scheduled(text: str) -> tuple[str, Schedule | None]:
    """The text without its schedule, such as "@15min" or "@3s+200ms/10s", and this."""
    found = _SCHEDULE.search(text)
    if found is None:
        return text, None
    try:
        after, lasts, every = (None if g is None else duration_s(g) for g in found.groups())
    except ValueError as error:
        raise UsageError(f"fault {text!r}: {error}") from None
    assert after is not None
    if every is not None and every <= (lasts or 0):
        raise UsageError(
            f"fault {text!r}: comes every {every:g} s and lasts {lasts:g} s; accepted: {SCHEDULED} "
            "with EVERY longer than LASTS"
        )
    return text[: found.start()], Schedule(after, lasts, every)


def _value(text: str, found: Fault, parameter: Parameter, word: str) -> object:
    if not word and parameter.default is not None:
        return None
    try:
        return parameter.read(word)
    except ValueError:
        raise UsageError(
            f"fault {text!r}: {parameter.name}={word!r}: accepted: {parameter.accepted}"
            f" ({found.form})"
        ) from None


def number(name: str, default: str | None, *, above: float = 0.0, up_to: float = 1e9) -> Parameter:
    """A number greater than `above`, and at most `up_to`."""

    def read(word: str) -> float:
        value = float(word)
        if not above < value <= up_to:
            raise ValueError(word)
        return value

    limit = "" if up_to >= 1e9 else f", at most {up_to:g}"
    return Parameter(name, f"a number above {above:g}{limit}", read, default)


def whole(name: str, default: str | None, *, least: int = 1, most: int = 1 << 62) -> Parameter:
    """A whole number within bounds."""

    def read(word: str) -> int:
        if not word.isascii() or not word.isdigit() or not least <= int(word) <= most:
            raise ValueError(word)
        return int(word)

    limit = "" if most == 1 << 62 else f", at most {most}"
    return Parameter(name, f"a whole number, at least {least}{limit}", read, default)


def word(
    name: str, default: str | None, accepted: str, fits: Callable[[str], bool] = bool
) -> Parameter:
    """A text for which `fits` is true."""

    def read(text: str) -> str:
        if not fits(text):
            raise ValueError(text)
        return text

    return Parameter(name, accepted, read, default)


def path(name: str, default: str | None = None) -> Parameter:
    """An absolute path."""
    return word(name, default, "an absolute path", lambda text: text.startswith("/"))


def size(name: str, default: str | None) -> Parameter:
    """Bytes, written with their unit."""
    return Parameter(name, SIZE.accepted, lambda text: int(SIZE.parse(text)), default)


def listing() -> list[str]:
    """One line per fault: form, effect and defaults."""
    return [
        f"{f.form}: {f.about}" + (f" (default: {f.default})" if f.default else "")
        for _, f in sorted(FAULTS.items())
    ]
