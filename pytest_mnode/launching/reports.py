"""What the ranks of a job print about themselves, read. Pure, and never raises on content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    `error` says why, unless its program does not meet ("none" is its `meeting`).
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

    def number(self, name: str) -> int | None:
        """A variable as a whole number; None where it is absent or is none."""
        text = self.contract.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else None

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
        elif isinstance(login := said.get("login"), dict) and isinstance(login.get("uid"), int):
            logins.append(
                Login(str(login.get("node")), login["uid"], str(login["user"]), str(login["why"]))
            )
    return reports, logins


def _object_in(line: str) -> dict[str, Any]:
    """The JSON object in a line, which launchers may put their own prefix before."""
    start = line.find("{")
    if start < 0:
        return {}
    try:
        said = json.loads(line[start:])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _report(said: Mapping[str, Any]) -> RankReport:
    contract = said.get("contract")
    met = said.get("met")
    return RankReport(
        node=str(said["node"]),
        uid=_whole(said.get("uid")),
        root=str(said.get("root", "")),
        arguments=tuple(map(str, _listed(said.get("arguments")))),
        contract={str(k): str(v) for k, v in contract.items()}
        if isinstance(contract, dict)
        else {},
        names=frozenset(map(str, _listed(said.get("names")))),
        interfaces=frozenset(map(str, _listed(said.get("interfaces")))),
        accelerators=_whole(said.get("accelerators")),
        master_is_here=here if isinstance(here := said.get("master_is_here"), bool) else None,
        meeting=str(said.get("meeting", "")),
        met=_met(met) if isinstance(met, dict) else None,
        error=str(said.get("error", "")),
        seconds=float(s) if isinstance(s := said.get("seconds"), int | float) else None,
    )


def _met(said: Mapping[str, Any]) -> Met | None:
    size, total = _whole(said.get("size")), _whole(said.get("sum"))
    ranks = [_whole(rank) for rank in _listed(said.get("ranks"))]
    if size is None or total is None or None in ranks:
        return None
    return Met(size, total, tuple(rank for rank in ranks if rank is not None))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
