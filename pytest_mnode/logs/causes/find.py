"""Search for known causes in any text: the output of a rank or a job, or an NCCL log. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

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
from pytest_mnode.logs.causes.table import Cause, KnownCause, in_order_of_matching, known_cause
from pytest_mnode.logs.lines import began_in_tmp
from pytest_mnode.logs.nccl_log.gids import connection_failure, read_gid
from pytest_mnode.logs.nccl_log.model import NOBODY
from pytest_mnode.logs.nccl_log.text import plain_text

_LONGEST = 1000

# Every line that matches a pattern of the table contains one of these, in lower or upper case;
# other lines are skipped. Words of usual output, such as "loss" and "rank", are not among them.
_WORDS = (
    "fail|error|exception|oom|alloc|kill|lost|limit|preempt|xid|ecc|driver|device|gpu|mismatch|"
    "differ|instead of|space|quota|stale|unable|cannot|can't|too many|event|down|timeout|"
    "timed out|not found|could not|interface|family|resolve|known|in use|eaddr|unreach|route|"
    "retr|connect|unresponsive|denied|permitted|fault|sig|closed|reset|pipe|recvd|abort|terminat|"
    "exit|cancelled|wait|read-only|warn|collective|available|evict|pull|low on|horovod|not ready|"
    "host:|sandbox|crashloop|bounds|unexpected pos|dead|completion|invalid|owner|returned|symbol|"
    "module named|munge|credential|prolog|pressure|not set|corrupt|certificate|skew|respond|"
    "blocked|unschedulable|component:|task:|(reqnode|(qos|(assoc|(badcons|(jobheld|out_of_me|"
    "rendezvous, but|no matches for|status_| bit|-bit|imex|not built with|mpi/|*** |ncclinternal|"
    "ncclremote|ncclsystem|ncclunhandled|err0|nvlink|notfound|protection|remote |fi_cq|sharp |"
    "not valid|return code|state_dict|watchdog|process has died|node has died|fatal|enroot-|"
    "no runtime|nvidia-container-cli|free(): |munmap|illegal|enospc|curl: (|fabric manager|"
    "fabricmanager|initialized|notready|not_ready|no address|lookup |servname|unauthorized|"
    "numpy 1|memlock|net/ofi|output empty|toolchain|compatibility|peer access|peer mapping|"
    "to bind to|more processes|transport|opened in|libfabric|update_node|has crashed|"
    "configuration is|execve|function was|appear to be|times out|zero bytes|identification|"
    "reachable|wrong |no name!|user exists|finite|mount.nfs|brokenprocess|type_fabric|gid table|"
    "breakpoint|found nan|found inf|is nan|is inf|became|init.cc|group.cc|checked in|"
    "missing ranks|subset of|barrier|of memory|memory on|shared memory|locked memory"
)
_WORTH = tuple(_WORDS.split("|"))
_HARMLESS = re.compile(
    r"(?i:\bretrying\b)|\bset (?:by environment )?to (?!ERROR)|\bset by environment\b|"
    r"client socket has failed to connect to \[|failed to shutdown the rendezvous|"
    r"\b(?:Readiness|Startup) probe failed|Xid .*\bNonfatal\b|\(ignored\)$|"
    r"(?i:\b(?:install|regist)\w*\b.*SIGTERM|SIGTERM\b.*\b(?:install|regist))|"
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
_DESCRIBED = re.compile(r"Name: +[\w.-]+$")
_STARTED = re.compile(r"Successfully assigned|Started container")
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
_CONNECTING = re.compile(r"NCCL WARN .*(?:ocket|[Cc]onnect)")
_SUMMARY = re.compile(
    r"(?:^|[\s\]:])(?<!Remote )"
    r"(?P<key>time|[Hh]ost|rank|exitcode|error_file|traceback|Framework|Component)\s*: +"
    r"(?P<value>[^\s(]+)(?=\s*(?:\(|$))"
)
"""Summaries of torchrun and Open MPI: host and rank come before the failure itself."""


def causes(text: str | bytes) -> list[Cause]:
    """All causes in `text`, in the order of the table: root causes first."""
    finder = _Finder()
    before = ""
    for whole in plain_text(text).lines:
        line = whole[:_LONGEST].rstrip()
        if line != before:
            finder.read(line)
        before = line
    # Of causes with equal weight, the one with more known parts of the culprit comes first.
    return sorted(finder.all(), key=lambda cause: (cause.order, -cause.known))


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


def is_worth_reading(line: str) -> bool:
    """Whether a pattern of the table may match the line."""
    small = line.lower()
    return any(word in small for word in _WORTH)


class _Finder:
    """Reads the lines of a text and keeps the facts that later lines need."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Cause] = {}
        self._collectives = Collectives()
        # The rank of an NCCL process in its largest communicator, and the size of that.
        self._ranks: dict[tuple[str | None, ...], tuple[int, int]] = {}
        # Rank and host of the process that the next line is about, from the lines before it.
        self._block: dict[str, str] = {}
        self._later_failures = False
        # Line about a name that was not resolved, which is a cause once the client gives up.
        self._unresolved = ""
        # Nodes of Kubernetes by pod, in the order of the events that name them.
        self._nodes: dict[str, str] = {}
        # Keys of the causes found before the description of the current pod.
        self._of_others: set[tuple[str, ...]] = set()

    def read(self, line: str) -> None:
        """Read one line; most contain no cause."""
        self._learn_rank(line)
        if _CONNECTED.search(line):
            self._drop_warnings(line)
        if (listed := _LISTED.search(line)) is not None:
            self._later_failures = listed["first"] is None
        self._learn_block(line)
        self._learn_pod(line)
        listed_later = self._later_failures and "exitcode" in self._block
        if listed_later or not is_worth_reading(line) or _HARMLESS.search(line):
            return
        if began_in_tmp(line):
            return
        if _UNRESOLVED.search(line):  # torch tries again
            self._unresolved = line
            return
        if self._unresolved and _GAVE_UP.search(line):
            line, self._unresolved = self._unresolved, ""
        self._collectives.read(line)
        cause = self._cause_of(line)
        if cause is not None:
            parts = (cause.host, cause.device, cause.peer, cause.detail)
            key = (cause.name, *(part or "" for part in parts))
            known = self._found.setdefault(key, cause)
            ranks = tuple(sorted({*known.ranks, *cause.ranks}))
            self._found[key] = replace(known, ranks=ranks)

    def all(self) -> list[Cause]:
        """All causes; those of all ranks' watchdogs together replace those of single lines."""
        together = list(self._collectives.causes())
        single = "collective timed out" if together else None
        return [*(cause for cause in self._found.values() if cause.name != single), *together]

    def _learn_rank(self, line: str) -> None:
        comm = _COMM.search(line) if "nranks" in line or "nRanks" in line else None
        who = WHO.search(line) if comm else None
        if comm is None or who is None:
            return
        size = int(comm["size"])
        if size > self._ranks.get(who.groups(), (0, 0))[1]:
            self._ranks[who.groups()] = (int(comm["rank"]), size)

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
            self._of_others = set(self._found)
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

    def _cause_of(self, line: str) -> Cause | None:
        prefix, body = split_prefix(line)
        is_info = _INFO.search(body) is not None
        for kind in in_order_of_matching():
            if is_info and not kind.in_info:
                continue
            for pattern in kind.patterns:
                if (match := pattern.search(body)) is not None:
                    return self._cause(kind, match, line.strip(), prefix)
        return None

    def _cause(
        self, kind: KnownCause, match: re.Match[str], line: str, prefix: Mapping[str, str]
    ) -> Cause:
        body = match.string
        groups = {name: value for name, value in match.groupdict().items() if value}
        gid = read_gid(NOBODY, body) if "modify_qp" in body or "completion" in body else None
        name = connection_failure(gid) if gid is not None and "modify_qp" in body else None
        if name is not None:
            kind = known_cause(name)
        who = WHO.search(line)
        labels = (prefix.get(key) for key in ("torch", "mpi", "srun"))
        of_prefix = next(filter(None, labels), self._block.get("rank"))
        # Torch's prefix has the rank in the world, its message that in a process group.
        named = groups.get("rank") or prefix.get("torch") or first(RANK, body) or of_prefix
        ranks = rank_numbers(f"{named or ''},{groups.get('other', '')}")
        if not ranks and who is not None and who.groups() in self._ranks:
            ranks = (self._ranks[who.groups()][0],)
        host = groups.get("host") or (who["host"] if who else None) or first(HOST, body)
        labels = (prefix.get(key) for key in ("ip", "pod", "pdsh", "compose"))
        host = host or next(filter(None, labels), self._block.get("host"))
        host = host or self._node_of_pod(body)
        peer = groups.get("peer") or first(PEER, body)
        detail = groups.get("detail", "").strip() or None
        if gid is not None and gid.local and gid.remote:
            detail = f"{gid.error or 'failed'}, {gid.local} to {gid.remote}"
            peer = peer or gid.remote
        return Cause(
            kind,
            line,
            ranks=ranks,
            host=unredacted(host),
            device=unredacted(groups.get("device") or first(DEVICE, body)),
            peer=unredacted(peer),
            detail=detail,
        )

    def _node_of_pod(self, line: str) -> str | None:
        """Node of an event's pod; `kubectl describe` does not print the pod's name with it."""
        named = [node for pod, node in self._nodes.items() if pod in line]
        last = list(self._nodes.values()) if " kubelet " in line else []
        return next(reversed(named or last), None)
