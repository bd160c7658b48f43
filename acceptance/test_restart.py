"""Does a killed training job resume by itself, and lose nothing?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.criteria.restart import experiments
from pytest_mnode.criteria.restart.plan import unpowered
from pytest_mnode.skipping import promised
from pytest_mnode.spec.restart import KILLS, Kill

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, so that ranks need not import it
    import pytest_mnode.reference_job.trainer  # noqa: F401

pytestmark = pytest.mark.criterion


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory that all tests of the session share, so that each run is made once."""
    return tmp_path_factory.getbasetemp()


def test_a_checkpoint_is_loaded_by_other_numbers_of_ranks(
    cluster: Cluster, spec: Spec, base: Path, measure: Measure
) -> None:
    """Does the same job resume on half as many ranks, and on twice as many?"""
    promised(spec, "restart.resharded_tolerance")
    promise = spec.criteria.restart
    assert promise is not None
    measure.record(experiments.judge_other_sizes(promise, cluster, spec, base))


def test_checkpoints_cost_no_more_than_promised(
    cluster: Cluster, spec: Spec, base: Path, measure: Measure
) -> None:
    """How long does a checkpoint take, and how large is it?"""
    promise = promised(spec, "restart")
    measure.record(experiments.judge_checkpoints(promise, cluster, spec, base))


# These tests are last, because a scheduler may not return a lost node. All kills fall on one run,
# and only the first of these tests needs nodes.
@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_job_comes_back_and_loses_nothing(
    kill: Kill, take_cluster: Callable[[], Cluster], spec: Spec, base: Path, measure: Measure
) -> None:
    """Does the job resume after this kill, with each step once and all values equal?"""
    promise = promised(spec, "restart")
    if kill not in promise.kills:
        not_promised(f"restart.kills: {kill}", key="restart.kills")
    if kill in unpowered(promise, spec):
        not_promised(f"restart.kills: {kill}, and no power section: nothing switches nodes off")
    killed = experiments.killed_before(kill, promise, base) or experiments.kill_in_run(
        kill, promise, take_cluster(), spec, base
    )
    if not isinstance(killed, str):
        print("\n".join(killed.lines))
        measure.chart(*killed.timeline(kill))
    measure.record(experiments.judge_killed(kill, promise, killed, base))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure, kills=True)
