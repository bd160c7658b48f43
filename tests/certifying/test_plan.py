"""`--mnode-plan`: what a run would ask, take and lack, without a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.certificate import CaseResult, write_report
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.certifying.plan import COSTS, _start_s
from pytest_mnode.measuring.at_once import MOST_TARGETS, REPEATS
from pytest_mnode.measuring.failover import STEADY_S
from pytest_mnode.protocol.messages import Shape
from pytest_mnode.spec import Criteria, default_spec_path, load_spec
from pytest_mnode.spec.bandwidth import Collective
from tests.certificate.conftest import RIGHT, certify
from tests.inner import need_rack, run_pytest

SHAPE = Shape(4, 1)
DOCS = Path(__file__).parents[2] / "docs/plan.md"
PLAN = ("--mnode-nodes=4", "--mnode-plan", "--pyargs")
SUITE = (*PLAN, "pytest_mnode.acceptance")


def rows(output: str) -> dict[str, list[str]]:
    """Words of each line of the plan by its first word."""
    words = [line.split() for line in output.splitlines()]
    return {line[0]: line[1:] for line in words if line}


@pytest.mark.parametrize("name", COSTS)
def test_the_docs_say_what_a_criterion_costs(name: str) -> None:
    assert f"| {name} | {COSTS[name].loads} | {COSTS[name].others} |" in DOCS.read_text()


def test_every_criterion_has_a_cost() -> None:
    assert COSTS.keys() == Criteria.model_fields.keys()


@pytest.mark.parametrize("given", ["all_reduce", "send_recv"])  # the first and the last
def test_the_time_of_the_fabric_is_that_of_what_is_promised(given: str) -> None:
    spec = load_spec(default_spec_path())
    fabric = spec.criteria.fabric
    assert fabric is not None
    without = {f"{one}_busbw": None for one in Collective if one != given}

    def seconds(**promises: object) -> float:
        criteria = spec.criteria.model_copy(update={"fabric": fabric.model_copy(update=promises)})
        return COSTS["fabric"].expected_s(spec.model_copy(update={"criteria": criteria}), SHAPE)

    assert _start_s(SHAPE) < seconds(**without) < seconds()
    assert seconds(**without, **{f"{given}_busbw": None}) == _start_s(SHAPE)


PORTS = SimpleNamespace(ports=("fab0", "fab1", "fab2"), down_for_s=5.0, within_s=1.0)


@pytest.mark.parametrize(
    ("asked", "promise", "seconds"),
    [
        ("switches", True, 30.0),
        ("bisection", True, 5.0),
        ("incast", True, 0.3 * 4 * REPEATS),
        ("congestion", True, 10.0),
        ("failover", PORTS, (6.0 + 2 * STEADY_S) * 3 * 4),
    ],
)
def test_the_time_of_other_patterns_of_the_fabric(
    asked: str, promise: object, seconds: float
) -> None:
    spec = load_spec(default_spec_path())
    assert spec.criteria.fabric is not None
    found = []
    for given in (None, promise):
        fabric = spec.criteria.fabric.model_copy(update={asked: given})
        criteria = spec.criteria.model_copy(update={"fabric": fabric})
        costed = spec.model_copy(update={"criteria": criteria})
        found.append([COSTS["fabric"].expected_s(costed, Shape(nodes, 1)) for nodes in (4, 40)])
    few, many = (more - less for less, more in zip(*found, strict=True))
    assert few == pytest.approx(seconds)
    assert many <= few * MOST_TARGETS / 4 + 1e-6


def test_the_racks_plan_and_how_long_an_earlier_run_took(tmp_path: Path) -> None:
    path = default_spec_path()
    case = CaseResult(
        "acceptance/test_mesh.py::test_x", "?", "passed", measurements=(RIGHT,), duration_s=600
    )
    end = datetime(2026, 11, 21, 2, 6, tzinfo=UTC)
    certificate = certify(case, promised=["mesh"], spec=facts_of(load_spec(path), path), end=end)
    write_report(tmp_path / "report", certificate)
    done = run_pytest(tmp_path, *SUITE, f"--mnode-report={tmp_path / 'report'}")
    found = rows(done.output)
    assert done.returncode == 0, done.output
    assert found["gang"] == ["0", "of", "4"]
    said = " ".join(found["fabric"][4:])
    assert said.startswith("estimate all NICs, fully")
    assert said.endswith("jobs on the same fabric")
    assert "missing:" not in found
    assert "passed" not in done.output
    assert found["mesh"][3:6] == ["10.0", "earlier", "run"]
    assert "the earlier run ended 2026-11-21 02:06 UTC" in done.output


def test_programs_that_nodes_lack_are_named(tmp_path: Path) -> None:
    need_rack()
    spec = tmp_path / "spec.yaml"
    promise = "nccl_tests: {directory: /no/such}"
    spec.write_text(
        f"extends: rack\naccelerators: {{per_node: 1}}\ncriteria: {{fabric: {{{promise}}}, "
        "scaling: null}\n"
    )
    args = (*PLAN, "pytest_mnode.acceptance.test_fabric", f"--mnode-spec={spec}")
    done = run_pytest(tmp_path, *args)
    lacking = "missing: /no/such/all_reduce_perf on node[0-3], for fabric.all_reduce_busbw"
    assert lacking in done.output
    assert done.returncode == 1


def test_workers_of_xdist_are_refused(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, *SUITE, "-n1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--mnode-plan runs no tests" in done.output
