"""Reads the lines that ranks of a job print about themselves. Pure; no output makes it raise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_mnode.culprit import Culprit

_KEYS: Mapping[str, type] = {
    **{"contract": dict, "names": list, "arguments": list, "interfaces": list},
    "settings": dict,
}
"""Keys that a line must have, with their types; a judge needs to know which are missing."""
_NEVER_EMPTY = ("names", "interfaces")
"""Every process has a variable, and every node has lo."""
_DIGITS = 18
"""Most digits of a number; Python refuses to convert very long ones."""


@dataclass(frozen=True, slots=True)
class Met:
    """Results of a rank's collectives: the sum of ones, the sum of RANK + 1, and the ranks."""

    size: int
    total: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's line. Variables are text as found; None is unknown.

    node: its name as the rank has it. root: "device:inode" of its root file system, which differs
    from the node's in an image. names: of all its variables. master_is_here: whether MASTER_ADDR is
    an address of its node; None if that does not resolve there. met: None if the rank met nobody,
    with the reason in `error`. missing: facts that the rank did not report.
    devices: ids of its accelerators, unique on a node; () if the rank reported none. settings:
    variables, limits of the process and of its cgroups that change how it runs, by name.
    """

    node: str
    uid: int | None
    root: str
    arguments: tuple[str, ...]
    contract: Mapping[str, str]
    names: frozenset[str]
    interfaces: frozenset[str]
    accelerators: int | None
    master_is_here: bool | None
    met: Met | None
    error: str
    missing: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """A variable as a whole number; None if it is absent or is no number."""
        text = self.contract.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None

    @property
    def rank(self) -> int | None:
        return self.number("RANK")

    def fault(self, what: str) -> Culprit:
        """A line about this rank, such as "node1 rank 3: WORLD_SIZE=6, must be 8"."""
        rank = f" rank {self.rank}" if self.rank is not None else ""
        return Culprit(f"{self.node}{rank}: {what}", self.node)


@dataclass(frozen=True, slots=True)
class Login:
    """The user that the processes of a node ran as, and why that was not an unprivileged one."""

    node: str
    uid: int
    user: str
    why: str


def by_node(reports: Iterable[RankReport]) -> dict[str, list[RankReport]]:
    found: dict[str, list[RankReport]] = {}
    for report in reports:
        found.setdefault(report.node, []).append(report)
    return found


def read_output(text: str) -> tuple[list[RankReport], list[Login]]:
    """The lines of ranks and logins in the output of a node; other lines are ignored."""
    reports, logins = [], []
    for line in text.splitlines():
        data = _object_in(line)
        if "mnode_rank" in data and isinstance(data.get("node"), str):
            reports.append(_report(data))
        elif isinstance(login := data.get("login"), dict):
            node, uid, user, why = (login.get(key) for key in ("node", "uid", "user", "why"))
            if isinstance(node, str) and (number := _whole(uid)) is not None:
                logins.append(Login(node, number, _text(user), _text(why)))
    return reports, logins


def read_nodes(
    output: Mapping[str, str],
) -> tuple[tuple[RankReport, ...], list[Login], dict[str, str]]:
    """Reports, logins, and host names of nodes, from the output of each node.

    Reports are in the order of ranks, with the given names of nodes in place of host names.
    """
    reports: list[RankReport] = []
    logins: list[Login] = []
    hosts = {}
    for node, text in output.items():
        found, logged_in = read_output(text)
        logins += logged_in
        names = [one.node for one in logged_in] + [one.node for one in found]
        hosts[node] = names[0] if names else node
        found = [replace(r, node=node) if r.node == hosts[node] else r for r in found]
        reports += sorted(found, key=lambda r: -1 if r.rank is None else r.rank)
    return tuple(reports), logins, hosts


def _object_in(line: str) -> dict[str, Any]:
    """The JSON object in a line, which launchers may prefix; {} if there is none."""
    start = line.find("{")
    if start < 0:
        return {}
    try:
        data = json.loads(line[start:])
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _report(data: Mapping[str, Any]) -> RankReport:
    settings = data.get("settings")
    contract = data.get("contract")
    met = data.get("met")
    here = data.get("master_is_here")
    return RankReport(
        node=data["node"],
        uid=_whole(data.get("uid")),
        root=_text(data.get("root")),
        arguments=tuple(_texts(data.get("arguments"))),
        contract={name: _text(value) for name, value in contract.items()}
        if isinstance(contract, dict)
        else {},
        names=frozenset(_texts(data.get("names"))),
        interfaces=frozenset(_texts(data.get("interfaces"))),
        accelerators=_whole(data.get("accelerators")),
        master_is_here=here if isinstance(here, bool) else None,
        met=_met(met) if isinstance(met, dict) else None,
        error=_text(data.get("error")),
        missing=frozenset(_missing(data)),
        devices=tuple(_texts(data.get("devices"))),
        settings={name: _text(value) for name, value in settings.items()}
        if isinstance(settings, dict)
        else {},
    )


def _missing(data: Mapping[str, Any]) -> Iterator[str]:
    for key, kind in _KEYS.items():
        value = data.get(key)
        if not isinstance(value, kind) or (key in _NEVER_EMPTY and not value):
            yield key
    if "master_is_here" not in data:
        yield "master_is_here"


def _met(data: Mapping[str, Any]) -> Met | None:
    size, total = _whole(data.get("size")), _whole(data.get("sum"))
    ranks = [_whole(rank) for rank in _listed(data.get("ranks"))]
    if size is None or total is None or None in ranks:
        return None
    return Met(size, total, tuple(rank for rank in ranks if rank is not None))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return list(map(_text, _listed(value)))


def _text(value: Any) -> str:
    """A string or number as text; "" for any other value."""
    return str(value) if isinstance(value, str | int | float) else ""


def _whole(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**_DIGITS
    return value if whole else None
