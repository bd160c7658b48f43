"""Do n nodes train n times as fast as one, and if not, why?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.criteria.scaling.job import run_job
from pytest_mnode.criteria.scaling.judge import ScalingResult, judge_efficiency, judge_parts
from pytest_mnode.criteria.scaling.network import judge_network
from pytest_mnode.criteria.scaling.table import charts, table
from pytest_mnode.errors import MnodeError
from pytest_mnode.measuring.limits import locating_s
from pytest_mnode.options import locate_budget_s
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, but not in the controller
    import pytest_mnode.criteria.scaling.program  # noqa: F401

pytestmark = pytest.mark.criterion


@pytest.fixture(scope="session")
def done() -> list[ScalingResult | MnodeError]:
    """What the one job gave that all tests judge; one that failed is not started again."""
    return []


@pytest.fixture
def found(
    cluster: Cluster,
    spec: Spec,
    done: list[ScalingResult | MnodeError],
    pytestconfig: pytest.Config,
) -> ScalingResult:
    """The result of the training job on 1, 2, 4, … of these nodes."""
    promised(spec, "scaling")
    if len(cluster.nodes) < 2:
        pytest.skip("one node scales to nothing; give --mnode-nodes=2 or more")
    if not done:
        budget_s = locating_s(locate_budget_s(pytestconfig), spec, len(cluster.nodes))
        try:
            done.append(run_job(cluster, spec, budget_s=budget_s))
        except MnodeError as error:
            done.append(error)
    [result] = done
    if isinstance(result, MnodeError):
        pytest.fail(str(result), pytrace=False)
    return result


def test_throughput_grows_with_the_nodes(found: ScalingResult, measure: Measure) -> None:
    """Do n nodes do n times the work of one, and if not, what is to blame?"""
    print(table(found))
    measure.record(judge_efficiency(found))
    measure.chart(*charts(found))


def test_every_second_is_attributed(found: ScalingResult, measure: Measure) -> None:
    """Does the clock of every rank's steps agree with that of their parts, which have all of it?"""
    measure.record(judge_parts(found))


def test_gradients_travel_on_the_fabric(found: ScalingResult, measure: Measure) -> None:
    """Did the promised fabric carry the gradients?"""
    measure.record(
        judge_network(found.sent, found.spec, found.promise, found.timings.ranks_per_node)
    )


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)
