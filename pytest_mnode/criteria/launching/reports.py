"""What the ranks of a job print about themselves, read. Pure, and never raises on content."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_KEYS: Mapping[str, type] = {"contract": dict, "names": list, "arguments": list, "interfaces": list}
"""What a line has to say and in which form, so that what is judged on it was reported."""
_NEVER_EMPTY = ("names", "interfaces")
"""Every process has a variable, and every node lo."""
_DIGITS = 18
"""No number that is asked for is longer; Python refuses to read very long ones."""


@dataclass(frozen=True, slots=True)
class Met:
    """What a rank got from all of them: the sum of ones, the sum of RANK + 1, and who came."""

    size: int
    total: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's line. Variables are text as found; unknown is None.

    node: as the rank itself names it. root: its file system's root, as "device:inode"; another one
    in an image than on the node. names: of all its variables. master_is_here: MASTER_ADDR is
    an address of its node; None: it means nothing there. met: None where it met nobody, and then
    `error` says why, unless its program does not meet ("none" is its `meeting`). unsaid: of
    `contract`, `names`, `arguments`, `interfaces` and `master_is_here` what was not reported.
    devices: what tells each accelerator that it sees from all others of the node; none where its
    program did not ask them.
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
    meeting: str
    met: Met | None
    error: str
    seconds: float | None
    unsaid: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()

    def number(self, name: str) -> int | None:
        """A variable as a whole number; None where it is absent, is none or has no end."""
        text = self.contract.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None

    @property
    def rank(self) -> int | None:
        return self.number("RANK")


@dataclass(frozen=True, slots=True)
class Login:
    """As whom the processes of a node ran, and why not as an unprivileged user."""

    node: str
    uid: int
    user: str
    why: str


def read_output(text: str) -> tuple[list[RankReport], list[Login]]:
    """All lines of ranks and logins in what a node printed, among whatever else."""
    reports, logins = [], []
    for line in text.splitlines():
        said = _object_in(line)
        if "mnode_rank" in said and isinstance(said.get("node"), str):
            reports.append(_report(said))
        elif isinstance(login := said.get("login"), dict):
            node, uid, user, why = (login.get(key) for key in ("node", "uid", "user", "why"))
            if isinstance(node, str) and (number := _whole(uid)) is not None:
                logins.append(Login(node, number, _text(user), _text(why)))
    return reports, logins


def _object_in(line: str) -> dict[str, Any]:
    """The JSON object in a line, which launchers may put their own prefix before."""
    start = line.find("{")
    if start < 0:
        return {}
    try:
        said = json.loads(line[start:])
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _report(said: Mapping[str, Any]) -> RankReport:
    contract = said.get("contract")
    met = said.get("met")
    here = said.get("master_is_here")
    return RankReport(
        node=said["node"],
        uid=_whole(said.get("uid")),
        root=_text(said.get("root")),
        arguments=tuple(_texts(said.get("arguments"))),
        contract={name: _text(value) for name, value in contract.items()}
        if isinstance(contract, dict)
        else {},
        names=frozenset(_texts(said.get("names"))),
        interfaces=frozenset(_texts(said.get("interfaces"))),
        accelerators=_whole(said.get("accelerators")),
        master_is_here=here if isinstance(here, bool) else None,
        meeting=_text(said.get("meeting")),
        met=_met(met) if isinstance(met, dict) else None,
        error=_text(said.get("error")),
        seconds=_seconds(said.get("seconds")),
        unsaid=frozenset(_unsaid(said)),
        devices=tuple(_texts(said.get("devices"))),
    )


def _unsaid(said: Mapping[str, Any]) -> Iterator[str]:
    for key, kind in _KEYS.items():
        value = said.get(key)
        if not isinstance(value, kind) or (key in _NEVER_EMPTY and not value):
            yield key
    if "master_is_here" not in said:
        yield "master_is_here"


def _met(said: Mapping[str, Any]) -> Met | None:
    size, total = _whole(said.get("size")), _whole(said.get("sum"))
    ranks = [_whole(rank) for rank in _listed(said.get("ranks"))]
    if size is None or total is None or None in ranks:
        return None
    return Met(size, total, tuple(rank for rank in ranks if rank is not None))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return list(map(_text, _listed(value)))


def _text(value: Any) -> str:
    """Of a text or a number; "" for anything else."""
    return str(value) if isinstance(value, str | int | float) else ""


def _whole(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**_DIGITS
    return value if whole else None


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None
