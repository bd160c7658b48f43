"""Search for known causes in any text: the output of a rank or a job, or an NCCL log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from pytest_mnode.logs.causes.collectives import Collectives
from pytest_mnode.logs.causes.culprits import (
    DEVICE,
    HOST,
    PEER,
    PORT,
    RANK,
    WHO,
    first,
    rank_numbers,
    split_prefix,
    unredacted,
)
from pytest_mnode.logs.causes.ras import LINE as RAS_LINE
from pytest_mnode.logs.causes.ras import Ras, causes_in_json
from pytest_mnode.logs.causes.table import Cause, KnownCause, Rule, candidates, known_cause
from pytest_mnode.logs.lines import began_in_tmp
from pytest_mnode.logs.nccl_log.gids import connection_failure, read_gid
from pytest_mnode.logs.nccl_log.model import NOBODY
from pytest_mnode.logs.nccl_log.text import plain_text

_LONGEST = 1000
_NUMBER = re.compile(r"\d+", re.ASCII)

_RETRIES = re.compile(r"\bretrying\b|\bwillRetry=1\b", re.IGNORECASE)
_SERIES = re.compile(
    r"\b(?:retry(?:ing)?|attempt|try)\b[\s:#(]{0,3}(?P<number>\d{1,6})(?:/| of )(?P<of>\d{1,6})\b|"
    r"\bRetry\(total=(?P<left>\d{1,6})\b",
    re.IGNORECASE,
)
"""The number of a try and of all tries, or the number of those that are left."""
_HARMLESS = re.compile(
    r"\bset (?:by environment )?to (?!ERROR)|\bset by environment\b|"
    r"client socket has failed to connect to \[|failed to shutdown the rendezvous|"
    r"\b(?:Readiness|Startup) probe failed|Xid .*\bNonfatal\b|\(ignored\)$|"
    r"\b(?i:install(?:s|ed|ing)?|regist(?:er|ered|ering)|set(?:ting)? ?up|add(?:ed|ing)|ignor\w+)\b"
    r".*\bSIG[A-Z]{3,}|\btrap ['\"].*SIG[A-Z]{3,}|"
    r"\bSIG[A-Z]{3,}\b.*\b(?i:install|regist|handler|ignored)|"
    r"Using the loopback address as fallback|"
    # Of the processes of a node, one gets the port of NCCL's RAS.
    r"\bras/\w+\.cc:\d+.* Call to bind failed"
)
_ENDS = ("aborted", "ended by the launcher")
_UNRESOLVED = re.compile(r"network addresses of \([^()]+\) cannot be retrieved")
_GAVE_UP = re.compile(r"client socket has (?:timed out|failed to connect to any)")
_INFO = re.compile(r"NCCL (?:INFO|TRACE)\b|UCX +(?:DIAG|INFO|DEBUG|TRACE|REQ|DATA)\b")

_COMM = re.compile(r" rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) ")
_LISTED = re.compile(r"Failures:$|(?P<first>Root Cause \(first observed failure\))")
"""Torchrun lists later failures before the first one, which is the cause."""
# MPICH, Hydra and Open MPI print rank and host in a line before the failure itself.
_NAMED = re.compile(
    r"MPICH ERROR \[Rank (?P<rank>\d+)\] .* \[(?P<host>[\w.-]+)\] - Abort|"
    r"Abort\(\d+\) on node \d+ \(rank (?P<in_comm>\d+) in comm|"
    r"PID \d+ RUNNING AT (?:\w+@)?(?P<at>[\w.-]+)|"
    r"process rank (?P<exited>\d+) with PID \d+ on node (?P<on>[\w.-]+) exited on$"
)
_BLOCK_GOES_ON = re.compile(
    r"^[A-Za-z_]\w+\(\d+\)\.*:|^=? +EXIT CODE: |^ *Remote host: |^signal \d|^ +\S"
)
_ASSIGNED = re.compile(r"Successfully assigned (?:[\w.-]+/)?(?P<pod>[\w.-]+) to (?P<node>[\w.-]+)")
_DESCRIBED = re.compile(r"(?:Name: +[\w.-]+|\s*\"?metadata\"?: ?\{?)$")
_DESCRIBED_ON = re.compile(r"\s*(?:Node: +|\"?nodeName\"?: ?\"?)(?P<node>[\w.-]+)")
_DESCRIBED_STATUS = re.compile(
    r"\s*-? *\"?(?:reason|message|exit ?code|last ?state|state|status|signal)\"?:", re.IGNORECASE
)
"""`kubectl describe`, and an object as JSON or YAML: its node stands above its state."""
_STARTED = re.compile(
    r"Successfully assigned|Started container|pod group is ready|Admitted by ClusterQueue"
)
_RETRIED = (
    "not scheduled",
    "GPU not given to the pod",
    "volume not mounted",
    "pod network failed",
    "image not pulled",
    "container not created",
)
"""Causes after which Kubernetes retries: they no longer apply once the pod starts."""
_EVENT_OF = re.compile(r"\bpod/([\w.-]+)")
_CONNECTED = re.compile(r"NCCL INFO .*(?:Init COMPLETE|Connected all)")
_CONNECTING = re.compile(r"NCCL WARN .*(?:ocket|[Cc]onnect)|retrying \(")
_STEP_WAITS = re.compile(r"srun: Job (?:(?P<waits>\d+) )?step creation \w+ disabled")
_STEP_CREATED = re.compile(r"srun: Step created for (?:StepId=|job )(?P<job>\d+)")
_TESTED = re.compile(r"\bDual-port +: .*\bDevice +: (\w+)")
_FAILED_STATUS = re.compile(r"\bFailed status \d")
"""perftest names the device above its table, and the status of a failed request below it."""
_SUMMARY = re.compile(
    r"(?:^|[\s\]:])(?<!Remote )"
    r"(?P<key>time|[Hh]ost|rank|exitcode|error_file|traceback|Framework|Component)\s*: +"
    r"(?P<value>[^\s(]+)(?=\s*(?:\(|$))"
)
"""Summaries of torchrun and Open MPI: host and rank come before the failure itself."""


def causes(text: str | bytes) -> list[Cause]:
    """All causes in `text`, in the order of the table: root causes first."""
    # Of causes with equal weight, the one with more known parts of the culprit comes first.
    found = [one for _, one in Causes({"": text}).found]
    return sorted(found, key=lambda cause: (cause.order, -cause.known))


class Causes:
    """All causes in files of one job, by the names of these, in no order.

    silent: see `Attempt.silent`. earlier: of attempts before the last one, and of other jobs.
    hosts: of the ranks of the largest communicator of NCCL. What watchdogs say is compared over
    all files.
    """

    def __init__(self, texts: Mapping[str, str | bytes]) -> None:
        collectives = Collectives()
        every = [_Finder(collectives, name, text) for name, text in texts.items()]
        attempts = collectives.attempts()
        timed_out = {rank for attempt in attempts for rank, *_ in attempt.works}
        self.silent = attempts[-1].silent(texts) if attempts else ()
        self.found = [(one.file, cause) for one in every for cause in one.all(timed_out)]
        self.found += attempts[-1].causes() if attempts else ()
        self.earlier = [one for attempt in attempts[:-1] for one in attempt.causes()]
        placed = [(size, rank, who[0]) for one in every for who, (rank, size) in one.ranks.items()]
        largest = max((size for size, *_ in placed), default=0)
        self.hosts = {rank: host for size, rank, host in placed if size == largest and host}


def first_cause(texts: Mapping[str, str]) -> Cause | None:
    """The weightiest cause of several texts, by the host that each comes from."""
    weightiest = [
        replace(one, host=one.host or host)
        for host, text in texts.items()
        for one in causes(text)[:1]
    ]
    return min(weightiest, key=lambda cause: cause.order, default=None)


def is_peer_lost(text: str) -> bool:
    """Whether the text shows the loss or the absence of another rank, and no root cause.

    The end of a process shows neither: the rank may have aborted after an error of its own, and
    the process that a launcher or a test started is no rank.
    """
    found = [cause for cause in causes(text) if cause.name not in _ENDS]
    return bool(found) and (not found[0].root or found[0].name == "rank did not join")


_TELLING = (
    *(_COMM, _CONNECTED, _STEP_CREATED, _LISTED, _SUMMARY, _NAMED, _ASSIGNED, _DESCRIBED, _STARTED),
    _DESCRIBED_ON,
    _TESTED,
    *(_RETRIES, RAS_LINE, re.compile("atchdog| work")),
)


@lru_cache(maxsize=4096)
def _hints(shape: str) -> tuple[bool, tuple[Rule, ...]]:
    """Whether the finder learns from a line, and the rules that may match it.

    shape: the line with all numbers replaced: those of all steps have one shape.
    """
    return any(pattern.search(shape) for pattern in _TELLING), candidates(shape)


def _is_last_try(line: str) -> bool:
    """Whether the line reports the last of several tries."""
    series = _SERIES.search(line)
    if series is None:
        return False
    return series["left"] == "0" or series["of"] == series["number"] is not None


def _is_retried(line: str) -> bool:
    """Whether the line reports a failure after which there is another try."""
    return "retry" in line.lower() and bool(_RETRIES.search(line)) and not _is_last_try(line)


class _Finder:
    """Reads the lines of a file and keeps the facts that later lines need."""

    def __init__(self, collectives: Collectives, file: str, text: str | bytes) -> None:
        self.file = file
        self._found: dict[tuple[str, ...], Cause] = {}
        self._collectives = collectives
        self._ras = Ras()
        # The rank of an NCCL process in its largest communicator, and the size of that.
        self.ranks: dict[tuple[str | None, ...], tuple[int, int]] = {}
        # Rank and host of the process that the next line is about, from the lines before it.
        self._block: dict[str, str] = {}
        self._later_failures = False
        # Line about a name that was not resolved, which is a cause once the client gives up.
        self._unresolved = ""
        self._tested = ""
        # Nodes of Kubernetes by pod, in the order of the events that name them.
        self._nodes: dict[str, str] = {}
        # Keys of the causes found before the description of the current pod.
        self._of_others: set[tuple[str, ...]] = set()
        self._described_on: str | None = None
        lines, before = plain_text(text).lines, ""
        for whole in lines:
            line = whole[:_LONGEST].rstrip()
            if line != before:
                self._read(line)
            before = line
        self._in_json = causes_in_json("\n".join(lines))

    def _read(self, line: str) -> None:
        """Read one line; most contain no cause."""
        tells, rules = _hints(_NUMBER.sub("0", line))
        if tells:
            self._learn(line)
        elif self._block and not _BLOCK_GOES_ON.search(line):
            self._block = {}
        if not rules or (self._later_failures and "exitcode" in self._block):
            return
        if self._unresolved and _GAVE_UP.search(line):
            line, self._unresolved = self._unresolved, ""
            _, rules = _hints(_NUMBER.sub("0", line))
        elif _UNRESOLVED.search(line):  # torch tries again
            self._unresolved = line
            return
        cause = self._cause_of(line, rules)
        if cause is None or _HARMLESS.search(line) or began_in_tmp(line):
            return
        if _is_retried(line) and not _STEP_WAITS.search(line):
            return
        self._keep(cause)

    def _keep(self, cause: Cause) -> None:
        parts = (cause.host, cause.device, cause.peer, cause.detail)
        key = (cause.name, *(part or "" for part in parts))
        known = self._found.setdefault(key, cause)
        ranks = tuple(sorted({*known.ranks, *cause.ranks}))
        self._found[key] = replace(known, ranks=ranks)

    def _learn(self, line: str) -> None:
        """Keep what the line tells about later ones, and drop causes that it shows to be over."""
        self._learn_rank(line)
        if _CONNECTED.search(line) or ("NCCL" in line and _is_retried(line)):
            self._drop_warnings(line)
        if (created := _STEP_CREATED.search(line)) is not None:
            self._drop_waiting(created["job"])
        if (listed := _LISTED.search(line)) is not None:
            self._later_failures = listed["first"] is None
        self._tested = first(_TESTED, line) or self._tested
        self._learn_block(line)
        self._learn_pod(line)
        self._collectives.read(line, self.file)
        if RAS_LINE.search(line):
            self._ras.read(line, split_prefix(line)[1])

    def all(self, timed_out: set[int]) -> Iterator[Cause]:
        """Its causes; those of these ranks' watchdogs are left to the collectives of all files."""
        for cause in self._ras.causes():
            self._keep(cause)
        for cause in (*self._found.values(), *self._in_json):
            told = timed_out and timed_out.issuperset(cause.ranks)
            if cause.name != "collective timed out" or not told:
                yield cause

    def _learn_rank(self, line: str) -> None:
        comm = _COMM.search(line) if "nranks" in line or "nRanks" in line else None
        who = WHO.search(line) if comm else None
        if comm is None or who is None:
            return
        size = int(comm["size"])
        if size > self.ranks.get(who.groups(), (0, 0))[1]:
            self.ranks[who.groups()] = (int(comm["rank"]), size)

    def _learn_block(self, line: str) -> None:
        if (summary := _SUMMARY.search(line)) is not None:
            self._block = {**self._block, summary["key"].lower(): summary["value"]}
        elif (named := _NAMED.search(line)) is not None:
            found = {
                "rank": named["rank"] or named["in_comm"] or named["exited"],
                "host": named["host"] or named["at"] or named["on"],
            }
            self._block = {key: value for key, value in found.items() if value}
        elif not _BLOCK_GOES_ON.search(line):
            self._block = {}

    def _learn_pod(self, line: str) -> None:
        if (assigned := _ASSIGNED.search(line)) is not None:
            self._nodes[assigned["pod"]] = assigned["node"]
        if _DESCRIBED.match(line):
            self._of_others, self._described_on = set(self._found), None
        elif (on := _DESCRIBED_ON.match(line)) is not None:
            self._described_on = on["node"]
        if (started := _STARTED.search(line)) is None:
            return
        retried = _RETRIED if started[0] == "Started container" else _RETRIED[:1]
        for key, cause in list(self._found.items()):
            same = first(_EVENT_OF, cause.line) == first(_EVENT_OF, line)
            if cause.name in retried and same and key not in self._of_others:
                del self._found[key]

    def _drop_warnings(self, line: str) -> None:
        """Drop warnings printed while a process was connecting: it is connected now."""
        who = WHO.search(line)
        if who is None or not who["pid"]:
            return
        for key, cause in list(self._found.items()):
            earlier = WHO.search(cause.line) if _CONNECTING.search(cause.line) else None
            if earlier and who.group("host", "pid") == earlier.group("host", "pid"):
                del self._found[key]

    def _drop_waiting(self, job: str) -> None:
        """Drop the wait of a job's step that was created meanwhile."""
        for key, cause in list(self._found.items()):
            waits = _STEP_WAITS.search(cause.line)
            if waits is not None and waits["waits"] in (None, job):
                del self._found[key]

    def _cause_of(self, line: str, rules: Sequence[Rule]) -> Cause | None:
        prefix, body = split_prefix(line)
        # NCCL prints its last try to connect as INFO too.
        is_info = _INFO.search(body) is not None and not _is_last_try(body)
        for rule in rules:
            if is_info and not rule.kind.in_info:
                continue
            if (match := rule.pattern.search(body)) is not None:
                return self._cause(rule.kind, match, line.strip(), prefix)
        return None

    def _cause(
        self, kind: KnownCause, match: re.Match[str], line: str, prefix: Mapping[str, str]
    ) -> Cause:
        body = match.string
        groups = {name: value for name, value in match.groupdict().items() if value}
        gid = read_gid(NOBODY, body) if "modify_qp" in body or "completion" in body else None
        name = connection_failure(gid) if gid is not None and "modify_qp" in body else None
        if groups.get("joined") and int(groups["joined"]) > int(groups["world"]):
            name = "store used by another run"
        if name is not None:
            kind = known_cause(name)
        who = WHO.search(line)
        labels = (prefix.get(key) for key in ("torch", "mpi", "srun"))
        of_prefix = next(filter(None, labels), self._block.get("rank"))
        # Torch's prefix has the rank in the world, its message that in a process group.
        named = groups.get("rank") or prefix.get("torch") or first(RANK, body) or of_prefix
        ranks = rank_numbers(f"{named or ''},{groups.get('other', '')}")
        if not ranks and who is not None and who.groups() in self.ranks:
            ranks = (self.ranks[who.groups()][0],)
        host = groups.get("host") or (who["host"] if who else None) or first(HOST, body)
        labels = (prefix.get(key) for key in ("ip", "pod", "pdsh", "compose"))
        host = host or next(filter(None, labels), self._block.get("host"))
        host = host or self._node_of_pod(line)
        peer = groups.get("peer") or groups.get("peer2") or first(PEER, body)
        details = (groups[name] for name in sorted(groups) if name.startswith("detail"))
        detail = next(details, "").strip() or None
        if kind.name == "rank did not join" and "rank" not in groups and "imed out" in body:
            ranks, host = (), None  # the line is of a rank that waited
        if groups.get("joined"):
            ranks, detail = (), f"{groups['joined']} of {groups['world']} ranks joined"
        port = groups.get("port") or (first(PORT, body) if peer else None)
        if port and not detail:
            detail = f"port {port}"
        if gid is not None and gid.local and gid.remote:
            detail = f"{gid.error or 'failed'}, {gid.local} to {gid.remote}"
            peer = peer or gid.remote
        tested = self._tested if _FAILED_STATUS.search(body) else None
        return Cause(
            kind,
            line,
            ranks=ranks,
            host=unredacted(host),
            device=unredacted(groups.get("device") or first(DEVICE, body) or tested),
            peer=unredacted(peer),
            detail=detail,
        )

    def _node_of_pod(self, line: str) -> str | None:
        """Node of an event's pod; `kubectl describe` does not print the pod's name with it."""
        if self._described_on and _DESCRIBED_STATUS.match(line):
            return self._described_on
        named = [node for pod, node in self._nodes.items() if pod in line]
        last = list(self._nodes.values()) if " kubelet " in line else []
        return next(reversed(named or last), None)
