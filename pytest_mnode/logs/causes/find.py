"""Search for known causes in any text: the output of a rank or a job, or an NCCL log. Pure."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from pytest_mnode.logs.causes.collectives import Collectives
from pytest_mnode.logs.causes.compared import differing, is_comparable
from pytest_mnode.logs.causes.culprits import (
    DEVICE,
    HOST,
    PEER,
    PORT,
    RANK,
    WHO,
    first,
    odd_ranks,
    rank_numbers,
    split_prefix,
    unredacted,
)
from pytest_mnode.logs.causes.raised import EXCEPTION, raised
from pytest_mnode.logs.causes.ras import LINE as RAS_LINE
from pytest_mnode.logs.causes.ras import Ras, causes_in_json
from pytest_mnode.logs.causes.table import Cause, KnownCause, Rule, candidates, known_cause
from pytest_mnode.logs.lines import began_in_tmp
from pytest_mnode.logs.nccl_log.gids import connection_failure, read_gid
from pytest_mnode.logs.nccl_log.model import NOBODY
from pytest_mnode.logs.nccl_log.text import as_printed, decoded, plain_text
from pytest_mnode.logs.node_names import node_in
from pytest_mnode.logs.training import step_in

_LONGEST = 1000
_NUMBER = re.compile(r"\d+", re.ASCII)
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_Hints = tuple[frozenset[re.Pattern[str]], tuple[Rule, ...], bool]
"""What the finder may learn from a line, the rules that may match it, and whether it is about a
step of training."""
_NOTHING: _Hints = (frozenset(), (), False)
_RULE = "-" * 16
_OF_RANK = re.compile(
    r"-+(?:Begin global rank (?P<rank>\d+)|End global rank \d+) STD(?:OUT|ERR)-+$"
)
STEPS_AFTER = 4
"""[choice] A job that does as many further steps has survived what happened before. Ranks that
share a log may be a step apart."""

_RETRIES = re.compile(r"\bretrying\b|\bwillRetry=1\b|\bwill retry\b", re.IGNORECASE)
_SERIES = re.compile(
    r"\b(?:retry(?:ing)?|attempt|try)\b[\s:#(]{0,3}(?P<number>\d{1,6})(?:/| of )(?P<of>\d{1,6})\b|"
    r"\bRetry\(total=(?P<left>\d{1,6})\b",
    re.IGNORECASE,
)
"""The number of a try and of all tries, or the number of those that are left."""
_HARMLESS = re.compile(
    r"\bset (?:by environment )?to (?!ERROR)|\bset by environment\b|"
    r"\bsshd\[\d+\]: |\becho ['\"]|(?i:\b(?:restart|requeue|resume)s?[ _](?:on|if)\b)|"
    r"(?:NODE_FAIL|PREEMPTED|TIMEOUT)\W{1,4}(?:or )?(?:NODE_FAIL|PREEMPTED|TIMEOUT|OUT_OF_ME)|"
    r"\b(?i:fail\w*|errors?|time-?outs?)(?: count)?[:=] ?0(?=[\s,;)}\]]*$)|\): ?0$|"
    # Daemons of a node share its memory, and are no part of a job.
    r"Killed process \d+ \((?:prometheus|node_?export|telegraf|fluent|filebeat|promtail|vector\)|"
    r"otel|datadog|kubelet|containerd|dcgm|nv-hostengine|snapd|systemd|calico|cilium|kube-|etcd)|"
    r"client socket has failed to connect to \[|failed to shutdown the rendezvous|"
    r"\b(?:Readiness|Startup) probe failed|Xid .*\bNonfatal\b|\(ignored\)$|"
    r"\b(?i:install(?:s|ed|ing)?|regist(?:er|ered|ering)|set(?:ting)? ?up|add(?:ed|ing)|ignor\w+)\b"
    r".*\bSIG[A-Z]{3,}|\btrap ['\"].*SIG[A-Z]{3,}|"
    r"\bSIG[A-Z]{3,}\b.*\b(?i:install|regist|handler|ignored)|"
    r"Python is likely shutting down|\breducing (?:the )?batch size|failed, trying batch size|"
    # In the first 300 s of a node [choice], ports are down that come up, or that nobody uses.
    r"\[ *[12]?\d{1,2}\.\d+\] .*\bLink (?:is )?(?i:down)\b|"
    # Of the processes of a node, one gets the port of NCCL's RAS.
    r"\bras/\w+\.cc:\d+.* Call to bind failed"
)
_MISREAD = ("ranks' collectives differ", "stray connection")
_OF_TWO = re.compile(r"\brank (\d+) version (\d+)")
_LOOPBACK = re.compile(r"127\.|::1$")
_ANNOUNCED = "loopback address announced"
"""Gloo warns of it on each machine without a network, too: nobody else has to reach it there."""
_OTHER_NAME = re.compile(  # /etc/hosts, of a loopback address, and ibstat
    r"^(?:\S+: +)?(?P<name>(?:127|0)\.\d+\.\d+\.\d+|::1)\s+(?P<host>(?!localhost|ip6-)[a-z][\w.-]*)"
    r"|^(?P<host2>[\w.-]+): \s*Base (?P<name2>lid: +\d+)$"
)
_NEGATED = re.compile(r"\b(?:no|without|never)\s+$", re.IGNORECASE)
_LOOKED_AT = 1000
_OF_START = (
    *("permission denied", "program not found", "file missing", "Python error"),
    *("library versions do not fit", "library or module missing"),
)
"""Without a rank or a traceback, scripts print these at their start and go on."""
_OF_SETUP = (
    *("network plugin failed", "network plugin not found", "no RDMA resources", "NVLS not set up"),
    *("RDMA library missing", "RDMA library missing for NCCL", "topology not read"),
    *("no such interface", "SHARP failed", "IMEX not ready"),
)
"""NCCL warns of these and does without, or no rank comes to a step."""
_STAYS = ("values not finite",)
"""Causes with which a job goes on without use."""
_ENDS = ("aborted", "ended by the launcher")
_UNRESOLVED = re.compile(r"network addresses of \([^()]+\) cannot be retrieved")
_GAVE_UP = re.compile(r"client socket has (?:timed out|failed to connect to any)")
_INFO = re.compile(r"NCCL (?:INFO|TRACE)\b|UCX +(?:DIAG|INFO|DEBUG|TRACE|REQ|DATA)\b")

_COMM = re.compile(r" rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) ")
_VERSION = re.compile(r"\bNCCL version (?P<version>\d+\.\d+\.\d+)")
_LISTED = re.compile(
    r"Failures:$|(?P<first>Root Cause \(first observed failure\))|(?P<alone><NO_OTHER_FAILURES>)"
)
"""Torchrun lists later failures before the first one, which is the cause."""
# MPICH, Hydra, Open MPI, scontrol and SGLang print rank or host before the failure itself.
_OF_EXCEPTIONS = ("1", "-6")
"""Exit codes of ranks that raised an exception, or aborted."""
_NAMED = re.compile(
    r"MPICH ERROR \[Rank (?P<rank>\d+)\] .* \[(?P<host>[\w.-]+)\] - Abort|"
    r"Abort\(\d+\) on node \d+ \(rank (?P<rank2>\d+) in comm|"
    r"PID \d+ RUNNING AT (?:\w+@)?(?P<host2>[\w.-]+)|"
    r"process rank (?P<rank3>\d+) with PID \d+ on node (?P<host3>[\w.-]+) exited on$|"
    r"^NodeName=(?P<host4>[\w.-]+) |(?:^|: )GPU (?P<gpu>[\dA-F]+:[\dA-F:.]+)$|"
    r"\bCA '(?P<gpu2>\w+)'$|\d TP(?P<rank4>\d+)\] Scheduler hit an exception|"
    # Of torch's checkpoints, all ranks print the exceptions of those that failed; and Ray's actors.
    r"Exception ranks:dict_keys\(\[(?P<failing>[\d, ]+)\]|"
    r"(?:^|\))\s+ip: (?P<host5>[\d.]+)$"
)
_BLOCK_GOES_ON = re.compile(
    r"^[A-Za-z_]\w+\(\d+\)\.*:|^[\w.]+(?:Error|Exception)\b|^=? +EXIT CODE: |^ *Remote host: |"
    r"^signal \d|^\s+\S|(?:^|\) )The actor is dead"
)
_EXITED = re.compile(
    r"srun: error: (?P<host>[\w.,[\]-]+): tasks? (?P<rank>[\d,-]+): Exited with exit code "
    r"(?P<code>\d+)"
)
_CHILD = re.compile(
    r"\b[Rr]ank:? (?P<rank>\d+)\b.{0,50} (?:terminated|crashed|exited|died) with (?:exit )?code "
    r"(?P<exitcode>-?\d+)"
)
"""Launchers of Lightning and Composer, of the process that ended first."""
_WELL_AGAIN = re.compile(
    r"(?P<server>(?<=nfs: server )\S+|\bmds\d+) (?:OK|came back|recovery completed)\b|"
    r"\bNode (?P<node>[\w.-]+) now responding\b"
)
"""What NFS, Ceph and Slurm only waited for. A node that was DOWN in between has lost its job."""
_PLACED = re.compile(r"\bRank (?P<rank>\d+), node (?P<host>[\w.-]+)")
_ENDS_ALL = re.compile(
    r"\bReceived sigquit from a child|\bsrun: (?:Job step aborted|Force Terminated)"
)
"""SGLang and Slurm then kill what still runs, and the shell or srun reports it."""
_AGENTS = (
    *("torch/distributed/elastic", "torch.distributed.elastic", "torch/distributed/run"),
    *("torch/distributed/launch", "deepspeed/launcher", "deepspeed.launcher"),
    "accelerate.commands",
)
"""Launchers that start the ranks of a node: below srun, its tasks are nodes and no ranks."""
_KILLED_LATE = re.compile(r"^Killed$|^srun: error: \S+: tasks? [\d,-]+: Killed$")
_OF_OTHERS = ("0", "15", "143")
"""Exit codes of tasks that ended well, or by SIGTERM."""
_WAITED = ("rendezvous failed", "rank did not join", "host did not accept a connection")
_ASSIGNED = re.compile(r"Successfully assigned (?:[\w.-]+/)?(?P<pod>[\w.-]+) to (?P<node>[\w.-]+)")
_DESCRIBED = re.compile(r"(?:Name: +(?P<name>[\w.-]+)|\s*\"?metadata\"?: ?\{?)$")
_DESCRIBED_ON = re.compile(r"\s*(?:Node: +|\"?nodeName\"?: ?\"?)(?P<node>[\w.-]+)|IP: +(\S+)$")
_DESCRIBED_STATUS = re.compile(
    r"\s*-? *\"?(?:reason|message|exit ?code|last ?state|state|status|signal)\"?:", re.IGNORECASE
)
"""`kubectl describe`, of pods and nodes, and an object as JSON or YAML: its node stands above its
state."""
_STARTED = re.compile(
    r"Successfully assigned|Started container|pod group is ready|Admitted by ClusterQueue"
)
_RETRIED = (
    *("not scheduled", "GPU not given to the pod", "volume not mounted"),
    *("pod network failed", "image not pulled", "container not created"),
)
"""Causes after which Kubernetes retries: they no longer apply once the pod starts."""
_SLOWED = "GPU slowed down"
_ENDS_PODS = ("host out of memory", "disk full", "process limit")
_EVENT_OF = re.compile(r"\bpod/([\w.-]+)")
_ADDRESS = re.compile(
    r"NCCL INFO (?:Bootstrap|NET/\w+) ?: ?Using .*?(?P<nic>[\w.-]+):(?P<ip>\d+\.\d+\.\d+\.\d+)<"
)
_NAMED_BY_NET = re.compile(r"\[\d+\]([\w.-]+)")
_CARRIES = (
    (re.compile(r"NCCL INFO NET/IB ?: ?Using (.+)"), _NAMED_BY_NET),
    (re.compile(r"NCCL INFO Using network (?!Socket)(.+)"), re.compile(r"^\S+")),
    (re.compile(r"NCCL INFO NET/Socket ?: ?Using (.+)"), _NAMED_BY_NET),
    (
        re.compile(r"NCCL_SOCKET_IFNAME\b[^=\n]{0,30}?(?:=|to )[\"']?=?([\w.,-]+)"),
        re.compile(r"[\w.-]+"),
    ),
)
"""Lines of the network that is used, the weightiest first, and the devices in them."""
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
    return sorted(found, key=lambda cause: (not cause.root, cause.order, -cause.known))


class Causes:
    """All causes in files of one job, by the names of these, in no order.

    silent: see `Attempt.silent`. failed: ranks whose failure torchrun or srun observed first.
    earlier: of attempts before the last one, and of other jobs. hosts: of ranks of the largest
    communicator of NCCL, and of those that torchrun, Megatron or a prefix name with their nodes.
    every_host: of it, if all its ranks are known. apart: hosts with another interface than most.
    What watchdogs say is compared over all files.
    """

    def __init__(self, texts: Mapping[str, str | bytes]) -> None:
        collectives = Collectives()
        whole = [one if isinstance(one, str) else decoded(one) for one in texts.values()]
        by_agents = any(name in one for one in whole for name in _AGENTS)
        # Ray leaves out equal lines of other ranks.
        is_whole = not any("x across cluster]" in one for one in whole)
        every = [_Finder(collectives, name, text, by_agents) for name, text in texts.items()]
        attempts = collectives.attempts()
        timed_out = {rank for attempt in attempts for rank, *_ in attempt.works}
        self.silent = attempts[-1].silent(texts) if attempts and is_whole else ()
        self.found = [(one.file, cause) for one in every for cause in one.all(timed_out)]
        self.found += attempts[-1].causes() if attempts else ()
        self.earlier = [one for attempt in attempts[:-1] for one in attempt.causes()]
        self.earlier += [(one.file, cause) for one in every for cause in one.survived]
        placed = [(size, rank, who[0]) for one in every for who, (rank, size) in one.ranks.items()]
        largest = max((size for size, *_ in placed), default=0)
        self.failed = {rank for one in every for rank in one.failed}
        self.hosts = {rank: host for one in every for rank, host in one.places.items()}
        of_world = {rank: host for size, rank, host in placed if size == largest and host}
        self.hosts |= of_world
        self.every_host = set(of_world.values()) if len(of_world) == largest else set()
        self.found += _of_versions(every, self.found)
        used = {pair for one in every for pair in one.addresses}
        others = [(one.file, *other) for one in every for other in one.other_names]
        used |= {(name, host) for _, name, host, _ in others if name.startswith("lid=")}
        counts = Counter(ip for ip, _ in used)  # containers of several nodes may have the same
        at = {ip: host for ip, host in used if counts[ip] == 1}
        self.found = [
            (file, replace(one, peer=at.get(one.peer or "", one.peer))) for file, one in self.found
        ]
        versions = [pair for _, one in self.found for pair in _OF_TWO.findall(one.detail or "")]
        odd = odd_ranks({int(rank): version for rank, version in versions})
        peers = {one.peer for _, one in self.found if one.peer}
        loopbacks = {*filter(_LOOPBACK.match, peers)}
        not_met = any(one.name in (_ANNOUNCED, "gloo not connected") for _, one in self.found)
        named = (*self.hosts.values(), *at.values(), *texts, *(c.host or "" for _, c in self.found))
        known = {name.partition(".")[0] for name in named}
        self.found += [
            (file, Cause(known_cause(_ANNOUNCED), line, host=host, detail=name))
            for file, name, host, line in others
            if not_met
            and name in loopbacks  # and neither a registry's name nor a container's
            and (
                (short := host.partition(".")[0]) in known
                or re.search(rf"\b{re.escape(short)}\b", f"{file}:{line.partition(name)[0]}")
            )
        ]
        warned = any(one.name == _ANNOUNCED and not one.by_victim for _, one in self.found)
        slowed = {(one.detail or "")[:3] for _, one in self.found if one.name == _SLOWED} - {"HW "}
        nodes = {name: host for _, name, host, _ in others}
        ended = {one.host for _, one in self.found if one.name in _ENDS_PODS} - {None}

        preempted = {one.host for _, one in self.found if one.name == "preempted"} - {None}

        def explained(one: Cause) -> Cause:
            """A pod that was ended for what it used of its node is lost with its daemons, and one
            that was preempted waits for room."""
            lost = one.name == "node lost" and nodes.get(one.host or "") in ended
            if lost or (one.name == "not scheduled" and one.host in preempted):
                return replace(one, kind=replace(one.kind, root=False))
            is_of_two = _OF_TWO.search(one.detail or "")
            return replace(one, ranks=odd, host=_with_odd_version(every)) if is_of_two else one

        with_ibstat = {host for _, name, host, _ in others if name.startswith("lid=")}
        self.earlier += [
            pair for pair in self.found if _is_used(pair[1], self.found, with_ibstat) is None
        ]
        self.found = [
            (file, explained(one))
            for file, one in self.found
            if _is_used(one, self.found, with_ibstat)
            and (one.name != _ANNOUNCED or (loopbacks and one.by_victim is not warned))
            and (one.name != _SLOWED or slowed)
        ]
        self.apart = self._compare(every, dict(zip(texts, whole, strict=True)))

    def _compare(self, every: Sequence[_Finder], texts: Mapping[str, str]) -> Collection[str]:
        """Find what differs between nodes; returns hosts with another interface than most."""
        self.found += _of_interface(every, peers={one.peer for _, one in self.found})
        nics = {host: nic for one in every for (_, host), (nic, _) in one.addresses.items()}
        printed = {
            name: "\n".join(_lines(text)) if is_comparable(text) else ""
            for name, text in texts.items()
        }
        hosts = {*nics, *self.hosts.values()} - {None}
        self.found += differing(printed, _carry_data(texts.values()) or {*nics.values()}, hosts)
        odd_hosts = odd_ranks(nics)  # all, if none or half of them are
        return odd_hosts if len(odd_hosts) < len(nics) else ()


def _carry_data(texts: Collection[str]) -> Collection[str]:
    """How the names of devices begin that carry data, as far as NCCL's logs or settings tell; or a
    network of which they do not tell the devices."""
    for line, name in _CARRIES:
        lines = (of for text in texts for of in line.findall(text))
        if found := {device for of in lines for device in name.findall(of)}:
            return found
    return ()


def _is_used(port: Cause, found: Sequence[tuple[str, Cause]], with_ibstat: set[str]) -> bool | None:
    """Whether it is no port without a link that none needs: others do not reach its node, by no
    other device, and no other node has it alike. None if neither device nor another node tells."""
    if port.detail not in ("Polling", "Disabled"):
        return True
    reported = [one.device or "" for _, one in found if port.host and one.peer == port.host]
    devices = {device.partition(":")[0] for device in reported}
    alike = {one.host for _, one in found if (one.device, one.detail) == (port.device, port.detail)}
    if not devices or len(alike) > 1 or (devices != {""} and port.device not in devices):
        return False
    return port.device in devices or bool(with_ibstat - {port.host}) or None


def _of_versions(
    every: Sequence[_Finder], found: Sequence[tuple[str, Cause]]
) -> Iterator[tuple[str, Cause]]:
    """That files name different versions of NCCL, if ranks did not understand each other."""
    misread = [file for file, one in found if one.name in _MISREAD]
    versions = {one.version: one for one in every if one.version}
    if misread and len(versions) > 1:
        texts = (f"{version} in {one.file}" for version, one in sorted(versions.items()))
        kind = known_cause("ranks run different versions")
        first_file = next(iter(versions.values()))
        yield first_file.file, Cause(kind, first_file.version_line, detail=", ".join(texts))


def _with_odd_version(every: Sequence[_Finder]) -> str | None:
    """The only node whose file names another version of NCCL than two or more others."""
    versions = {node_in(PurePath(one.file).stem): one.version for one in every if one.version}
    odd = odd_ranks(versions) if len(versions) > 2 else ()
    return odd[0] if len(odd) == 1 and odd[0] else None


def _of_interface(
    every: Sequence[_Finder], peers: Collection[str | None]
) -> Iterator[tuple[str, Cause]]:
    """That others do not reach the only node whose interface and network are not those of all."""
    networks: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for one in every:
        for (ip, host), (nic, line) in one.addresses.items():
            network = ".".join(ip.split(".")[:2])
            networks.setdefault((nic, network), {})[host] = one.file, line
    if len(networks) != 2:
        return
    (own, few), (usual, most) = sorted(networks.items(), key=lambda item: len(item[1]))
    (host, (file, line)), *more = few.items()
    differs = own[0] != usual[0] and own[1] != usual[1]
    if differs and not more and len(most) > 1 and host not in most and host in peers:
        detail = f"{own[0]}, not {usual[0]}"
        yield file, Cause(known_cause("interface differs"), line, host=host, detail=detail)


def _groups(match: re.Match[str]) -> dict[str, str]:
    """What a pattern names. Of groups of one name with numbers, the first that matched counts."""
    named = sorted(match.groupdict().items(), reverse=True)
    return {name.rstrip("2345"): value for name, value in named if value}


def is_peer_lost(text: str) -> bool:
    """Whether the text shows the loss or the absence of another rank, and no root cause.

    The end of a process shows neither: the rank may have aborted after an error of its own, and
    the process that a launcher or a test started is no rank.
    """
    found = [cause for cause in causes(text) if cause.name not in _ENDS]
    return bool(found) and (not found[0].root or found[0].name == "rank did not join")


_WATCHDOG = re.compile("atchdog| work")
_OF_PODS = (_ASSIGNED, _DESCRIBED, _DESCRIBED_ON, _STARTED)
_TELLING = (
    *(_VERSION, _COMM, _CONNECTED, _STEP_CREATED, _LISTED, _SUMMARY, _NAMED, _TESTED, _RETRIES),
    *(*_OF_PODS, _ADDRESS, RAS_LINE, _WATCHDOG, _EXITED, _CHILD, _WELL_AGAIN, _PLACED),
    *(_ENDS_ALL, _OTHER_NAME),
)


@lru_cache(maxsize=4096)
def _hints(shape: str) -> _Hints:
    """shape: a line with all numbers replaced: those of all steps have one shape."""
    tells = frozenset(one for one in _TELLING if one.search(shape))
    return tells, candidates(shape), step_in(shape) is not None


def _lines(text: str | bytes) -> list[str]:
    """Lines as programs print them, out of what collectors and Kubernetes made of them."""
    lines = [
        part.rstrip()
        for line in plain_text(text).lines
        for part in (as_printed(line).splitlines() if line.startswith("{") else (line,))
    ]
    if any('"involvedObject"' in line for line in lines):
        return _of_events(lines)
    has_blocks = _RULE in lines or any(line.startswith("-----") for line in lines)
    return [*_of_blocks(lines)] or [""] if has_blocks else lines


def _of_blocks(lines: Sequence[str]) -> Iterator[str]:
    """Lines with what a block is of before each: its node, as pdsh prints it without dshbak, or the
    rank of Composer's."""
    prefix, at = "", 0
    while at < len(lines):
        is_head = [lines[at], *lines[at + 2 : at + 3]] == [_RULE, _RULE]
        if is_head:
            prefix = f"{lines[at + 1]}: "
        elif block := _OF_RANK.match(lines[at]):
            prefix = f"[rank{block['rank']}]: " if block["rank"] else ""
        else:
            yield prefix + lines[at]
        at += 3 if is_head else 1


def _of_events(lines: Sequence[str]) -> list[str]:
    """Events of Kubernetes in JSON as `kubectl get events` prints them; other lines as they are."""

    def printed(event: Mapping[str, Any]) -> str:
        of, source = event["involvedObject"], event.get("source", {}).values()
        words = [
            event.get("lastTimestamp") or "",
            event["type"],
            event["reason"],
            ", ".join(source),
        ]
        return " ".join([*words, f"{of['kind'].lower()}/{of['name']}", *event["message"].split()])

    try:
        return [printed(event) for event in json.loads("\n".join(lines))["items"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return [*lines]


def _is_last_try(line: str) -> bool:
    """Whether the line reports the last of several tries."""
    tries = _SERIES.search(line)
    return bool(tries and (tries["left"] == "0" or tries["of"] == tries["number"] is not None))


def _is_retried(line: str) -> bool:
    """Whether the line reports a failure after which there is another try."""
    return "retry" in line.lower() and bool(_RETRIES.search(line)) and not _is_last_try(line)


class _Finder:
    """Reads the lines of a file and keeps the facts that later lines need."""

    def __init__(
        self,
        collectives: Collectives,
        file: str,
        text: str | bytes,
        by_agents: bool,
    ) -> None:
        self.file = file
        self._by_agents = by_agents
        self._found: dict[tuple[str, ...], Cause] = {}
        # The last line of each cause, by its number.
        self._last_at: dict[tuple[str, ...], int] = {}
        self._at = 0
        # Keys of warnings of a set-up that succeeded in the end.
        self._done_without: set[tuple[str, ...]] = set()
        self._collectives = collectives
        self._ras = Ras()
        # The rank of an NCCL process in its largest communicator, and the size of that.
        self.ranks: dict[tuple[str | None, ...], tuple[int, int]] = {}
        # Rank and host of the process that the next line is about, from the lines before it.
        self._block: dict[str, str] = {}
        self._later_failures = False
        # By host, the block of the failure that torchrun observed first.
        self._first_failures: dict[str | None, dict[str, str]] = {}
        self._failed_alone = False
        # Hosts on which srun saw a task end by itself, and these tasks.
        self._exited: dict[str, str] = {}
        self.places: dict[int, str] = {}
        # Interfaces of addresses of ranks and their nodes, and the lines that tell.
        self.addresses: dict[tuple[str, str], tuple[str, str]] = {}
        # What else names a node, this node, and the lines that tell.
        self.other_names: list[tuple[str, str, str]] = []
        self._all_ended = False
        # Line about a name that was not resolved, which is a cause once the client gives up.
        self._unresolved = self._tested = self.version = self.version_line = ""
        # Nodes of Kubernetes by pod, in the order of the events that name them.
        self._nodes: dict[str, str] = {}
        # Keys of the causes found before the description of the current pod.
        self._of_others: set[tuple[str, ...]] = set()
        self._described_on: str | None = None
        self._described: str | None = None
        lines = _lines(text)
        text = "\n".join(lines)
        shapes = text.encode(errors="surrogatepass").translate(_ZEROS).split(b"\n")
        # Events may be listed in any order.
        assigned = (_ASSIGNED.search(line) for line in lines if "Successfully assigned" in line)
        self._assigned = {one["pod"]: one["node"] for one in assigned if one}
        self._raised = raised(lines) if "Traceback (most" in text else {}
        hints: dict[bytes, _Hints | None] = {}
        steps: list[int] = []
        before = 0
        for at, shape in enumerate(shapes):
            if shape not in hints:
                known = _hints(_NUMBER.sub("0", lines[at][:_LONGEST]))
                hints[shape] = known if any(known) else None
            known_hints = hints[shape] or (_NOTHING if at in self._raised else None)
            if known_hints is None or (at and lines[at] == lines[at - 1]):
                continue
            *hinted, is_step = known_hints
            if is_step:
                steps.append(at)
            if not any(hinted) and at not in self._raised:
                continue
            self._at = at
            for between in lines[before:at] if self._block else ():
                self._end_block(between)
            self._read(lines[at][:_LONGEST], *known_hints[:2])
            before = at + 1
        self._in_json = causes_in_json(text)
        survived = [
            key
            for key in self._found
            if key in self._done_without or self._is_over(key, lines, steps)
        ]
        self.survived = tuple(self._found.pop(key) for key in survived)

    def _end_block(self, line: str) -> None:
        label = line.removesuffix(split_prefix(line)[1]).rstrip()  # what follows may be indented
        if self._block and not _BLOCK_GOES_ON.search(line[len(label) + bool(label) :]):
            self._block = {}

    def _read(self, line: str, tells: frozenset[re.Pattern[str]], rules: tuple[Rule, ...]) -> None:
        """Read a line that may contain a cause, or tells of one."""
        if _WATCHDOG in tells and self._collectives.read(line, self.file):
            return
        self._learn(line, tells)
        ended = self._raised.get(self._at)
        is_later = self._later_failures and "exitcode" in self._block
        if is_later or not (rules or ended) or (ended and ended.ignored):
            return
        if self._unresolved and _GAVE_UP.search(line):
            line, self._unresolved = self._unresolved, ""
            self._raised.pop(self._at, None)
            _, rules, _ = _hints(_NUMBER.sub("0", line))
        elif _UNRESOLVED.search(line):  # torch tries again
            self._unresolved = line
            return
        cause = self._cause_of(line, rules)
        if cause is None or _HARMLESS.search(line) or began_in_tmp(line):
            return
        if _is_retried(line) and not _STEP_WAITS.search(line):
            return
        if self._all_ended and _KILLED_LATE.search(split_prefix(line)[1]):
            return
        self._keep(cause)

    def _keep(self, cause: Cause) -> None:
        parts = (cause.host, cause.device, cause.peer, cause.detail)
        key = (cause.name, *(part or "" for part in parts))
        self._last_at[key] = self._at
        self._done_without.discard(key)
        known = self._found.setdefault(key, cause)
        ranks = tuple(sorted({*known.ranks, *cause.ranks}))
        self._found[key] = replace(known, ranks=ranks)

    def _learn(self, line: str, tells: frozenset[re.Pattern[str]]) -> None:
        """Keep what the line tells about later ones, and drop causes that it shows to be over."""
        if _COMM in tells:
            self._learn_rank(line)
        if _CONNECTED in tells or (_RETRIES in tells and "NCCL" in line and _is_retried(line)):
            self._drop_warnings(line)
        if _STEP_CREATED in tells and (job := first(_STEP_CREATED, line)) is not None:
            waits = "job step waits"
            self._drop(lambda o: o.name == waits and first(_STEP_WAITS, o.line) in (None, job))
        if _LISTED in tells and (listed := _LISTED.search(line)) is not None:
            self._later_failures = listed["first"] is None
            self._failed_alone |= listed["alone"] is not None
        if _CHILD in tells and (child := _CHILD.search(line)) and child["exitcode"] != "0":
            self._first_failures = self._first_failures or {None: child.groupdict()}
        if _TESTED in tells:
            self._tested = first(_TESTED, line) or self._tested
        if _VERSION in tells and not self.version and (version := first(_VERSION, line)):
            self.version, self.version_line = version, line
        self._learn_block(line, tells)
        self._learn_nodes(line, tells)
        if not tells.isdisjoint(_OF_PODS):
            self._learn_pod(line)
        if RAS_LINE in tells:
            self._ras.read(line, split_prefix(line)[1])

    def _learn_nodes(self, line: str, tells: frozenset[re.Pattern[str]]) -> None:
        """Which nodes a line is about, and what of them is well again."""
        exited = _EXITED.search(line) if _EXITED in tells else None
        if exited and exited["code"] not in _OF_OTHERS:
            tasks = self._exited.get(exited["host"])
            self._exited[exited["host"]] = ",".join(filter(None, [tasks, exited["rank"]]))
            if not self._by_agents and not {*"[,"} & {*exited["host"]}:
                self.places |= dict.fromkeys(rank_numbers(exited["rank"]), exited["host"])
        if _WELL_AGAIN in tells and (well := _WELL_AGAIN.search(line)) is not None:
            over = ("file system failed", well["server"]), ("node lost", well["node"])
            self._drop(lambda one: (one.name, one.peer or one.host) in over and one.detail is None)
        if _ADDRESS in tells and (used := _ADDRESS.search(line)) and (who := WHO.search(line)):
            self.addresses[used["ip"], who["host"]] = used["nic"], line
        if _PLACED in tells and (placed := _PLACED.search(line)) is not None:
            self.places[int(placed["rank"])] = placed["host"]
        if _OTHER_NAME in tells and (other := _OTHER_NAME.search(line)) is not None:
            named = _groups(other)
            self.other_names.append((re.sub(": +", "=", named["name"]), named["host"], line))
        self._all_ended |= _ENDS_ALL in tells

    def all(self, timed_out: set[int]) -> Iterator[Cause]:
        """Its causes; those of these ranks' watchdogs are left to the collectives of all files."""
        for cause in self._ras.causes():
            self._keep(cause)
        for cause in (*self._found.values(), *self._in_json):
            told = timed_out and timed_out.issuperset(cause.ranks)
            if cause.name != "collective timed out" or not told:
                yield self._on_failed_host(cause)

    def _is_over(self, key: tuple[str, ...], lines: Sequence[str], steps: Sequence[int]) -> bool:
        """Whether training went on after the last line of this cause, to further steps than
        before: a file may have the output of one rank after that of another.

        steps: numbers of the lines about steps.
        """
        after = bisect_right(steps, self._last_at[key])
        earlier = steps[max(0, after - _LOOKED_AT) : after]
        later = steps[after:][-_LOOKED_AT:]
        of_start = key[0] in _OF_START and not self._found[key].ranks
        at_start = key[0] in _OF_SETUP or (of_start and self._last_at[key] not in self._raised)
        if not (earlier or at_start) or len(later) < STEPS_AFTER or key[0] in _STAYS:
            return False
        reached = max((step_in(lines[at]) or 0 for at in earlier), default=-1)
        numbers = {step_in(lines[at]) or 0 for at in later}
        return sum(number > reached for number in numbers) >= STEPS_AFTER

    @property
    def failed(self) -> tuple[int, ...]:
        """Ranks whose failures torchrun observed first, or srun alone, if it did not end it."""
        failures = self._first_failures
        if not failures and len(self._exited) == 1 and not self._by_agents:
            return rank_numbers(*self._exited.values())
        ended = (one for one in failures.values() if one.get("exitcode") != "-15")
        return rank_numbers(",".join(one.get("rank", "") for one in ended))

    def _on_failed_host(self, cause: Cause) -> Cause:
        """With the host whose ranks raised it, and the only one that did, as torchrun or srun name
        them below: imports come before torch prints ranks."""
        failures = [*self._first_failures.values()]
        failure = failures[0] if len(failures) == 1 else {}
        if not cause.known and not failures and cause.root and cause.name not in _WAITED:
            victims = (one for one in self._found.values() if not one.root)
            if any(not one.known and one.name not in _ENDS for one in victims):
                return cause  # two ranks raised, and the first to fail may hang at its end
            host = next(iter(self._exited)) if len(self._exited) == 1 else None
            return replace(cause, host=host if host and not {*"[,"} & {*host} else None)
        if cause.known or failure.get("exitcode") not in _OF_EXCEPTIONS:
            return cause
        ranks = rank_numbers(failure.get("rank", "")) if self._failed_alone else ()
        return replace(cause, ranks=ranks, host=unredacted(failure.get("host")))

    def _learn_rank(self, line: str) -> None:
        comm, who = _COMM.search(line), WHO.search(line)
        if comm and who and (size := int(comm["size"])) > self.ranks.get(who.groups(), (0, 0))[1]:
            self.ranks[who.groups()] = (int(comm["rank"]), size)

    def _learn_block(self, line: str, tells: frozenset[re.Pattern[str]]) -> None:
        if _SUMMARY in tells and (summary := _SUMMARY.search(line)) is not None:
            self._block = {**self._block, summary["key"].lower(): summary["value"]}
            if not self._later_failures and "exitcode" in self._block:
                self._first_failures[self._block.get("host")] = self._block
            if summary["key"] == "rank" and summary["value"].isdecimal():
                host = unredacted(self._block.get("host"))
                self.places |= {int(summary["value"]): host} if host else {}
        elif _NAMED in tells and (named := _NAMED.search(line)) is not None:
            self._block = _groups(named)
        else:
            self._end_block(line)

    def _learn_pod(self, line: str) -> None:
        if (assigned := _ASSIGNED.search(line)) is not None:
            self._nodes[assigned["pod"]] = assigned["node"]
        if described := _DESCRIBED.match(line):
            self._of_others, self._described_on = set(self._found), None
            self._described = described["name"]
        elif (on := _DESCRIBED_ON.match(line)) is not None:
            self._described_on = on["node"] or self._described_on
            if (name := on[2] or self._described) and self._described_on:
                self.other_names.append((name, self._described_on, line))
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
        process = who.group("host", "pid") if who and who["pid"] else None

        def is_earlier(cause: Cause) -> bool:
            earlier = WHO.search(cause.line)
            return earlier is not None and earlier.group("host", "pid") == process

        self._drop(lambda one: _CONNECTING.search(one.line) is not None and is_earlier(one))
        if _CONNECTED.search(line):
            self._done_without |= {
                key for key, one in self._found.items() if key[0] in _OF_SETUP and is_earlier(one)
            }

    def _drop(self, is_over: Callable[[Cause], bool]) -> None:
        self._found = {key: one for key, one in self._found.items() if not is_over(one)}

    def _cause_of(self, line: str, rules: Sequence[Rule]) -> Cause | None:
        prefix, body = split_prefix(line)
        ended = self._raised.get(self._at)
        body = ended.body if ended else body
        # NCCL prints its last try to connect as INFO too.
        is_info = _INFO.search(body) is not None and not _is_last_try(body)
        for rule in rules:
            if is_info and not rule.kind.in_info:
                continue
            match = rule.pattern.search(body)
            if match is not None and not _NEGATED.search(body, 0, match.start()):
                return self._cause(rule.kind, match, line.strip(), prefix)
        if ended and (match := EXCEPTION.match(ended.body)):
            return self._cause(known_cause("Python error"), match, line.strip(), prefix)
        return None

    def _cause(
        self, kind: KnownCause, match: re.Match[str], line: str, prefix: Mapping[str, str]
    ) -> Cause:
        body = match.string
        groups = _groups(match)
        gid = read_gid(NOBODY, body) if "modify_qp" in body or "completion" in body else None
        name = connection_failure(gid) if gid is not None and "modify_qp" in body else None
        if groups.get("joined") and int(groups["joined"]) > int(groups["world"]):
            name = "store used by another run"
        if name is not None:
            kind = known_cause(name)
        who = WHO.search(line)
        keys = ("torch", "vllm", "vllm_tp", "mpi", "srun", "bracket")
        labels = (prefix.get(key) for key in keys if key != "srun" or not self._by_agents)
        of_prefix = next(filter(None, labels), self._block.get("rank"))
        # Torch's prefix has the rank in the world, its message that in a process group.
        of_task = self._by_agents and (rank := RANK.search(body)) and rank.lastgroup == "srun"
        of_writer = prefix.get("torch") or (None if of_task else first(RANK, body)) or of_prefix
        ended = self._raised.get(self._at)
        of_writer = of_writer or (ended.rank if ended else None)
        failing = (ended.failing if ended else None) or self._block.get("failing")
        named = groups.get("rank") or failing or of_writer
        ranks = rank_numbers(f"{named or ''},{groups.get('other', '')}")
        if not ranks and who is not None and who.groups() in self.ranks:
            ranks = (self.ranks[who.groups()][0],)
        host = groups.get("host") or (who["host"] if who else None) or first(HOST, body)
        labels = (prefix.get(key) for key in ("ip", "pod", "pdsh", "compose"))
        on = unredacted(next(filter(None, labels), None))
        if on and "torch" in prefix:
            self.places.setdefault(int(prefix["torch"]), on)
        host = host or on or self._block.get("host") or self._node_of_pod(line)
        peer = groups.get("peer") or first(PEER, body)
        detail = groups.get("detail", "").strip() or None
        if groups.get("joined"):
            detail = f"{groups['joined']} of {groups['world']} ranks joined"
            ranks = ranks if kind.by_victims else ()
        port = groups.get("port") or (first(PORT, body) if peer else None)
        if port and not detail:
            detail = f"port {port}"
        if gid is not None and gid.local and gid.remote:
            detail = f"{gid.error or 'failed'}, {gid.local} to {gid.remote}"
            peer = peer or gid.remote
        device = groups.get("device") or first(DEVICE, body)
        device = device or (self._tested if _FAILED_STATUS.search(body) else self._block.get("gpu"))
        host, device, peer = map(unredacted, (host, device, peer))
        return Cause(kind, line, ranks=ranks, host=host, device=device, peer=peer, detail=detail)

    def _node_of_pod(self, line: str) -> str | None:
        """Node of an event's pod; `kubectl describe` does not print the pod's name with it."""
        if self._described_on and (_DESCRIBED_STATUS.match(line) or " kubelet " in line):
            return self._described_on
        named = [node for pod, node in {**self._assigned, **self._nodes}.items() if pod in line]
        last = list(self._nodes.values()) if " kubelet " in line else []
        return next(reversed(named or last), self._described if "Kubelet" in line else None)
