"""The contract of each launch style with ranks: reports, meeting, leaks, devices, parallel sizes.

Pure functions from the ranks' reports to texts of faults, each with node and rank. Variables are
judged over all ranks together.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.criteria.launching.reports import RankReport, by_node
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.spec.quantity import shown

CANARY = "MNODE_CANARY"
"""A variable of every submitting environment; no rank may see it."""
LOGIN = frozenset({"HOME", "USER", "PATH", "LANG"})
"""Variables of an ordinary user's login."""
_SHELL = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"})
"""Variables that a shell or Python adds."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "torchrun": (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("MASTER_ADDR", "MASTER_PORT"),
    ),
    "deepspeed": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    "megatron": (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        # Megatron's script derives the others from these, whatever starts the tasks.
        *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    ),
    "plain": (),
}
"""Variables that a rank of each style must have."""
_ADDED: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("TORCHELASTIC_", "TORCH_NCCL_", "ROLE_", "GROUP_", "OMP_NUM_THREADS"),
    "deepspeed": ("CROSS_", "LOCAL_SIZE", "CUDA_VISIBLE_DEVICES", "NCCL_ASYNC_ERROR_HANDLING"),
    "megatron": ("SLURM_", "CUDA_VISIBLE_DEVICES"),
    "plain": (),
}
"""Prefixes of variables that launchers of each style add."""
MASKS = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "ZE_AFFINITY_MASK",
)
"""Variables by which a scheduler gives a rank its own accelerators, of any vendor."""
_NUMBER = re.compile("[0-9]{1,9}")
_TENSOR, _PIPELINE = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected environment of a job's ranks.

    nodes: names as nodes report them, in the order of ranks. per_node: ranks per node.
    accelerators: per node. pins: variables that every rank of a node must have, by node.
    outside: names of variables of the submitting environment. own: names of those that the job
    sets. hosts: host names of nodes that differ from their names; nodes with the same host name are
    one machine. added: prefixes of variables that the submission path adds. profile: whether the
    user's profile adds more variables, of any name.
    """

    style: str
    nodes: tuple[str, ...]
    per_node: int
    accelerators: int
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    hosts: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    profile: bool = False

    @property
    def size(self) -> int:
        return len(self.nodes) * self.per_node


def not_reported(reports: Sequence[RankReport], facts: Collection[str]) -> str:
    """Text of the facts that some ranks did not report; "" if all ranks reported all of them."""
    if not reports:
        return "no rank reported"
    lines = []
    for fact in facts:
        silent = [report for report in reports if fact in report.missing]
        if silent:
            what = f"reported no {fact} ({len(silent)} of {len(reports)} ranks)"
            lines.append(silent[0].fault(what))
    return "; ".join(lines)


def added_to(expected: Expected) -> tuple[str, ...]:
    """Prefixes of variables that the launcher of the style and the submission path add."""
    return (*_ADDED[expected.style], *expected.added)


def leaked(expected: Expected, reports: Sequence[RankReport]) -> list[Culprit]:
    """Variables of the submitting environment that ranks see, the canary first.

    If a profile adds variables, they may have the same names, so that only the canary proves a
    leak: a rank without it sees nothing of the submitting environment.
    """
    allowed = LOGIN | _SHELL | expected.own | set(REQUIRED[expected.style])
    allowed |= {name for pins in expected.pins.values() for name in pins}
    prefixes = added_to(expected)
    found = []
    for report in reports:
        if expected.profile and CANARY not in report.names:
            continue
        found += [
            (name != CANARY, report.fault(f"{name} of the submitting environment is visible"))
            for name in sorted((report.names & expected.outside) - allowed)
            if not name.startswith(prefixes)
        ]
    return [text for _, text in sorted(found, key=lambda pair: pair[0])]


def missing_ranks(expected: Expected, reports: Sequence[RankReport]) -> list[Culprit]:
    """Nodes on which fewer or more ranks reported than the job has there."""
    reported = Counter(report.node for report in reports)
    found = []
    for node in (*expected.nodes, *sorted(set(reported) - set(expected.nodes))):
        due = expected.per_node if node in expected.nodes else 0
        if reported[node] != due:
            found.append(Culprit(f"{node}: {reported[node]} of {due} ranks reported", node))
    return found


def not_met(expected: Expected, reports: Sequence[RankReport]) -> list[Culprit]:
    """Ranks that did not meet all the others, or got a wrong sum over them.

    None of them is to blame for sure: all others miss a rank that fails.
    """
    size = expected.size
    found = []
    for report in reports:
        met = report.met
        if met is None:
            what = report.error or "met no other rank"
        elif met.size != size:
            alone = "only itself: " if met.size == 1 else ""
            what = f"met {alone}{met.size} of {size} ranks in a collective"
        elif met.total != size * (size + 1) // 2 or sorted(met.ranks) != list(range(size)):
            what = f"a wrong sum over all ranks: {met.total}, from ranks {list(met.ranks)}"
        else:
            continue
        found.append(report.fault(what).suspected)
    return found


def wrong_devices(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """Ranks that see neither all accelerators of their node nor one of their own.

    More accelerators than the job requested are no fault: few sites hide those of other jobs.
    """
    for there in by_node(reports).values():
        one_each = len(_distinct_views(there)) == len(there) == expected.accelerators
        for report in there:
            count = report.accelerators
            if count is None and expected.accelerators:
                yield report.fault("its accelerators could not be counted")
            elif count is not None and count < expected.accelerators:
                if count == 1 and one_each:
                    continue
                yield report.fault(f"{count} of {expected.accelerators} accelerators are visible")


def _distinct_views(there: Sequence[RankReport]) -> set[tuple[str, ...]]:
    """The distinct sets of accelerators that ranks of a node see.

    Device ids are compared if all ranks reported them: a number in a variable is relative to the
    devices that a rank sees, so that each rank has 0 if cgroups hide the others. A name in a
    variable, such as that of a MIG instance, means the same to all ranks.
    """
    known = all(report.devices for report in there)
    found = set()
    for report in there:
        masks = tuple(text for name in MASKS if (text := report.contract.get(name)))
        names = tuple(text for text in masks if not text[0].isdigit())
        found.add((*report.devices, *names) if known else masks)
    return found - {()}


def more_visible(expected: Expected, reports: Sequence[RankReport]) -> list[str]:
    """One line for each number of visible accelerators that is more than the job requested."""
    nodes: dict[int, dict[str, None]] = defaultdict(dict)
    for report in reports:
        if report.accelerators is not None and report.accelerators > expected.accelerators:
            nodes[report.accelerators][report.node] = None
    requested = f"the job requested {expected.accelerators}"
    return [
        f"accelerators visible on {', '.join(there)}: {count}, {requested}"
        for count, there in sorted(nodes.items())
    ]


def wrong_parallel(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """Megatron's parallel sizes that do not divide the ranks, or split tensor groups over nodes."""
    for report in reports:
        sizes = {}
        for name in (_TENSOR, _PIPELINE):
            given = _option_value(name, report.arguments)
            if given is not None and not _NUMBER.fullmatch(given):
                yield report.fault(f"{name}={shown(given)} is not a number")
                given = None
            sizes[name] = 1 if given is None else int(given)
        tensor, pipeline = sizes[_TENSOR], sizes[_PIPELINE]
        if not tensor or not pipeline or expected.size % (tensor * pipeline):
            what = f"{_TENSOR} {tensor} × {_PIPELINE} {pipeline} does not divide {expected.size}"
            yield report.fault(f"{what} ranks")
        elif expected.per_node % tensor:
            yield report.fault(
                f"{_TENSOR} {tensor} does not divide the {expected.per_node} ranks of a node"
            )


def _option_value(name: str, arguments: Sequence[str]) -> str | None:
    """The last value of an option, after = or as the next word; None if the option is absent."""
    found = None
    for number, word in enumerate(arguments):
        if word == name:
            found = "".join(arguments[number + 1 : number + 2])
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


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


def _not_numbers(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Culprit]:
    """Required variables must be set, optional ones must be numbers too, and MASTER_PORT must be in
    the range of ports."""
    required = REQUIRED[expected.style]
    for report in reports:
        for name in dict.fromkeys((*required, *_NUMBERS)):
            text = report.contract.get(name)
            if not text and name in required:
                yield report.fault(f"{name} is not set")
            elif text is not None and name != "MASTER_ADDR" and report.number(name) is None:
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
