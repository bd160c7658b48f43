"""Hostfiles as OpenMPI has them: `node[01-16] slots=8`, a line each, with comments. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hostlist import expand

ACCEPTED = "accepted: host, user@host or node[01-16], then slots=N"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_BLANKS = re.compile(r"\s*=\s*")


@dataclass(frozen=True, slots=True)
class Host:
    """A line of a hostfile for one host.

    name: as ssh is to be told. slots: how many ranks it takes; None where nothing is said.
    line: of the file, from 1.
    """

    name: str
    slots: int | None
    line: int
    user: str = ""

    @property
    def target(self) -> str:
        """What ssh connects to."""
        return f"{self.user}@{self.name}" if self.user else self.name


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a file, in its order. Raises UsageError, one line, with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; {ACCEPTED}") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UsageError(f"{path}: {reason}; accepted: a file with a host a line") from None
    return parse_hosts(text, str(path))


def parse_hosts(text: str, where: str) -> tuple[Host, ...]:
    """The hosts of a text. A host that stands there again has the slots of all its lines, of which
    one without any counts as one: so do PBS's lists read right, which name a host once a slot.

    Raises UsageError naming `where`, the line, what was met and what is accepted.
    """
    found: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = _BLANKS.sub("=", line.partition("#")[0]).split()
        if not words:
            continue
        place = f"{where}:{number}"
        slots = _slots(words[1:], place)
        user, at, hosts = words[0].rpartition("@")
        if at and not _USER.fullmatch(user):
            raise UsageError(f"{place}: {words[0]}: {user!r} is no user's name; {ACCEPTED}")
        for name in _expanded(hosts, place):
            before = found.get(name)
            if before is None:
                found[name] = Host(name, slots, number, user)
            else:
                total = (before.slots or 1) + (slots or 1)
                found[name] = Host(name, total, before.line, before.user or user)
    if not found:
        raise UsageError(f"{where}: names no host; {ACCEPTED}")
    return tuple(found.values())


def slots_of(hosts: Iterable[Host]) -> int | None:
    """How many ranks every one of the hosts takes; None where some do not say."""
    said = [host.slots for host in hosts]
    known = [slots for slots in said if slots is not None]
    return min(known) if known and len(known) == len(said) else None


def _expanded(hosts: str, place: str) -> tuple[str, ...]:
    if _is_address(hosts[1:-1]) and hosts == f"[{hosts[1:-1]}]":
        return (hosts[1:-1],)
    try:
        names = expand(hosts)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    for name in names:
        host, colon, count = name.rpartition(":")
        odd = bool(colon) and not _is_address(name)
        if odd and _HOST.fullmatch(host) and _NUMBER.fullmatch(count):  # MPICH's, or a port
            raise UsageError(
                f"{place}: {name}: ':{count}' is not read here; write {host} slots={count}"
            )
        if odd or not _HOST.fullmatch(name):
            raise UsageError(f"{place}: {name!r} is no host's name; {ACCEPTED}")
    return names


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _slots(words: list[str], place: str) -> int | None:
    slots: int | None = None
    for word in words:
        key, _, value = word.partition("=")
        if key.replace("-", "_") not in ("slots", "max_slots"):
            raise UsageError(f"{place}: {word}: {ACCEPTED}")
        if not (_NUMBER.fullmatch(value) and 1 <= int(value) <= 65536):
            shown = word if len(word) <= 60 else f"{word[:57]}…"
            raise UsageError(f"{place}: {shown}: accepted: a whole number of 1 or more")
        if key == "slots":
            slots = int(value)
    return slots
