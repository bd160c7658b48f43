"""The variables of a job's ranks, judged over all ranks together. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from pytest_mnode.criteria.launching.contract import (
    REQUIRED,
    Expected,
    wrong_devices,
    wrong_parallel,
)
from pytest_mnode.criteria.launching.reports import RankReport, by_node
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.spec.quantity import shown

FACTS = ("contract", "interfaces", "master_is_here", "arguments")
"""Facts that these judges need from ranks, besides their accelerators."""

_NUMBERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_PORT", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_NUM_NODES"),
)
_LAST_PORT = 65535


def wrong_variables(expected: Expected, reports: Sequence[RankReport]) -> list[Culprit]:
    """Faults of variables, devices and arguments. A rank that did not report its variables is left
    out, because `not_reported` names it."""
    read = [report for report in reports if "contract" not in report.missing]
    checks: Sequence[Callable[[Expected, Sequence[RankReport]], Iterator[Culprit]]] = (
        _absent,
        _not_numbers,
        _numbers,
        _ranks,
        _locals,
        _blocks,
        _master,
        _scheduler,
        _pins,
        wrong_devices,
        wrong_parallel,
    )
    return [text for check in checks for text in check(expected, read)]


def _absent(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    for report in reports:
        for name in REQUIRED[expected.style]:
            text = report.contract.get(name)
            if text is None or not text:
                yield report.fault(f"{name} is not set")
            elif name != "MASTER_ADDR" and report.number(name) is None:
                yield report.fault(f"{name}={shown(text)} is not a number")


def _not_numbers(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """Optional variables must be numbers too, and MASTER_PORT must be in the range of ports."""
    for report in reports:
        for name in _NUMBERS:
            text = report.contract.get(name)
            required = name in REQUIRED[expected.style]
            if text is not None and not required and report.number(name) is None:
                yield report.fault(f"{name}={shown(text)} is not a number")
        port = report.number("MASTER_PORT")
        if port is not None and not 1 <= port <= _LAST_PORT:
            yield report.fault(f"MASTER_PORT={port} is not a port (1 to {_LAST_PORT})")


def _numbers(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """Numbers of ranks and nodes must be right; nodes are numbered in the order of the job."""
    sizes = {
        "WORLD_SIZE": expected.size,
        **dict.fromkeys(("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), expected.per_node),
        **dict.fromkeys(
            ("GROUP_WORLD_SIZE", "CROSS_SIZE", "SLURM_JOB_NUM_NODES"), len(expected.nodes)
        ),
    }
    for report in reports:
        right = dict(sizes)
        if report.node in expected.nodes:
            number = expected.nodes.index(report.node)
            right |= dict.fromkeys(("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID"), number)
        for name, wanted in right.items():
            value = report.number(name)
            if value is not None and value != wanted:
                yield report.fault(f"{name}={value}, must be {wanted}")


def _ranks(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """RANK must be 0 to n-1, each once; of two equal ones, the one on the wrong node is wrong."""
    if not REQUIRED[expected.style]:
        return
    nodes_of: dict[int, list[str]] = defaultdict(list)
    for report in reports:
        if report.rank is not None:
            nodes_of[report.rank].append(report.node)
    for report in reports:
        rank = report.rank
        if rank is None:
            continue
        if rank >= expected.size:
            yield report.fault(f"RANK={rank} is outside the {expected.size} ranks of the job")
        elif len(nodes_of[rank]) > 1:
            own = expected.nodes[rank // expected.per_node]
            if report.node != own or nodes_of[rank].count(own) > 1:
                others = ", ".join(sorted(set(nodes_of[rank]) - {report.node})) or "this node"
                yield report.fault(f"RANK={rank} is also set in a rank on {others}")
    missing = sorted(set(range(expected.size)) - set(nodes_of))
    if missing and len(reports) >= expected.size:
        node = expected.nodes[missing[0] // expected.per_node]
        yield Culprit(f"{node}: no rank has RANK={format_cpulist(missing)}", node)


def _locals(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """LOCAL_RANK must count the ranks of a node from 0, in the order of RANK."""
    for there in by_node(reports).values():
        met = Counter(report.number("LOCAL_RANK") for report in there)
        for report in there:
            local, rank = report.number("LOCAL_RANK"), report.rank
            if local is None:
                continue
            if local >= expected.per_node:
                yield report.fault(
                    f"LOCAL_RANK={local} is outside the {expected.per_node} ranks of the node"
                )
            elif met[local] > 1:
                yield report.fault(f"LOCAL_RANK={local} is set in {met[local]} ranks of the node")
            elif expected.style != "megatron" and rank is not None:
                right = rank % expected.per_node
                if local != right:
                    yield report.fault(f"LOCAL_RANK={local}, must be {right} for RANK={rank}")


def _blocks(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """Each node must have a block of consecutive ranks, in the order of the job's nodes."""
    times = Counter(report.rank for report in reports)
    for report in reports:
        rank = report.rank
        if report.node not in expected.nodes or rank is None or times[rank] > 1:
            continue
        if rank < expected.size:
            own = expected.nodes[rank // expected.per_node]
            if report.node != own:
                yield report.fault(f"RANK={rank} belongs to {own}")


def _master(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """MASTER_ADDR and MASTER_PORT must be the same in all ranks, and of the first node alone."""
    first, common = expected.nodes[0], {}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        common[name] = _common(name, expected, reports)
        for report in reports:
            value = report.contract.get(name, common[name])
            if value != common[name]:
                yield report.fault(f"{name}={value}, others have {common[name]}")
    for report in reports:
        address, here = report.contract.get("MASTER_ADDR"), report.master_is_here
        if not address or "master_is_here" in report.missing:
            continue
        why = ""
        if report.node == first and here is not True:
            fault = "cannot be resolved here" if here is None else "is not an address of this node"
            why = f"{fault}, but rank 0 runs here"
        # The loop above names an address that differs from the others'.
        elif here and address == common["MASTER_ADDR"] and not _is_first(report.node, expected):
            why = f"is this node's own address, but rank 0 runs on {first}"
        if why:
            yield report.fault(f"MASTER_ADDR={address} {why}")


def _common(name: str, expected: Expected, reports: Sequence[RankReport]) -> str | None:
    """The value of most ranks; in a tie, the first node's value."""
    met = Counter(report.contract[name] for report in reports if name in report.contract)
    if not met:
        return None
    [(common, times)] = met.most_common(1)
    of_first = [r.contract.get(name) for r in reports if r.node == expected.nodes[0]]
    if of_first and of_first[0] and met[of_first[0]] == times:
        return of_first[0]
    return common


def _is_first(node: str, expected: Expected) -> bool:
    """Whether this is the first node, or another name for its machine."""
    hosts, first = expected.hosts, expected.nodes[0]
    return hosts.get(node, node) == hosts.get(first, first)


def _scheduler(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """The scheduler's numbers of a task must agree with those that the user's script made of them.

    In torchrun's style the task is torchrun itself, so its numbers count nodes.
    """
    if expected.style == "torchrun":
        return
    pairs = {"SLURM_PROCID": "RANK", "SLURM_NTASKS": "WORLD_SIZE", "SLURM_LOCALID": "LOCAL_RANK"}
    for report in reports:
        for fact, name in pairs.items():
            given, made = report.number(fact), report.number(name)
            if given is not None and made is not None and given != made:
                yield report.fault(f"{name}={made}, but {fact}={given}")


def _pins(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    for report in reports:
        for name, right in expected.pins.get(report.node, {}).items():
            value = report.contract.get(name)
            if value != right:
                met = "is not set" if value is None else f"is {value}"
                yield report.fault(f"{name} {met}, must be {right}")
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            value = report.contract.get(name, "")
            exact = name.startswith("GLOO") or value.startswith("=")
            if not exact or not value or "interfaces" in report.missing:
                continue
            for interface in value.lstrip("=").split(","):
                if interface not in report.interfaces:
                    yield report.fault(f"{name}={value}, but the node has no {interface}")
