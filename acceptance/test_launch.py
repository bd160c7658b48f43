"""Does a job start right, wherever it is placed?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.criteria.launching import rendezvous
from pytest_mnode.criteria.launching.own_ranks import measured_settings
from pytest_mnode.criteria.launching.starting import (
    elsewhere,
    job_of,
    judged_place,
    judged_start,
    measured_image,
    started_by_path,
)
from pytest_mnode.skipping import promised

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
    promise = promised(spec, f"launch.{style}")
    job = job_of(style, promise, JOBS, spec, len(cluster.nodes))
    nodes = cluster.nodes[: job.node_count]
    limit_s = 2 * promise.within_s
    started = started_by_path(cluster, spec, job, nodes, what=style, limit_s=limit_s)
    measure.record(judged_start(started, promise, f"criteria.launch.{style}"))
    measure.record(measured_settings(cluster, spec, started, JOBS / "contract.py"))


@pytest.mark.parametrize("style", STYLES)
def test_job_is_as_right_elsewhere(
    style: str, cluster: Cluster, spec: Spec, measure: Measure
) -> None:
    """Does the same job start right on other nodes, with its master address on the first?"""
    promise = promised(spec, f"launch.{style}")
    promised(spec, "launch.elsewhere")
    if len(cluster.nodes) < 2:
        pytest.skip("there is no elsewhere with one node; give --mnode-nodes=2 or more")
    half = len(elsewhere(cluster.nodes))
    job = job_of(style, promise, JOBS, spec, len(cluster.nodes), every=half)
    nodes = elsewhere(cluster.nodes, job.node_count)
    what = f"{style} elsewhere"
    limit_s = 2 * promise.within_s
    started = started_by_path(cluster, spec, job, nodes, what=what, limit_s=limit_s)
    measure.record(judged_start(started, promise, f"criteria.launch.{style}"))
    addresses = {node: cluster.address(node) for node in cluster.nodes}
    measure.record(judged_place(started, nodes, addresses))


def test_job_runs_in_its_image(cluster: Cluster, spec: Spec, measure: Measure) -> None:
    """Does a job that names an image run in it?"""
    promised(spec, "launch.image")
    measure.record(measured_image(cluster, spec, JOBS))


def test_ranks_meet_in_time(cluster: Cluster, spec: Spec, measure: Measure) -> None:
    """Do as many ranks as promised form a process group in time?"""
    promise = promised(spec, "launch.rendezvous")
    measure.record(rendezvous.measured_rendezvous(cluster, promise, spec))


def test_store_serves_many_clients(cluster: Cluster, spec: Spec, measure: Measure) -> None:
    """Does the store of a rendezvous serve as many clients as promised, in time?"""
    promise = promised(spec, "launch.store")
    loads = rendezvous.measured_loads(cluster, promise)
    print(rendezvous.table(loads))
    measure.record(rendezvous.judged_loads(loads, promise))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure, kills=True)
