"""Do n nodes train n times as fast as one, and if not, why?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.criteria import scaling
from pytest_mnode.errors import MnodeError
from pytest_mnode.options import locate_budget_s

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion


@pytest.fixture(scope="session")
def kept() -> scaling.Kept:
    """One job answers all questions."""
    return scaling.Kept()


@pytest.fixture
def found(
    cluster: Cluster, spec: Spec, kept: scaling.Kept, pytestconfig: pytest.Config
) -> scaling.Scaling:
    """What the training job measured on 1, 2, 4, … of these nodes."""
    if spec.criteria.scaling is None:
        not_promised("scaling")
    if len(cluster.nodes) < 2:
        pytest.skip("one node scales to nothing; give --mnode-nodes=2 or more")
    try:
        return kept.measured(cluster, spec, locate_budget_s(pytestconfig))
    except MnodeError as error:
        why = str(error)
    pytest.fail(why, pytrace=False)


def test_throughput_grows_with_the_nodes(found: scaling.Scaling, measure: Measure) -> None:
    """Do n nodes do n times the work of one, and if not, what is to blame?"""
    print(scaling.table(found))
    found.record_efficiency(measure)


def test_every_second_is_attributed(found: scaling.Scaling, measure: Measure) -> None:
    """Do the parts of every rank's steps, and of what is lost, add up?"""
    found.record_parts(measure)


def test_gradients_travel_on_the_fabric(found: scaling.Scaling, measure: Measure) -> None:
    """Did the fabric promised carry the bytes of the steps?"""
    found.record_network(measure)


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)
