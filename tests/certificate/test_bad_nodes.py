"""Bad nodes of any number: from readings to `nodes --passed`, none is ever handed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.files import json_text, parse_certificate, write_report
from pytest_mnode.certificate.results import Outcome
from pytest_mnode.checks.devices.matmul import judge_products
from pytest_mnode.checks.node.reachable import EveryNodeIsReached
from pytest_mnode.commands import main
from pytest_mnode.criteria.devices import judge_rates
from pytest_mnode.criteria.port_counters.judging import judge
from pytest_mnode.criteria.port_counters.reading import Counters, PortReading
from pytest_mnode.criteria.port_counters.rises import rises
from pytest_mnode.criteria.preflight.survey_check import judged as check_judged
from pytest_mnode.criteria.preflight.survey_check import of_node, promised_checks
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.evidence.check import Check, catalogue
from pytest_mnode.launchers.hosts import named_nodes
from pytest_mnode.machine.nvml import Load
from pytest_mnode.measure import summed_up
from pytest_mnode.measurement import Measurement, Verdict, at_least
from pytest_mnode.measuring.naming import culprit_of, rank_name
from pytest_mnode.measuring.rank_rates import Comparison, RankRate
from pytest_mnode.path_rates import State
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import MatmulPromise
from pytest_mnode.spec.inventory import Fabric
from pytest_mnode.virtual.readings import judged as read_judged
from tests.certificate.conftest import certify
from tests.criteria.preflight.made import cut, healthy, promising

NOW = datetime.now(UTC).replace(microsecond=0)
Readings = tuple[tuple[str, ...], frozenset[str]]
"""Names of all nodes, and of the bad ones."""


@st.composite
def readings(draw: st.DrawFn) -> Readings:
    names = tuple(f"node{i}" for i in range(draw(st.integers(2, 24))))
    bad = draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1))
    return names, frozenset(bad)


def world(names: Sequence[str]) -> World:
    return World(0, len(names), 0, 1, names[0], tuple(names))


def counters(names: Sequence[str], bad: frozenset[str]) -> list[Measurement]:
    fabric = Fabric.model_validate(
        {
            "kind": "ethernet",
            "interfaces": ["eth*"],
            "line_rate": "1 Gbit/s",
            "nics_per_node": 1,
            "mtu": 9000,
        }
    )
    ports: dict[str, Counters] = {
        f"eth{i}": {"carrier_changes": 2, "rx_crc_errors": 7, "rx_packets": 9} for i in (0, 1)
    }
    before = {name: PortReading("a", ports) for name in names}
    worse: dict[str, Counters] = {
        nic: {**counts, "rx_crc_errors": 9} for nic, counts in ports.items()
    }
    after = {name: PortReading("a", worse if name in bad else ports) for name in names}
    return judge([*rises(before, after, fabric.interfaces)], fabric)


def ranks(names: Sequence[str], bad: frozenset[str]) -> list[Measurement]:
    """PCIe links, and rates against a floor."""
    rows = tuple(
        RankRate(
            rank_name(world(names), rank),
            5.0 if name in bad else 9.0,
            "",
            load=Load(9, (), 1700, 0.0, 4 if name in bad else 5, 5),
        )
        for rank, name in enumerate(names)
    )
    promise = MatmulPromise(at_least_fraction=0.1, dtypes=("float32",))
    return judge_rates(Comparison("host to device", "GB/s", promise, 8.0, rows, "how"))


def products(names: Sequence[str], bad: frozenset[str]) -> list[Measurement]:
    each = [rank_name(world(names), rank) for rank in range(len(names))]
    wrong: dict[str, int | None] = {
        one: int(name in bad) for one, name in zip(each, names, strict=True)
    }
    return judge_products("float32", 64, wrong)


def counted(names: Sequence[str], bad: frozenset[str]) -> list[Measurement]:
    culprits = [Culprit(f"{name} fab0", name) for name in names if name in bad]
    return [Measurement.none_allowed("faults", culprits, "none allowed")]


def results(names: Sequence[str], bad: frozenset[str]) -> list[Measurement]:
    wrong = [rank for rank, name in enumerate(names) if name in bad]
    culprit = culprit_of(world(names), wrong)
    return [
        Measurement(
            "#wrong", len(wrong), "", at_least(0) if not wrong else at_least(99), "", culprit
        )
    ]


def own(name: str, names: Sequence[str]) -> Culprit:
    """What a rank gives as the culprit: the plain name of its node."""
    return named_nodes(Culprit(name), names)


def measured_by_each(names: Sequence[str], bad: frozenset[str]) -> list[Measurement]:
    """A value that each rank measures, with its own node as the culprit."""
    each = {
        rank: [Measurement("rate", 5 if name in bad else 9, "", at_least(8), "", own(name, names))]
        for rank, name in enumerate(names)
    }
    return summed_up(each)


JUDGES = (counters, ranks, products, counted, results, measured_by_each)


def states(cases: Sequence[CaseResult], names: Sequence[str]) -> dict[State, frozenset[str]]:
    """Names of nodes by state, from a certificate as it is written and read."""
    written = certify(*cases, promised=["mesh"], nodes=tuple(names), cluster_nodes=len(names))
    found = parse_certificate(json_text(written), "it").coverage
    assert found == written.coverage
    return {state: frozenset(found.names(state)) for state in State}


@pytest.mark.parametrize("judged", JUDGES)
@given(found=readings())
@settings(max_examples=40, deadline=None)
def test_no_bad_node_has_passed_and_no_healthy_one_has_failed(
    judged: Callable[[Sequence[str], frozenset[str]], list[Measurement]], found: Readings
) -> None:
    names, bad = found
    case = CaseResult("t/test_mesh.py::test_it", "?", "failed", measurements=tuple(judged(*found)))
    by_state = states([case], names)
    assert not by_state[State.PASSED] & bad
    assert by_state[State.FAILED] <= bad
    assert by_state[State.FAILED] == bad  # these judges know


@given(found=readings())
@settings(max_examples=20, deadline=None)
def test_all_bad_devices_and_ranks_are_known_however_many(found: Readings) -> None:
    names, bad = found
    measured = (*counters(*found), *products(*found))
    case = CaseResult("t/test_mesh.py::test_it", "?", "failed", measurements=measured)
    written = certify(case, promised=["mesh"], nodes=names, cluster_nodes=len(names))
    read = parse_certificate(json_text(written), "it")
    [again] = read.criteria[0].cases
    parts = Parts.of_all(m.culprit.parts for m in again.measurements if m.culprit)
    assert set(parts.devices) == {(name, nic) for name in bad for nic in ("eth0", "eth1")}
    assert set(parts.ranks) == {rank for rank, name in enumerate(names) if name in bad}
    devices = {node.name: node.devices for node in read.coverage.nodes}
    assert devices == {name: ("eth0", "eth1") if name in bad else () for name in names}


@given(found=readings(), one_way=st.booleans())
@settings(max_examples=30, deadline=None)
def test_nodes_that_are_cut_off(found: Readings, one_way: bool) -> None:
    spec = promising("{reachable: {networks: [fabric], within: 2 s}}")
    count = len(found[0])
    assume(count > 2)
    bad = {int(name.removeprefix("node")) for name in found[1]}
    ends = [(a, b) for a in range(count) for b in range(count) if a != b]
    lost = [(a, b) for a, b in ends if a in bad or (b in bad and not one_way)]
    survey = cut(healthy(count), lost)
    names = [node.name for node in survey.nodes]
    cases = []
    for name in names:
        found_of_node = check_judged(EveryNodeIsReached, survey, spec, name)
        judged = tuple(of_node(name, one) for one in found_of_node)
        passed = all(one.verdict is Verdict.PASS for one in judged)
        outcome: Outcome = "passed" if passed else "failed"
        case = CaseResult(f"t/test_mesh.py::test_it[{name}]", "?", outcome, nodes=(name,))
        cases.append(replace(case, measurements=judged))
    by_state = states(cases, names)
    wrong = {names[index] for index in bad}
    assert not by_state[State.PASSED] & wrong
    if 2 * len(bad) < count - 1:  # else nobody can say which half is well
        assert by_state[State.FAILED] <= wrong


def rehearsed() -> dict[str, Check]:
    """Checks that nodes read, as far as rows are known that keep and break them, by their case."""
    asked = [one for one in catalogue("preflight") if one.reads() and one.on == "node"]
    promises = {one.key: yaml.safe_load(one.promised_as) for one in asked if one.promised_as}
    page = {key.removeprefix("preflight."): promise for key, promise in promises.items()}
    made = {one.case(): one for one in promised_checks(promising(json.dumps(page)), asked)}
    return {case: one for case, one in made.items() if read_judged(one, ("a", "b"))}


CHECKS = rehearsed()


def test_most_checks_that_nodes_read_are_tried() -> None:
    assert len(CHECKS) >= 10


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@given(found=readings())
@settings(max_examples=15, deadline=None)
def test_nodes_that_break_any_check(check: Check, found: Readings) -> None:
    names, bad = found
    assume(2 * len(bad) < len(names))  # else those that are unlike the others are healthy
    of_nodes = read_judged(check, names, sorted(bad))
    assert of_nodes is not None
    cases = []
    for name, measured in of_nodes:
        passed = all(one.verdict is Verdict.PASS for one in measured)
        case = CaseResult(
            f"t/test_mesh.py::{check.case()}[{name}]",
            "?",
            "passed" if passed else "failed",
            measurements=tuple(of_node(name, one) for one in measured),
            nodes=(name,),
        )
        cases.append(case)
    by_state = states(cases, names)
    assert not by_state[State.PASSED] & bad
    assert by_state[State.FAILED] == bad


@given(found=readings())
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_command_hands_over_no_bad_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], found: Readings
) -> None:
    names, bad = found
    case = CaseResult(
        "t/test_mesh.py::test_it", "?", "failed", measurements=tuple(counters(*found))
    )
    write_report(
        tmp_path,
        certify(case, promised=["mesh"], nodes=names, cluster_nodes=len(names), start=NOW, end=NOW),
    )
    printed = {}
    for state in ("passed", "failed"):
        capsys.readouterr()
        main(["nodes", str(tmp_path), f"--{state}", "--format=lines"])
        printed[state] = set(capsys.readouterr().out.split())
    assert printed == {"passed": set(names) - bad, "failed": bad}
