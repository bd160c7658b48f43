"""Rank, host, device and peer that a line names. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

# Prefixes that schedulers, launchers and torch print before a line; groups identify its writer.
_PREFIX = re.compile(
    r"(?:\s|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?:?|"
    r"\w{3} \w{3} +\d+ [\d:]{8} \d{4}|\d\d:\d\d:\d\d[\d.,]*|"
    r"stdout F |stderr F |(?P<srun>\d{1,6}): |"
    # Lines and errors in JSON, as Docker and torchrun's @record write them.
    r"""\{?"(?:message|log|msg)"\s*:\s*(?:"|(?=\{))|"""
    # Open MPI 4 and 5 (with its job's name, and host and pid), and SageMaker's mpirun.
    r"(?:\[(?:[\w.@-]+,)?(?:mpirank:)?(?P<mpi>\d+)(?:,[\w-]+)?\](?:\[[\w.:-]+\])?)?<std\w+>:|"
    # Torchrun prints the name of a role, which is "default" if none is given.
    r"\[[rR]ank ?(?P<torch>\d+)\]:?|\[[a-z]+\d+\]:|[\w.-]+/\d+ (?=\[[a-z]+\d+\]:)|"
    r"\[(?P<bracket>\d{1,6})\]: ?(?=\S)|"
    # Of Ray and vLLM; the names of vLLM's workers hold their rank if there is no other dimension.
    r"\((?:raylet|(?:\w+ rank=(?P<vllm>\d+) |Worker_TP(?P<vllm_tp>\d+) |[\w-]+(?:, rank=\d+,)? )?"
    r"pid=\d+)(?:, ip=(?P<ip>[\w.:]+))?\)|"
    r"(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w.]+:\d+\]|"
    r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\]|"
    r"(?P<pdsh>(?!slurmstepd|python|nvidia-|ibv_|rdma_|cuda|mlx|bnxt|hfi|nvme|"
    r"(?:efa|eth|bond|rank|gpu|step|line)[\d_.]*:)"
    r"(?:(?:\d{1,3}\.){3}\d{1,3}|[a-z][\w.-]*\d|"
    # Without a number it may be any word.
    r"[a-z][\w.]*-[\w.-]*(?=: (?:\[|  |Traceback |\w+(?:Error|Exception)\b)))): |"
    r"(?P<compose>[\w.-]+) +\| )"
)
_GLUED = re.compile(r".{1,200}?(?=\[rank\d+\]:)")
"""Whatever stands before torch's own label: a collector's words, or a bar of progress."""
RANK = re.compile(
    r"\b[rR]ank(?::? |=)(?P<torch>\d{1,7})\]|\[(?P<own>\d+)\] is setting up NCCL|"
    r"\bprocess rank (?P<mpi>\d+) with PID|\bRankMonitorServer:(?P<monitor>\d+)|"
    r"\bfirst noticed rank (?P<jsrun>\d+)|"
    r"error: [\w.,[\]-]+: tasks? (?P<srun>[\d,-]+): |on rank (?P<abort>\d+)\b|"
    r"\(rank (?P<mpich>\d+) in comm |\]\[\[\d+,\d+\],(?P<ompi>\d+)\]|"
    r"(?:^|Error: )Rank (?P<megatron>\d{1,7})[:,] |"
    r"\b[rR]ank (?P<child>\d{1,7})\b.{0,20} (?:crashed|exited|died) with "
)
HOST = re.compile(
    r"\bon node (?P<mpi>(?!\d+ \(rank)[\w.-]+)|error: (?P<srun>[\w.,[\]-]+): tasks? [\d,-]+: |"
    r"\[(?P<ucx>(?!LINE:|RankMonitor|[\w.-]+\.(?:cc?|cpp|h|py):)[A-Za-z][\w.-]*):\d+"
    r"(?: *:\d+(?::\d+)?)?(?: (?:- |unique id )[^\]]+)?\]|"
    # With NODE FAILURE, another node has failed than the one that prints the line.
    r"\[(?P<mpich>[\w.-]+)\] - Abort\(|\[(?P<ompi>[\w.-]+)\]\[\[\d+,\d+\],\d+\]|"
    r"\b[Rr]ank \d+\b.*[,.] (?:[\w ]+: \d+, )?node:? (?P<megatron>[\w.-]+)(?=,|$)|"
    r"(?:STEP|JOB) [\w.]+ ON (?P<step>[\w.-]+) (?!.*NODE FAILURE)|"
    r"\bslurmstepd-(?P<slurm>[\w.-]+): |\bkubelet, (?P<kubelet>[\w.-]+)|"
    r"\snode/(?P<event>[\w.-]+)\s|"
    # Rows of `kubectl get pods`, with and without -o wide.
    r"^(?:[\w.-]+ +){1,2}\d+/\d+ +\S+ +\d+(?: \([^)]*\))? +\w+ +\S+ +(?P<wide>[\w.-]+)|"
    r"^(?:[\w.-]+ +)?(?P<row>[\w.-]+) +\d+/\d+ +[A-Z][\w:]+ +\d+ |"
    # Syslog and the journal, of programs that write about their own machine.
    r"^(?:\w{3} +\d+ [\d:.]+ )?(?P<syslog>[A-Za-z][\w.-]*) "
    r"(?:kernel|systemd[\w-]*|slurmd|kubelet|containerd|nv-fabricmanager|nvidia-imex)(?:\[\d+\])?: "
)
WHO = re.compile(
    r"(?:^|[\s>|\]:])(?P<host>(?!\d+:)[\w.-]{1,255}):(?:(?P<pid>\d{1,9}):\d{1,9}|[xX*#:]{1,19}) "
    r"\[(?P<device>\d{1,4})\] "
)
DEVICE = re.compile(
    r"\b((?:mlx[45](?:_[a-z]{1,4})?|bnxt_re(?:_bond)?|irdma|rdmap|ionic|qedr|hfi1|cxi|hsn|"
    r"erdma|mana|rxe|siw|efa|(?:ib|roce|iw)[pPso]?)_?\d\w*"
    r"(?::\d{1,3})?)\b|\b(?:on dev|hca) (\w+(?::\d{1,3})?)"
)
PEER = re.compile(
    r"\b(?:peer|from|to|address) (?P<nccl>[^\s<>]+)<\d+>|"
    r"(?:peer|remote=|connect|timeout|\berror) ?\[(?P<gloo>[^\]\s]+)\]|"
    r"connect to (?:any network address of )?\((?P<store>[^,()]+), \d|"
    r"connect to \[?(?P<c10d>[\w.:-]*?[\w.-])\]?:\d+ \(errno|"
    r"[Ff]ailed to connect to (?P<curl>[\w.-]+) port \d|"
    r"\bdial tcp \[?(?P<go>[\w.:-]*?[\w.-])\]?:\d+: |"
    r'(?:from "[\w.-]+" )to "(?P<hydra>[\w.-]+)"|'
    r"Peer host id: (?P<efa>[\w-]+)|Peer EFA addr: \S*\[(?P<address>[^\]]+)\](?!.*Peer host id)|"
    r"\bconnect\(\) to (?P<ompi>[\d.]+|[\da-f:]+) failed|"
    r"\(rank (?P<rank>\d+)\)(?! lost)|\bipv4:(?P<grpc>[\d.]+):\d+"
)
PORT = re.compile(
    r"\([^\s,()]+, (\d{1,5})\)|\]:(\d{1,5})\b|[\w.-]:(\d{1,5})(?: \(errno|: )|<(\d{1,5})>|"
    r"\bport[ :=]{1,3}(\d{1,5})\b"
)
# JAX numbers processes; longer numbers are those of the system.
RANK_OF_FILE = re.compile(
    r"(?<![a-z])(?<!local[-_])(?<!node[-_])(?<!group[-_])(?:(?:global[-_]?)?rank[-_]?|"
    r"proc(?:ess)?[-_]?(?=\d{1,4}(?!\d)))(\d{1,7})(?!\d)",
    re.IGNORECASE,
)
_REDACTED = re.compile(
    r"[xX*.#:?]*|0\.0\.0\.0|<.*>|none|redacted|(?:host_)?unknown|\.\.\.", re.IGNORECASE
)


def split_prefix(line: str) -> tuple[dict[str, str], str]:
    """The named parts of a line's prefix, and the line without it."""
    labels: dict[str, str] = {}
    at = 0
    while True:
        found = _PREFIX.match(line, at)
        if (found is None or found.end() == at) and "torch" not in labels:
            found = _GLUED.match(line, at)
        if found is None or found.end() == at:
            return labels, line[at:]
        labels |= {name: value for name, value in found.groupdict().items() if value}
        at = found.end()


def first(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group that a pattern finds."""
    found = pattern.search(text)
    return next(filter(None, found.groups()), None) if found else None


def unredacted(name: str | None) -> str | None:
    """A name without brackets; None if it was redacted."""
    if name is None or _REDACTED.fullmatch(name.strip("[]")):
        return None
    return name if "[" in name[1:] else name.strip("[]()")  # Slurm's elm[5-6] keeps its brackets


def rank_numbers(text: str) -> tuple[int, ...]:
    """Ranks in "3", "0, 2" or "0-3,7"; at most 4,097 of one range."""
    found: set[int] = set()
    for low, high in re.findall(r"(\d{1,7})(?:-(\d{1,7}))?", text):
        found.update(range(int(low), min(int(high or low), int(low) + 4096) + 1))
    return tuple(sorted(found))


def odd_ranks(said: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Ranks, or hosts, that say something else than most; all, if as many do as do not."""
    counts = Counter(said.values())
    odd = [rank for rank, one in said.items() if counts[one] < max(counts.values())]
    return tuple(sorted(odd or said))
