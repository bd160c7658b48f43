"""Does a job start right, wherever it is placed?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.criteria import launching

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion

JOBS = Path(__file__).parents[1] / "fixtures" / "jobs"
STYLES = ("torchrun", "deepspeed", "megatron")


@pytest.mark.parametrize("style", STYLES)
def test_job_gets_the_right_environment(
    style: str, cluster: Cluster, spec: Spec, measure: Measure
) -> None:
    """Do all ranks of a job started this way find the right environment, and each other?"""
    promised = spec.criteria.launch
    if promised is None or (promise := promised.start(style)) is None:
        not_promised(f"launch.{style}")
    job = launching.job_of(style, promise, JOBS, spec, len(cluster.nodes))
    nodes = cluster.nodes[: job.node_count]
    started = launching.start(launching.path_of(cluster), job, nodes, style, 2 * promise.within_s)
    print(started.text())
    started.record(measure, promise, f"criteria.launch.{style}")


@pytest.mark.parametrize("style", STYLES)
def test_job_is_as_right_elsewhere(
    style: str, cluster: Cluster, spec: Spec, measure: Measure
) -> None:
    """Is it the same when the job is placed on other nodes, and does its address follow?"""
    promised = spec.criteria.launch
    if promised is None or (promise := promised.start(style)) is None or not promised.elsewhere:
        not_promised(f"launch.elsewhere with launch.{style}")
    if len(cluster.nodes) < 2:
        pytest.skip("there is no elsewhere with one node; give --mnode-nodes=2 or more")
    half = len(launching.elsewhere(cluster.nodes))
    job = launching.job_of(style, promise, JOBS, spec, len(cluster.nodes), every=half)
    nodes = launching.elsewhere(cluster.nodes, job.node_count)
    what = f"{style} elsewhere"
    started = launching.start(launching.path_of(cluster), job, nodes, what, 2 * promise.within_s)
    print(started.text())
    started.record(measure, promise, f"criteria.launch.{style}")
    addresses = {node: cluster.address(node) for node in cluster.nodes}
    launching.record_place(measure, started, nodes, addresses)


def test_job_runs_in_its_image(cluster: Cluster, spec: Spec, measure: Measure) -> None:
    """Does a job that names an image run in it?"""
    promised = spec.criteria.launch
    if promised is None or promised.image is None:
        not_promised("launch.image")
    path = launching.path_of(cluster)
    launching.record_image(cluster, promised, spec, measure, path=path, folder=JOBS)


def test_ranks_meet_in_time(cluster: Cluster, spec: Spec, measure: Measure) -> None:
    """Do as many ranks as promised make a process group in time?"""
    promised = spec.criteria.launch
    if promised is None or promised.rendezvous is None:
        not_promised("launch.rendezvous")
    launching.record_rendezvous(cluster, promised.rendezvous, spec, measure)


def test_store_serves_many_clients(cluster: Cluster, spec: Spec, measure: Measure) -> None:
    """Does the store of a rendezvous serve as many clients as promised, in time?"""
    promised = spec.criteria.launch
    if promised is None or promised.store is None:
        not_promised("launch.store")
    crowds = launching.crowds_of(cluster, promised.store)
    print(launching.table(crowds))
    launching.record_crowds(crowds, promised.store, measure)


def test_who_never_came_is_named(cluster: Cluster, spec: Spec, measure: Measure) -> None:
    """Where a rank never comes, does every other one say which?"""
    promised = spec.criteria.launch
    if promised is None or promised.absent is None:
        not_promised("launch.absent")
    if len(cluster.nodes) < 2:
        pytest.skip("nobody is missed on one node; give --mnode-nodes=2 or more")
    launching.record_absent(cluster, promised.absent, spec, measure)


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    measure.record(fabric_ports.measurements(kills=True))
