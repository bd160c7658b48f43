"""Host lists, such as Slurm's `node[01-16,20],login`, and hostfiles in Open MPI's format.

All functions but `read_hostfile` are pure. A line of a hostfile names a host or a list of hosts,
such as `node[01-16] slots=8`, and the port of its sshd if that is another one than ssh's own, as
`host:2222` or `host port=2222`; `#` starts a comment.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import UsageError

MOST_HOSTS = 65_536
_PART = re.compile(r"\[([^][]*)\]|([^][,\s]+)")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
ACCEPTED = "accepted: host, user@host or node[01-16], then slots=N, port=N, python=PATH"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_BLANKS = re.compile(r"\s*=\s*")
_KEYS = {
    **dict.fromkeys(("slots",), "slots"),
    **dict.fromkeys(("max_slots", "slots_max"), "most"),
    **dict.fromkeys(("user", "username", "user_name"), "user"),
    "port": "port",
    "python": "python",
}
"""Keys of a line, as Open MPI names them, and their meaning."""
_MOST_SLOTS = 128
"""After a colon, up to this number may be MPICH's slots, and a larger number is a port."""
_SSH = 22
_IN_BRACKETS = re.compile(r"\[([^][]*)\](?::([0-9]+))?")


def expand(text: str) -> tuple[str, ...]:
    """Host names of a list, in the order written; () for an empty text.

    A range keeps the width of its first number: `n[08-10]` is n08, n09, n10.
    Raises UsageError, in one line, that quotes the invalid part.
    """
    found: list[str] = []
    for item in _split(text):
        found += _one(item, text)
        if len(found) > MOST_HOSTS:
            raise UsageError(f"hosts {_shown(text)}: more than {MOST_HOSTS}")
    return tuple(found)


def named_nodes(culprit: Culprit, names: Collection[str]) -> Culprit:
    """The culprit; one whose nodes are not known, and whose words are the name of a node or a list
    of such, gets these. names: of all nodes."""
    if culprit.nodes or any(culprit.either):
        return culprit
    try:
        found = expand(culprit)
    except UsageError:
        return culprit
    return Culprit(culprit, found, parts=culprit.parts) if set(found) <= set(names) else culprit


def compress(names: Iterable[str], *, tails: bool = True) -> str:
    """Host list of these names, such as `node[0-3,7],login`: the inverse of `expand`.

    Names that differ only in their last number share a range; ranges are in the order of their
    first names. tails: also make ranges such as gpu[1-2].hpc, which Slurm cannot read.
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        match = _LAST_NUMBER.fullmatch(name)
        if match is None or (match[3] and not tails):
            groups[name, "", -1] = []
            continue
        head, digits, tail = match.groups()
        width = len(digits)
        # node10 joins the range of node08 if node08 came before, else the range of node8.
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
    """Split at the commas outside brackets."""
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


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a hostfile.

    name: host name for ssh. slots: number of ranks; None if not given. line: first line, from 1.
    port: of its sshd; None to let ssh choose. python: path of its Python; "" for that of all.
    """

    name: str
    slots: int | None
    line: int
    user: str = ""
    port: int | None = None
    python: str = ""

    @property
    def target(self) -> str:
        """The host as in the hostfile: `host`, `user@host` or `user@host:port`."""
        if self.port is None:
            return self._destination
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{self.user}@{name}:{self.port}" if self.user else f"{name}:{self.port}"

    @property
    def ssh_arguments(self) -> tuple[str, ...]:
        """The last arguments of ssh before a command: the port, and the destination."""
        port = () if self.port is None else ("-p", str(self.port))
        return (*port, "--", self._destination)

    @property
    def _destination(self) -> str:
        return f"{self.user}@{self.name}" if self.user else self.name


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Hosts of a hostfile, in file order. Raises UsageError, one line, that names file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of other systems write a mark first
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; {ACCEPTED}") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UsageError(f"{path}: {reason}; accepted: a file with one host per line") from None
    return parse_hosts(text, str(path))


def _words(line: str) -> list[str]:
    """Raises ValueError for a quote that is not closed."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.escape = True, ""
    return list(lexer)


def parse_hosts(text: str, where: str) -> tuple[Host, ...]:
    """Hosts of a hostfile's text.

    The slots of a host on several lines are added up, and a line without slots counts as one slot,
    because PBS names a host once per slot. Raises UsageError that names `where`, the line, the text
    and the accepted form.
    """
    found: dict[tuple[str, int | None], Host] = {}
    for number, read in enumerate(text.splitlines(), 1):
        place = f"{where}:{number}"
        try:
            words = _words(_BLANKS.sub("=", read))
        except ValueError as error:  # "No closing quotation"
            raise UsageError(f"{place}: {str(error).lower()}; {ACCEPTED}") from None
        if not words:
            continue
        given = _values(words[1:], number, place)
        for host in _named(words[0], given, place):
            before = found.get((host.name, host.port))
            if before is None:
                found[host.name, host.port] = host
            else:
                found[host.name, host.port] = replace(
                    before,
                    slots=(before.slots or 1) + (host.slots or 1),
                    user=before.user or host.user,
                    python=before.python or host.python,
                )
    if not found:
        raise UsageError(f"{where}: names no host; {ACCEPTED}")
    return tuple(found.values())


def first_hosts(
    hosts: Sequence[Host], nodes: int, on: Sequence[str], where: str
) -> tuple[Host, ...]:
    """The first `nodes` hosts; on: names of the hosts to choose from, () for all.

    Raises UsageError if `where` names too few.
    """
    if len(hosts) < nodes:
        names = compress(host.name for host in hosts)
        raise UsageError(
            f"{nodes} nodes are needed, but {where} names {len(hosts)}: {names}; add hosts to it, "
            f"or give --mnode-nodes={len(hosts)}"
        )
    return tuple(host for host in hosts if not on or host.name in on)[:nodes]


def slots_of(hosts: Iterable[Host]) -> int | None:
    """Number of slots that every host has at least; None if a host has none given."""
    slots = [host.slots for host in hosts]
    known = [number for number in slots if number is not None]
    return min(known) if known and len(known) == len(slots) else None


def _named(word: str, given: Host, place: str) -> list[Host]:
    """The hosts of a line. word: such as `user@a:2222,b`. given: see `_values`."""
    found: list[Host] = []
    user = given.user
    try:
        items = _split(word.removeprefix("ssh://"))
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    for item in items:
        own, at, hosts = item.rpartition("@")
        if at and not _USER.fullmatch(own):
            raise UsageError(f"{place}: {word}: {own!r} is not a user name; {ACCEPTED}")
        user = own or user
        for name, port in _expanded(hosts, given, place):
            if port and given.port and port != given.port:
                raise UsageError(f"{place}: {word}: two ports, {port} and port={given.port}")
            found.append(replace(given, name=name, user=user, port=port or given.port))
    return found


def _expanded(hosts: str, given: Host, place: str) -> list[tuple[str, int | None]]:
    """Each host and the port after its colon."""
    bracketed = _IN_BRACKETS.fullmatch(hosts)
    if bracketed and _is_address(bracketed[1]):
        return [(bracketed[1], _port(bracketed[2], place) if bracketed[2] else None)]
    try:
        names = expand(hosts)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    return [_with_port(name, given, place) for name in names]


def _with_port(name: str, given: Host, place: str) -> tuple[str, int | None]:
    host, colon, number = name.rpartition(":")
    if not colon or _is_address(name):
        host, number = name, ""
    if not _HOST.fullmatch(host) or (":" in host and not _is_address(host)):
        raise UsageError(f"{place}: {name!r} is not a host name; {ACCEPTED}")
    if not number:
        return host, None
    if not _NUMBER.fullmatch(number):
        raise UsageError(f"{place}: {name!r} is not a host name; {ACCEPTED}")
    if int(number) <= _MOST_SLOTS and int(number) != _SSH and given.slots is None:
        raise UsageError(
            f"{place}: {name}: ':{number}' is not read here; write {host} slots={number}, or "
            f"port={number}"
        )
    return host, _port(number, place)


def _port(number: str, place: str) -> int:
    if not (_NUMBER.fullmatch(number) and 1 <= int(number) <= 65535):
        raise UsageError(f"{place}: port {_cut(number)}: accepted: a port, 1 to 65535")
    return int(number)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _values(words: list[str], line: int, place: str) -> Host:
    """What the `key=value` words of a line say of each of its hosts. Raises UsageError."""
    found = Host("", None, line)
    for word in words:
        key, _, value = word.partition("=")
        match _KEYS.get(key.replace("-", "_").lower()):
            case "slots" | "most" as meaning:
                if not (_NUMBER.fullmatch(value) and 1 <= int(value) <= 65536):
                    raise UsageError(
                        f"{place}: {_cut(word)}: accepted: a whole number of 1 or more"
                    )
                found = replace(found, slots=int(value)) if meaning == "slots" else found
            case "port":
                found = replace(found, port=_port(value, place))
            case "user":
                if not _USER.fullmatch(value):
                    raise UsageError(f"{place}: {_cut(word)}: {value!r} is not a user name")
                found = replace(found, user=value)
            case "python":
                if not Path(value).is_absolute():
                    raise UsageError(f"{place}: {_cut(word)}: accepted: the path of a Python")
                found = replace(found, python=value)
            case _:
                raise UsageError(f"{place}: {word}: {ACCEPTED}")
    return found
