"""Ranks that NCCL's RAS reports: lost, failed, or behind the others; as text (`ncclras`) and JSON.

Source: NCCL, src/ras/client_support.cc. RAS counts the ranks of each communicator on its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_mnode.logs.causes.table import Cause, known_cause
from pytest_mnode.machine.cpus import format_cpulist

_HEAD = re.compile(
    r"(?:#\d+-\d+ \([0-9a-f]+\) )?(?P<kind>INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)\s*$"
)
_COUNTED = re.compile(r"Communicator ranks have different (?P<op>\w+) operation counts")
_OF_MANY = re.compile(
    r"\d+ ranks (?:have (?:launched up to operation (?P<count>\d+)|(?P<none>not launched any)"
    r"|status (?P<status>\w+))|reported (?P<error>\w.{2,80}))"
)
_RANK = re.compile(
    r"Rank (?P<rank>\d{1,7})(?: (?:has (?:launched up to operation (?P<count>\d+)"
    r"|(?P<none>not launched any) operations|status (?P<status>\w+))|reported (?P<error>\w.*?)))?"
    r" -- (?:GPU .{1,40} managed by process \d+ on node (?P<host>\S+)|\[process information)"
)
_PROCESS = re.compile(r"Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? \S")
LINE = re.compile(
    f"{_HEAD.pattern}|{_COUNTED.pattern}|"
    r"\d+ ranks have |\d+ ranks reported |Rank \d+ .*-- |Process \d+ on node "
)
_NO_COMMA = re.compile(r'("nvml_dev": ?-?\d+)(\s*"status")')
"""NCCL 2.28 leaves out a comma."""
_DONE = (0, 7)
"""Results of NCCL that are no errors: success, and in progress."""
_RESULTS = (
    *("success", "CUDA error", "system error", "internal error", "invalid argument"),
    *("invalid usage", "remote process exited or network error", "in progress", "timeout"),
)


@dataclass(slots=True)
class Ras:
    """Blocks of a report as text, read line by line; others' lines may stand between them."""

    found: list[Cause] = field(default_factory=list)
    _kind: str = ""
    _op: str = ""
    _line: str = ""
    # State of the ranks that the next lines list, and count of operations by listed rank.
    _said: Mapping[str, str] = field(default_factory=dict)
    _counts: dict[tuple[int, str | None], int] = field(default_factory=dict)
    _of_many: set[int] = field(default_factory=set)

    def read(self, line: str, body: str) -> None:
        """Read a line of a log; body: the same without prefixes."""
        if head := _HEAD.match(body):
            self._end(head["kind"], line)
        elif counted := _COUNTED.match(body):
            self._end("MISMATCH", line)
            self._op = counted["op"]
        elif self._kind and (many := _OF_MANY.match(body)):
            self._said = _of(many)
            if (count := _count(self._said)) is not None:
                self._of_many.add(count)
        elif self._kind and (one := _RANK.match(body)):
            self._rank(one, line)
        elif self._kind in ("INCOMPLETE", "DEAD") and (process := _PROCESS.match(body)):
            what = "dead" if self._kind == "DEAD" else "does not answer"
            detail = f"process {process['pid']} {what}"
            self.found.append(
                Cause(known_cause("rank lost"), line, host=process["host"], detail=detail)
            )

    def _rank(self, one: re.Match[str], line: str) -> None:
        said = _of(one)
        state = {**self._said, **{k: v for k, v in said.items() if k not in ("rank", "host")}}
        rank, host = int(one["rank"]), one["host"]
        if self._kind == "INCOMPLETE":
            self.found.append(Cause(known_cause("rank lost"), line, ranks=(rank,), host=host))
        elif (count := _count(state)) is not None:
            self._counts[rank, host] = count
        elif detail := state.get("error") or (state.get("status") and f"status {state['status']}"):
            self.found.append(
                Cause(known_cause("NCCL failed"), line, ranks=(rank,), host=host, detail=detail)
            )

    def _end(self, kind: str, line: str) -> None:
        if self._op:
            self.found += _uneven(self._op, self._counts, self._of_many, self._line)
        self._kind, self._line, self._op = kind, line, ""
        self._said, self._counts, self._of_many = {}, {}, set()

    def causes(self) -> Iterable[Cause]:
        """All causes."""
        self._end("", "")
        return self.found


def _of(found: re.Match[str]) -> dict[str, str]:
    return {name: value for name, value in found.groupdict().items() if value}


def _count(state: Mapping[str, str]) -> int | None:
    if "none" in state:
        return 0
    return int(state["count"]) if "count" in state else None


def _uneven(
    op: str, counts: Mapping[tuple[int, str | None], int], others: Iterable[int], line: str
) -> Iterator[Cause]:
    """Ranks that launched fewer operations than others; counts: by rank and host.

    others: counts of ranks that the report does not list.
    """
    most = max((*counts.values(), *others), default=0)
    behind: dict[str | None, list[int]] = {}
    for (rank, host), count in counts.items():
        if count < most:
            behind.setdefault(host, []).append(rank)
    if not behind:
        ahead = format_cpulist(tuple(sorted(rank for rank, _ in counts)))
        detail = f"{op}: ranks {ahead} launched {most}, others fewer" if counts else op
        yield Cause(known_cause("ranks' collectives differ"), line, detail=detail)
    for host, ranks in behind.items():
        least = min(counts[rank, host] for rank in ranks)
        detail = f"launched {least or 'no'} {op}, others {most}"
        yield Cause(
            known_cause("rank did not join"), line, ranks=tuple(ranks), host=host, detail=detail
        )


def causes_in_json(text: str) -> list[Cause]:
    """Causes in a report as JSON, anywhere in the text; none if it cannot be read."""
    start = text.rfind("{", 0, text.find('"communicators"')) if '"missing_ranks"' in text else -1
    if start < 0:
        return []
    try:
        report, _ = json.JSONDecoder().raw_decode(_NO_COMMA.sub(r"\1,\2", text[start:]))
        return [cause for comm in report["communicators"] for cause in _of_comm(comm)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _of_comm(comm: Mapping[str, Any]) -> Iterator[Cause]:
    line = f"communicator {comm['hash']} of {comm['size']} ranks"
    for one in comm["missing_ranks"]:
        dead = one["status"].get("considered_dead")
        detail = f"process {one['pid']} {'is considered dead' if dead else 'does not answer'}"
        yield Cause(
            known_cause("rank lost"), line, ranks=(one["rank"],), host=one["host"], detail=detail
        )
    by_op: dict[str, dict[tuple[int, str | None], int]] = {}
    for one in comm["ranks"]:
        place = (one["rank"], one["host"])
        for op, count in one.get("collective_counts", {}).items():
            by_op.setdefault(op, {})[place] = count
        results = [one["status"].get(key, 0) for key in ("init_state", "async_error")]
        named = {n: _RESULTS[n] if 0 < n < len(_RESULTS) else f"result {n}" for n in results}
        failed = [text for n, text in named.items() if n not in _DONE]
        for detail in (*failed, *["aborted"] * bool(one["status"].get("abort_flag"))):
            kind = known_cause("NCCL failed")
            yield Cause(kind, line, ranks=place[:1], host=place[1], detail=detail)
    for op, counts in by_op.items():
        if len(set(counts.values())) > 1:
            yield from _uneven(op, counts, (), line)
