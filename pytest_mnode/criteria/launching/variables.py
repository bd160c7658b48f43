"""Whether each variable of a job's ranks is right, judged over all ranks together. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from pytest_mnode.criteria.launching.contract import REQUIRED, Expected, Wrong
from pytest_mnode.criteria.launching.devices import wrong_devices, wrong_parallel
from pytest_mnode.criteria.launching.reports import RankReport
from pytest_mnode.outcome.describe import compact
from pytest_mnode.spec.quantity import shown

FACTS = ("contract", "interfaces", "master_is_here", "arguments")
"""What ranks have to report for this, beside the accelerators, which are asked for by number."""

_NUMBERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_PORT", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_NUM_NODES"),
)
_LAST_PORT = 65535


def wrong_variables(expected: Expected, reports: Sequence[RankReport]) -> list[Wrong]:
    """All that is wrong with variables, devices and arguments; leaks apart.

    Of a rank that did not report its variables nothing is said: `not_reported` names it.
    """
    read = [report for report in reports if "contract" not in report.unsaid]
    checks: Sequence[Callable[[Expected, Sequence[RankReport]], Iterator[Wrong]]] = (
        _absent,
        _garbled,
        _sizes,
        _ranks,
        _locals,
        _groups,
        _master,
        _scheduler,
        _pins,
        wrong_devices,
        wrong_parallel,
    )
    return [wrong for check in checks for wrong in check(expected, read)]


def _absent(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    for report in reports:
        for name in REQUIRED[expected.style]:
            text = report.contract.get(name)
            if text is None or not text:
                yield Wrong(report.node, report.rank, name, f"{name} is not set")
            elif name != "MASTER_ADDR" and report.number(name) is None:
                yield Wrong(report.node, report.rank, name, f"{name}={shown(text)} is not a number")


def _garbled(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """What need not be there has to be a number all the same, and the port one of a port."""
    for report in reports:
        for name in _NUMBERS:
            text = report.contract.get(name)
            asked = name in REQUIRED[expected.style]
            if text is not None and not asked and report.number(name) is None:
                yield Wrong(report.node, report.rank, name, f"{name}={shown(text)} is not a number")
        port = report.number("MASTER_PORT")
        if port is not None and not 1 <= port <= _LAST_PORT:
            what = f"MASTER_PORT={port} is no port: 1 to {_LAST_PORT}"
            yield Wrong(report.node, report.rank, "MASTER_PORT", what)


def _equal(report: RankReport, name: str, right: int) -> Iterator[Wrong]:
    value = report.number(name)
    if value is not None and value != right:
        yield Wrong(report.node, report.rank, name, f"{name}={value}, must be {right}")


def _sizes(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    for report in reports:
        yield from _equal(report, "WORLD_SIZE", expected.size)
        for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
            yield from _equal(report, name, expected.per_node)
        for name in ("GROUP_WORLD_SIZE", "CROSS_SIZE", "SLURM_JOB_NUM_NODES"):
            yield from _equal(report, name, len(expected.nodes))


def _ranks(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """0 … n-1, each once; a rank that two have is wrong where it does not belong."""
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
            what = f"RANK={rank} is outside the {expected.size} ranks of the job"
            yield Wrong(report.node, rank, "RANK", what)
        elif len(nodes_of[rank]) > 1:
            own = expected.nodes[rank // expected.per_node]
            if report.node != own or nodes_of[rank].count(own) > 1:
                others = ", ".join(sorted(set(nodes_of[rank]) - {report.node})) or "here"
                what = f"RANK={rank} is also a rank's of {others}"
                yield Wrong(report.node, rank, "RANK", what)
    missing = sorted(set(range(expected.size)) - set(nodes_of))
    if missing and len(reports) >= expected.size:
        node = expected.nodes[missing[0] // expected.per_node]
        yield Wrong(node, None, "RANK", f"no rank has RANK={compact(missing)}")


def _by_node(reports: Sequence[RankReport]) -> dict[str, list[RankReport]]:
    found: dict[str, list[RankReport]] = defaultdict(list)
    for report in reports:
        found[report.node].append(report)
    return found


def _locals(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """LOCAL_RANK counts the ranks of a node from 0; in the order of RANK."""
    for node, there in _by_node(reports).items():
        met = Counter(report.number("LOCAL_RANK") for report in there)
        for report in there:
            local, rank = report.number("LOCAL_RANK"), report.rank
            if local is None:
                continue
            if local >= expected.per_node:
                what = f"LOCAL_RANK={local} is outside the {expected.per_node} ranks of the node"
                yield Wrong(node, rank, "LOCAL_RANK", what)
            elif met[local] > 1:
                what = f"LOCAL_RANK={local} is {met[local]} ranks' of the node"
                yield Wrong(node, rank, "LOCAL_RANK", what)
            elif expected.style != "megatron" and rank is not None:
                right = rank % expected.per_node
                if local != right:
                    what = f"LOCAL_RANK={local}, must be {right} for RANK={rank}"
                    yield Wrong(node, rank, "LOCAL_RANK", what)


def _groups(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """Nodes are counted in the order in which the job has them."""
    for report in reports:
        if report.node not in expected.nodes:
            continue
        right = expected.nodes.index(report.node)
        for name in ("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID"):
            yield from _equal(report, name, right)
        rank = report.rank
        duplicated = [other.rank for other in reports].count(rank) > 1
        if rank is not None and rank < expected.size and not duplicated:
            own = expected.nodes[rank // expected.per_node]
            if report.node != own:
                yield Wrong(report.node, rank, "RANK", f"RANK={rank} belongs to {own}")


def _master(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """The same everywhere, and an address of the first node alone."""
    first, common = expected.nodes[0], {}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        common[name] = _common(name, expected, reports)
        for report in reports:
            value = report.contract.get(name, common[name])
            if value != common[name]:
                what = f"{name}={value}, others have {common[name]}"
                yield Wrong(report.node, report.rank, name, what)
    for report in reports:
        address, here = report.contract.get("MASTER_ADDR"), report.master_is_here
        if not address or "master_is_here" in report.unsaid:
            continue
        why = ""
        if report.node == first and here is not True:
            means = "means nothing there" if here is None else "is not one of its addresses"
            why = f"{means}, and rank 0 is there"
        # One that differs from the others' has been named above.
        elif here and address == common["MASTER_ADDR"] and not _is_first(report.node, expected):
            why = f"is its own, and rank 0 is on {first}"
        if why:
            yield Wrong(report.node, report.rank, "MASTER_ADDR", f"MASTER_ADDR={address} {why}")


def _common(name: str, expected: Expected, reports: Sequence[RankReport]) -> str | None:
    """What most have; the first node's where as many have another."""
    said = Counter(report.contract[name] for report in reports if name in report.contract)
    if not said:
        return None
    [(common, times)] = said.most_common(1)
    of_first = [r.contract.get(name) for r in reports if r.node == expected.nodes[0]]
    if of_first and of_first[0] and said[of_first[0]] == times:
        return of_first[0]
    return common


def _is_first(node: str, expected: Expected) -> bool:
    """Whether this is the first node, or another name for its machine."""
    hosts, first = expected.hosts, expected.nodes[0]
    return hosts.get(node, node) == hosts.get(first, first)


def _scheduler(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """What the scheduler says of a task agrees with what the user's script made of it.

    Where torchrun starts the ranks the task is torchrun, and its numbers are of nodes.
    """
    if expected.style == "torchrun":
        return
    pairs = {"SLURM_PROCID": "RANK", "SLURM_NTASKS": "WORLD_SIZE", "SLURM_LOCALID": "LOCAL_RANK"}
    for report in reports:
        for fact, name in pairs.items():
            told, made = report.number(fact), report.number(name)
            if told is not None and made is not None and told != made:
                what = f"{name}={made}, and {fact}={told}"
                yield Wrong(report.node, report.rank, name, what)


def _pins(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    for report in reports:
        for name, right in expected.pins.get(report.node, {}).items():
            value = report.contract.get(name)
            if value != right:
                met = "is not set" if value is None else f"is {value}"
                what = f"{name} {met}, must be {right}"
                yield Wrong(report.node, report.rank, name, what)
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            value = report.contract.get(name, "")
            exact = name.startswith("GLOO") or value.startswith("=")
            if not exact or not value or "interfaces" in report.unsaid:
                continue
            for interface in value.lstrip("=").split(","):
                if interface not in report.interfaces:
                    what = f"{name}={value}, and the node has no {interface}"
                    yield Wrong(report.node, report.rank, name, what)
