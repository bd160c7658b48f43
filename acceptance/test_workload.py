"""Does the buyer's own job run as fast as promised, and learn?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode.criteria import workload
from pytest_mnode.options import read_settings
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion


@pytest.fixture(scope="session")
def runs(pytestconfig: pytest.Config) -> workload.Runs:
    """Runs of the command, which all tests judge."""
    return workload.Runs(read_settings(pytestconfig).report_dir)


@pytest.fixture
def ran(cluster: Cluster, spec: Spec, runs: workload.Runs) -> list[workload.Ran]:
    """The command on each promised number of nodes."""
    promise = promised(spec, "workload")
    found = runs.of(cluster, promise, spec.accelerators.per_node or 1)
    if not found:
        pytest.skip(f"workload.nodes: {promise.nodes[0]} or more; give --mnode-nodes")
    return found


def test_the_workload_ends_well(ran: list[workload.Ran], measure: Measure) -> None:
    """Does the training command run to its end, on every number of nodes?"""
    measure.record(workload.judge_end(ran))


def test_the_workload_is_as_fast_as_promised(
    ran: list[workload.Ran], spec: Spec, measure: Measure
) -> None:
    """Does the training command reach the rate, the MFU and the efficiency promised?"""
    promise = promised(spec, "workload")
    per = "an accelerator" if spec.accelerators.per_node else "a rank"
    measure.record(workload.judge_rates(ran, promise, per, spec.accelerators.peak_tflops))


def test_the_workload_spends_its_time_on_steps(
    ran: list[workload.Ran], spec: Spec, measure: Measure
) -> None:
    """Does the training command make progress as much of its time as promised?"""
    promise = promised(spec, "workload")
    if not promise.at_most:
        promised(spec, "workload.goodput_at_least")
    measure.record(workload.judge_goodput(ran[-1], promise))


def test_the_workload_resumes(
    cluster: Cluster, spec: Spec, runs: workload.Runs, measure: Measure
) -> None:
    """Does the training command go on after one of its ranks is killed?"""
    promised(spec, "workload.resume")
    promise = promised(spec, "workload")
    killed = runs.killed(cluster, promise, spec.accelerators.per_node or 1)
    measure.record(workload.judge_resume(killed, promise))


def test_the_workload_learns(ran: list[workload.Ran], spec: Spec, measure: Measure) -> None:
    """Is the loss at the promised steps that of the reference?"""
    promised(spec, "workload.loss")
    measure.record(workload.judge_loss(ran[-1], promised(spec, "workload")))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure, loads="its job may use some NICs only")
