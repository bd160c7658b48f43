"""Does a training job that is killed come back by itself, and lose nothing?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.criteria import restart
from pytest_mnode.spec.restart import KILLS, Kill

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kept for all tests of the session: the run that nobody kills is made once."""
    return tmp_path_factory.getbasetemp()


def test_a_damaged_checkpoint_is_refused(
    cluster: Cluster, spec: Spec, base: Path, measure: Measure
) -> None:
    """Is a damaged checkpoint refused with its reason, and the one before used instead?"""
    promised = spec.criteria.restart
    if promised is None or not promised.refuses_damaged:
        not_promised("restart.refuses_damaged")
    for finding in restart.judged_with_a_damaged_checkpoint(promised, cluster, spec, base):
        finding.record(measure)


def test_a_checkpoint_is_loaded_by_other_numbers_of_ranks(
    cluster: Cluster, spec: Spec, base: Path, measure: Measure
) -> None:
    """Does a job go on with half as many ranks, and with twice as many, as the same job?"""
    promised = spec.criteria.restart
    if promised is None or promised.resharded_tolerance is None:
        not_promised("restart.resharded_tolerance")
    for resharded in restart.judged_on_other_sizes(promised, cluster, spec, base):
        resharded.record(measure)


def test_checkpoints_cost_no_more_than_promised(
    cluster: Cluster, spec: Spec, base: Path, measure: Measure
) -> None:
    """How long does a checkpoint take, and how large is it?"""
    promised = spec.criteria.restart
    if promised is None:
        not_promised("restart")
    for finding in restart.judged_checkpoints(promised, cluster, spec, base):
        finding.record(measure)


# Last: a scheduler may not give a node back that it was killed on. Two kills fall on one run, and
# the second test of the two needs no nodes.
@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_job_comes_back_and_loses_nothing(
    kill: Kill, take_cluster: Callable[[], Cluster], spec: Spec, base: Path, measure: Measure
) -> None:
    """Does it come back from this kill, with each step and sample once and every number equal?"""
    promised = spec.criteria.restart
    if promised is None or kill not in promised.kills:
        not_promised(f"restart.kills: {kill}")
    killed = restart.judged_before(kill, promised, base)
    if killed is None:
        killed = restart.judged_kill(kill, promised, take_cluster(), spec, base)
    print("\n".join(killed.lines))
    killed.record(measure)


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure, kills=True)
