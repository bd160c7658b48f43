"""Finds known causes in any text: the output of a rank or a job, or a log of NCCL. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_mnode.logs.causes.collectives import Collectives
from pytest_mnode.logs.causes.culprits import (
    DEVICE,
    HOST,
    PEER,
    RANK,
    WHO,
    first,
    rank_numbers,
    split_prefix,
    unredacted,
)
from pytest_mnode.logs.causes.table import KnownCause, in_order_of_matching, known_cause
from pytest_mnode.logs.nccl_log.gids import connection_failure, read_gid
from pytest_mnode.logs.nccl_log.model import NOBODY
from pytest_mnode.logs.nccl_log.text import plain_text
from pytest_mnode.machine.cpus import format_cpulist

_LONGEST = 1000
_SHOWN = 300

# Every line that matches a pattern of the table contains one of these; other lines are skipped.
_WORTH = re.compile(
    r"fail|error|exception|\bout.of.memory|oom|alloc|kill|lost|loss|limit|due to|preempt|xid|ecc|"
    r"driver|device|gpu|mismatch|differ|instead of|rank|memory|space|quota|stale|unavailable|"
    r"unable|cannot|can't|too many|event|down\b|timed? ?out|not found|could not|interface|family|"
    r"resolve|known|in use|eaddr|unreach|route|retr|connect|unresponsive|denied|permitted|fault|"
    r"sig|assert|closed|reset|refused|pipe|got 0|recvd|abort|terminat|exit|cancelled|wait|load|"
    r"daemon|read-only|warn|bad_|joined|collective|available|evict|pull|low on|horovod|not ready|"
    r"host:|gone|sandbox|crashloop|bounds|unexpected pos|\bdead\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\bretrying\b|\bset (?:by environment )?to\b|\bset by environment\b|"
    r"client socket has failed to connect to \[|due to an error of type Rendezvous"
)
_INFO = re.compile(r"NCCL (?:INFO|TRACE)\b")

_COMM = re.compile(r" rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) ")
_LISTED = re.compile(r"Failures:$|(?P<first>Root Cause \(first observed failure\))")
"""Torchrun lists later failures before the first one, which is the cause."""
# MPICH prints rank and host before a stack of errors.
_MPICH = re.compile(r"MPICH ERROR \[Rank (?P<rank>\d+)\] .* \[(?P<host>[\w.-]+)\] - Abort")
_MPICH_STACK = re.compile(r"^(?:MPI|PMPI)\w+\(\d+\)\.*:")
_CONNECTED = re.compile(r"NCCL INFO .*(?:Init COMPLETE|Connected all)")
_CONNECTING = re.compile(r"NCCL WARN .*(?:ocket|[Cc]onnect)")
_SUMMARY = re.compile(
    r"(?:^|[\s\]:])(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>[^\s(]+)"
)
"""Torchrun's summary: host and rank of a process come before its exit code."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A known cause found in a text, with the line that shows it and who is to blame.

    ranks, host, device, peer: as far as lines name them; equal causes of several ranks are one.
    """

    kind: KnownCause
    line: str
    ranks: tuple[int, ...] = ()
    host: str | None = None
    device: str | None = None
    peer: str | None = None
    detail: str | None = None

    @property
    def name(self) -> str:
        """The name in the table."""
        return self.kind.name

    @property
    def root(self) -> bool:
        """Whether it explains the failure; otherwise it follows from another one."""
        return self.kind.root

    @property
    def order(self) -> int:
        """Its place in the table; smaller is weightier."""
        return self.kind.order

    @property
    def known(self) -> int:
        """How many parts of the culprit are known."""
        return sum(map(bool, (self.ranks, self.host, self.device, self.peer)))

    @property
    def culprit(self) -> str:
        """Such as "rank 3 on node2, mlx5_3:1, peer 10.0.0.7"; empty where no line names one."""
        several = "s" if len(self.ranks) > 1 else ""
        ranks = f"rank{several} {format_cpulist(self.ranks)}" if self.ranks else ""
        on = " on ".join(filter(None, [ranks, self.host or ""]))
        return ", ".join(filter(None, [on, self.device, self.peer and f"peer {self.peer}"]))

    @property
    def short(self) -> str:
        """Without rank and host: "port went down (mlx5_3:1)"."""
        parts = ", ".join(
            filter(None, [self.device, self.peer and f"peer {self.peer}", self.detail])
        )
        return f"{self.name} ({parts})" if parts else self.name

    @property
    def text(self) -> str:
        """One line: culprit, name and meaning, the line that shows it, and the remedy."""
        who = f"{self.culprit}: " if self.culprit else ""
        what = f"{self.name} ({self.kind.meaning}{f': {self.detail}' if self.detail else ''})"
        return f"{who}{what}; {self.line!r}; {self.kind.remedy}"


def causes(text: str | bytes) -> list[Cause]:
    """All causes in `text`, in the order of the table: root causes first."""
    found: dict[tuple[str, ...], Cause] = {}
    ranks: dict[tuple[str, ...], int] = {}
    collectives = Collectives()
    block: dict[str, str] = {}
    before = ""
    later = False
    for whole in plain_text(text).lines:
        line = whole[:_LONGEST].rstrip()
        if line == before:
            continue
        before = line
        _learn_rank(line, ranks)
        if _CONNECTED.search(line):
            _recover(found, line)
        if (listed := _LISTED.search(line)) is not None:
            later = listed["first"] is None
        block = _block(line, block)
        if (later and "exitcode" in block) or not _WORTH.search(line) or _HARMLESS.search(line):
            continue
        collectives.take(line)
        one = _cause_of(line, ranks, block)
        if one is not None:
            key = (one.name, one.host or "", one.device or "", one.peer or "", one.detail or "")
            known = found.setdefault(key, one)
            merged = tuple(sorted({*known.ranks, *one.ranks}))
            found[key] = replace(known, ranks=merged)
    _add_collectives(found, collectives)
    # Of equal weight, the cause with more of its culprit known comes first.
    return sorted(found.values(), key=lambda cause: (cause.order, -cause.known))


def first_cause(texts: Iterable[str] | Mapping[str, str]) -> Cause | None:
    """The weightiest cause of several texts, such as outputs of ranks, or of nodes by name."""
    by_host = texts if isinstance(texts, Mapping) else {str(i): t for i, t in enumerate(texts)}
    weightiest = [
        replace(one, host=host) if isinstance(texts, Mapping) and one.host is None else one
        for host, text in by_host.items()
        for one in causes(text)[:1]
    ]
    return min(weightiest, key=lambda cause: cause.order, default=None)


def is_peer_lost(text: str) -> bool:
    """Whether the text shows the loss of another rank, and no root cause."""
    found = causes(text)
    return bool(found) and not found[0].root


def _recover(found: dict[tuple[str, ...], Cause], line: str) -> None:
    """Drop warnings from while a process connected: it is connected now."""
    who = WHO.search(line)
    for key in [key for key, cause in found.items() if _CONNECTING.search(cause.line)]:
        earlier = WHO.search(found[key].line)
        if (
            who
            and earlier
            and who["pid"]
            and who.group("host", "pid") == earlier.group("host", "pid")
        ):
            del found[key]


def _block(line: str, block: dict[str, str]) -> dict[str, str]:
    """Rank and host of the process that `line` is about, from the lines before it."""
    if (summary := _SUMMARY.search(line)) is not None:
        return {**block, summary["key"]: summary["value"]}
    if (mpich := _MPICH.search(line)) is not None:
        return mpich.groupdict()
    return block if _MPICH_STACK.search(line) else {}


def _learn_rank(line: str, ranks: dict[tuple[str, ...], int]) -> None:
    """Remember the rank of an NCCL process in its largest communicator."""
    comm = _COMM.search(line) if "nranks" in line or "nRanks" in line else None
    who = WHO.search(line) if comm else None
    if comm is None or who is None:
        return
    place, size = who.groups(), (*who.groups(), "size")
    if int(comm["size"]) > ranks.get(size, 0):
        ranks[size], ranks[place] = int(comm["size"]), int(comm["rank"])


def _cause_of(
    line: str, ranks: Mapping[tuple[str, ...], int], block: Mapping[str, str]
) -> Cause | None:
    prefix, body = split_prefix(line)
    is_info = _INFO.search(body) is not None
    for kind in in_order_of_matching():
        if is_info and not kind.in_info:
            continue
        for pattern in kind.patterns:
            if (match := pattern.search(body)) is not None:
                return _cause(kind, match, line.strip(), prefix, ranks, block)
    return None


def _cause(  # noqa: PLR0917  the match, then where it was found
    kind: KnownCause,
    match: re.Match[str],
    line: str,
    prefix: Mapping[str, str],
    ranks: Mapping[tuple[str, ...], int],
    block: Mapping[str, str],
) -> Cause:
    body = match.string
    groups = {name: value for name, value in match.groupdict().items() if value}
    gid = read_gid(NOBODY, body) if "modify_qp" in body or "completion" in body else None
    if gid is not None and "modify_qp" in body and (name := connection_failure(gid)) is not None:
        kind = known_cause(name)
    who = WHO.search(line)
    labels = [prefix.get(key) for key in ("torch", "mpi", "srun")]
    named = groups.get("rank") or first(RANK, body) or next(filter(None, labels), block.get("rank"))
    own = rank_numbers(f"{named or ''},{groups.get('other', '')}")
    if not own and who is not None and who.groups() in ranks:
        own = (ranks[who.groups()],)
    host = groups.get("host") or (who["host"] if who else None) or first(HOST, body)
    labels = [prefix.get(key) for key in ("ip", "pod", "pdsh", "compose")]
    host = host or next(filter(None, labels), block.get("host"))
    peer = groups.get("peer") or first(PEER, body)
    detail = groups.get("detail", "").strip() or None
    if gid is not None and gid.local and gid.remote:
        detail = f"{gid.error or 'failed'}, {gid.local} to {gid.remote}"
        peer = peer or gid.remote
    return Cause(
        kind=kind,
        line=line[:_SHOWN],
        ranks=own,
        host=unredacted(host),
        device=unredacted(groups.get("device") or first(DEVICE, body)),
        peer=unredacted(peer),
        detail=detail,
    )


def _add_collectives(found: dict[tuple[str, ...], Cause], collectives: Collectives) -> None:
    """Replace single lines of watchdogs by what the watchdogs of all ranks show together."""
    if collectives.works:
        for key in [key for key in found if key[0] == "collective timed out"]:
            del found[key]
    for one in collectives.all():
        found[one.name, one.detail] = Cause(
            known_cause(one.name), one.line[:_SHOWN], ranks=one.ranks, detail=one.detail
        )
