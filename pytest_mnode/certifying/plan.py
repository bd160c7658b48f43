"""`--mnode-plan`: what a run would ask, how long it takes, what it loads, and what it lacks.

Nothing is measured. The plan starts agents only to look for programs on the nodes.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import marks
from pytest_mnode.certificate.kept import earlier_runs
from pytest_mnode.certificate.results import criterion_name
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.errors import MnodeError
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
from pytest_mnode.measuring import at_once, limits
from pytest_mnode.measuring.failover import STEADY_S
from pytest_mnode.protocol.messages import Shape
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective
from pytest_mnode.table import aligned

if TYPE_CHECKING:
    from pytest_mnode.certificate import Certificate
    from pytest_mnode.controller.session import Run
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.workload import WorkloadCriterion

FLAG = "--mnode-plan"


def _start_s(shape: Shape) -> float:
    """Seconds until ranks of a world are ready: forked, and a process group. Measured on the rack;
    [choice] of the part that grows with ranks."""
    return 1 + 0.02 * shape.size


@dataclass(frozen=True, slots=True)
class Cost:
    """What a criterion costs. loads: what of the cluster. others: what jobs of others notice.
    expected_s: seconds, by the spec and the shape; they are estimates, and the duration of an
    earlier run replaces them."""

    loads: str
    others: str
    expected_s: Callable[[Spec, Shape], float]


def _longest_reading_s(spec: Spec) -> float:
    """Limit of the longest reading that has one of its own, such as a diagnostic of DCGM."""
    promised = ((one, spec.value_of(one.key)) for one in catalogue("preflight"))
    limits_s = [one(promise).limit_s for one, promise in promised if promise is not None]
    return max((limit_s for limit_s in limits_s if limit_s is not None), default=0.0)


def _fabric_s(spec: Spec, shape: Shape) -> float:
    fabric, ranks = spec.criteria.fabric, shape.size
    if fabric is None or ranks < 2:
        return _start_s(shape)
    found = _start_s(shape)
    for collective in Collective:
        if (promise := fabric.busbw(collective)) is None:
            continue
        model = CollectiveModel(
            Platform.of(spec), collective, shape.nodes, shape.procs_per_node, "gloo"
        )
        connect_s = limits.CONNECT_S + limits.CONNECT_OF_A_RANK_S * ranks
        once_s = promise.communicators * connect_s + limits.sweep_s(promise, model)
        found += once_s * (2 if spec.accelerators.per_node else 1)  # and by nccl-tests
    if spec.fabric.kind in ("infiniband", "roce"):
        found += 10.0 * spec.fabric.nics_per_node  # perftest, pairs beside one another
    if (failover := fabric.failover) is not None:
        each_s = failover.down_for_s + failover.within_s + 2 * STEADY_S
        found += each_s * len(failover.ports) * min(shape.nodes, at_once.MOST_TARGETS)
    asked = (fabric.switches, fabric.bisection, fabric.incast, fabric.congestion)
    seconds = (30.0, 5.0, 0.3 * min(shape.nodes, at_once.MOST_TARGETS) * at_once.REPEATS, 10.0)
    return found + sum(s for one, s in zip(asked, seconds, strict=True) if one is not None)


def _devices_s(spec: Spec, shape: Shape) -> float:
    promise = spec.criteria.devices
    tests_memory = promise is not None and promise.memory_test is not None
    # Walking bits pass over all of an accelerator's memory 500 times, at terabytes a second.
    memory_s = 60.0 if tests_memory and spec.accelerators.per_node else 0.0
    own_s = 20.0 if spec.accelerators.per_node else 6.0
    return _start_s(shape) + own_s + memory_s + (promise.promised_s if promise else 0.0)


def _scaling_s(spec: Spec, shape: Shape) -> float:
    scaling = spec.criteria.scaling
    if scaling is None:
        return 0.0
    worlds = 1 + int(math.log2(shape.nodes))
    step_s = scaling.compute_s or 0.5
    return worlds * (_start_s(shape) + scaling.rounds * (scaling.warmup + scaling.steps) * step_s)


def _storage_s(spec: Spec, shape: Shape) -> float:
    promise = spec.criteria.storage
    if promise is None:
        return 0.0
    return _start_s(shape) + promise.expected_s(shape.nodes, spec.accelerators.per_node)


def _workload_s(workload: WorkloadCriterion | None) -> float:
    """At most: nobody knows how long the buyer's job takes."""
    return workload.within_s * max(1, len(workload.nodes)) if workload is not None else 0.0


def _tuning_s(spec: Spec) -> float:
    """Some settings change from place to place: four each."""
    from pytest_mnode.criteria.tuning.catalogue import CATALOGUE

    promise = spec.criteria.tuning
    asked = [one for name, one in CATALOGUE.items() if getattr(promise, name, None) is not None]
    return sum(4 * one.takes_s * promise.rounds for one in asked) if promise else 0.0


_A_KILL_S = 20.0
"""As `COSTS`."""
COSTS: Mapping[str, Cost] = {
    "preflight": Cost(
        "little: one reading of each node, and messages; with DCGM accelerators, fully",
        "nothing; with DCGM the same nodes' jobs",
        lambda spec, _: 10.0 + _longest_reading_s(spec),
    ),
    "mesh": Cost("fabric, little", "nothing", lambda _, shape: _start_s(shape) + 1),
    "numa": Cost("memory, seconds", "nothing", lambda _, shape: _start_s(shape) + 1),
    "devices": Cost("all accelerators, fully", "the same nodes' jobs", _devices_s),
    "fabric": Cost(
        "all NICs, fully; with failover ports that go down",
        "jobs on the same fabric",
        _fabric_s,
    ),
    "groups": Cost("fabric, little", "nothing", lambda _, shape: _start_s(shape) + 1),
    "data": Cost("files, little", "nothing", lambda _, shape: _start_s(shape) + 7),
    "storage": Cost("file servers, fully", "jobs that read and write there", _storage_s),
    "launch": Cost("jobs that start and end", "the queue", lambda *_: 45.0),
    "scaling": Cost("accelerators and NICs, fully", "jobs on the same fabric", _scaling_s),
    "restart": Cost(
        "a job that is killed, and storage",
        "the queue; a node, where it is switched off",
        lambda spec, _: (
            _A_KILL_S * len(spec.criteria.restart.kills) if spec.criteria.restart else 0.0
        ),
    ),
    "workload": Cost(
        "accelerators, NICs and storage, as the job does",
        "jobs on the same fabric",
        lambda spec, _: _workload_s(spec.criteria.workload),
    ),
    "traffic": Cost(
        "all NICs, fully", "jobs on the same fabric", lambda _, shape: _start_s(shape) + 30
    ),
    "tuning": Cost(
        "accelerators and NICs, fully; with mtu the interfaces' MTU",
        "jobs on the same fabric",
        lambda spec, _: _tuning_s(spec),
    ),
    "soak": Cost(
        "accelerators and NICs, fully, until --mnode-soak is over",
        "jobs on the same nodes and fabric",
        lambda spec, _: spec.criteria.soak.for_s if spec.criteria.soak else 0.0,
    ),
    "gang": Cost(
        "jobs of all nodes but one",
        "the queue, of the nodes given",
        lambda spec, _: 120.0 if spec.criteria.gang else 0.0,
    ),
}
"""Seconds as a night of the rack took them, where nothing of the spec says how long it takes."""
_OWN = Cost("", "", lambda _, shape: _start_s(shape))
"""A criterion of somebody else."""


class Plan:
    """pytest plugin: prints the plan in place of the run of tests.

    The session's exit status is 1 if something that a promise needs is missing.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lacking: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        terminal: Any = session.config.pluginmanager.getplugin("terminalreporter")
        for line in self._lines(session.items):
            if terminal is not None:
                terminal.write_line(line)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            lacks = bool(self._lacking)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if lacks else pytest.ExitCode.OK

    def _lines(self, items: Sequence[pytest.Item]) -> Iterator[str]:
        run = self._run
        nodes = run.nodes or marks.FEWEST_NODES
        spec, shape = run.spec, Shape(nodes, run.procs_per_node)
        earlier = _earlier(run, nodes)
        asked = [item for item in items if item.get_closest_marker("criterion")]
        cases = Counter(criterion_name(item.path.name) for item in asked)
        kept = Counter(criterion_name(item.path.name) for item in asked if _is_promised(item, spec))
        rows, whole_s = [("criterion", "promised", "minutes", "by", "loads", "others notice")], 0.0
        for name, number in cases.items():
            cost, measured_s = COSTS.get(name, _OWN), _duration_s(earlier, name)
            expected_s = cost.expected_s(spec, shape) if measured_s is None else measured_s
            if name == "soak" and run.settings.soak_s is not None:
                expected_s, kept[name] = run.settings.soak_s, kept[name] or number
            expected_s *= kept[name] > 0
            whole_s += expected_s
            by = "" if not kept[name] else "estimate" if measured_s is None else "earlier run"
            rows.append(
                (
                    name,
                    f"{kept[name]} of {number}",
                    f"{expected_s / 60:.1f}" if kept[name] else "",
                    by,
                    cost.loads if kept[name] else "",
                    cost.others if kept[name] else "",
                )
            )
        ranks = count(shape.procs_per_node, "rank")
        yield f"plan: {count(nodes)} × {ranks}, spec {spec.name}"
        yield from aligned(rows)
        measured = (
            f"; the earlier run ended {earlier.run.end:%Y-%m-%d %H:%M UTC}" if earlier else ""
        )
        yield f"expected: {whole_s / 60:.0f} min{measured}"
        self._lacking = list(self._missing(kept))
        yield from (f"missing: {line}" for line in self._lacking)

    def _missing(self, kept: Counter[str]) -> Iterator[str]:
        """What promises need, and nodes have not."""
        needs = dict(_programs(self._run.spec, kept))
        if not needs:
            return
        try:
            self._run.make_pool()
            nodes = self._run.all_nodes()
        except MnodeError as error:
            yield f"nodes, of which none was looked at: {error}"
            return
        from pytest_mnode.measuring.tools import missing_on

        for program, why in needs.items():
            if lacking := missing_on(nodes, program):
                yield f"{program} on {compress(lacking)}, for {why}"


def _programs(spec: Spec, kept: Counter[str]) -> Iterator[tuple[str, str]]:
    """Programs that promises need on nodes, each with the key of the promise."""
    from pytest_mnode.measuring.tools import nccl_tests, perftest

    waived = {one.question for one in spec.not_promised}
    if (fabric := spec.criteria.fabric) is not None and kept["fabric"]:
        how = fabric.nccl_tests or nccl_tests.DEFAULT
        if spec.accelerators.per_node and how.command is None and "fabric.nccl_tests" not in waived:
            for collective in Collective:
                if fabric.busbw(collective) is not None:
                    yield nccl_tests.program_of(collective, how), f"fabric.{collective}_busbw"
        for key in ("write_bandwidth", "read_bandwidth", "send_bandwidth", "write_latency"):
            given = getattr(fabric, key) or (perftest.DEFAULT if key == "write_bandwidth" else None)
            rdma = spec.fabric.kind in ("infiniband", "roce")
            if rdma and given is not None and f"fabric.{key}" not in waived:
                yield given.program, f"fabric.{key}"
    for one in catalogue("preflight"):
        promise = spec.value_of(one.key)
        if promise is not None:
            yield from ((program, one.key) for program in one.programs(promise))


def _earlier(run: Run, nodes: int) -> Certificate | None:
    """The latest certificate of the same spec on as many nodes: of the report, or the history."""
    from pytest_mnode.certificate.files import read_certificate

    facts = facts_of(run.spec, run.spec_path)
    found = list(earlier_runs(run.settings.history_dir, facts, spec=run.spec).certificates)
    if (report := run.settings.report_dir) is not None:
        with contextlib.suppress(MnodeError):  # none yet, or of another version
            found.append(read_certificate(report))
    same = [
        one
        for one in found
        if one.run.spec.digest == facts.digest
        and len(one.run.nodes) == nodes
        and one.run.rehearsal is None
    ]
    return max(same, key=lambda one: one.run.end, default=None)


def _duration_s(earlier: Certificate | None, name: str) -> float | None:
    """Seconds that the tests of a criterion took in an earlier run; None if it has none."""
    criteria = earlier.criteria if earlier is not None else ()
    durations = [case.duration_s for one in criteria if one.name == name for case in one.cases]
    known = [one for one in durations if one is not None]
    return sum(known) if known else None


def _is_promised(item: pytest.Item, spec: Spec) -> bool:
    """Whether the spec has all keys that the test asks for, as far as its source shows them."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    function = getattr(item, "originalname", item.name)
    checks = {one.case(): one.key for one in catalogue()}
    if function in checks:
        keys: Sequence[str] = [checks[function].format(**parameters)]
    else:
        asked = _asked(item.module) if isinstance(item, pytest.Function) else {}
        keys = [key.format(**parameters) for key in asked.get(function, ())]
    criterion = criterion_name(item.path.name)
    return all(spec.value_of(key) is not None for key in [criterion, *keys] if _is_key(spec, key))


def _is_key(spec: Spec, key: str) -> bool:
    name = key.partition(".")[0]
    return hasattr(spec.criteria, name) or hasattr(spec, name)


@cache
def _asked(module: ModuleType) -> dict[str, tuple[str, ...]]:
    """Keys that the functions of a module pass to `promised`, with those of its fixtures that they
    use, by name; an f-string is a template of its parameters."""
    functions = {
        one.name: one
        for one in ast.parse(inspect.getsource(module)).body
        if isinstance(one, ast.FunctionDef)
    }
    own = {name: tuple(_keys(one)) for name, one in functions.items()}
    uses = {name: [arg.arg for arg in one.args.args] for name, one in functions.items()}

    def with_fixtures(name: str) -> Iterator[str]:
        yield from own[name]
        for used in uses[name]:
            if used in own:
                yield from with_fixtures(used)

    return {name: tuple(dict.fromkeys(with_fixtures(name))) for name in functions}


def _keys(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="promised"), args=[_, ast.Constant(value=str(key))]):
                yield key
            case ast.Call(func=ast.Name(id="promised"), args=[_, ast.JoinedStr() as text]):
                yield re.sub(r"^f(['\"])(.*)\1$", r"\2", ast.unparse(text))
