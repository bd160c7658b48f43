"""Does the fabric carry the promised traffic?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import measuring as bench
from pytest_mnode import not_promised
from pytest_mnode.criteria import fabric as judges
from pytest_mnode.criteria import traffic
from pytest_mnode.criteria.failover import judge_failover, judge_switches
from pytest_mnode.criteria.preflight.survey import changed_paths
from pytest_mnode.measuring import at_once, limits
from pytest_mnode.measuring.tools import missing_on, nccl_tests, perftest, perftest_pairs
from pytest_mnode.options import locate_budget_s
from pytest_mnode.skipping import promised, skip_if_waived
from pytest_mnode.spec.alpha_beta import Platform

if TYPE_CHECKING:
    import torch

    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion
needs_group = pytest.mark.usefixtures("process_group")

COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter"),
    *("all_to_all", "broadcast", "send_recv"),
)


@pytest.fixture
def known(tmp_path_factory: pytest.TempPathFactory) -> bench.KnownCulprits:
    """Culprits already found in this run, stored where the ranks of all worlds find them."""
    return bench.KnownCulprits(tmp_path_factory.getbasetemp().parents[1])


@needs_group
@pytest.mark.stops("fabric", only_hung=True)
@pytest.mark.parametrize(
    "collective",
    [
        pytest.param(
            name,
            marks=pytest.mark.mnode(
                timeout=limits.collective_limit_s(name),
                still=limits.still_limit_s,
                on_failure=changed_paths,
            ),
        )
        for name in COLLECTIVES
    ],
)
def test_collective_reaches_the_line_rate(  # noqa: PLR0917  what it asks for
    collective: str,
    world: World,
    device: torch.device,
    spec: Spec,
    known: bench.KnownCulprits,
    measure: Measure,
    pytestconfig: pytest.Config,
) -> None:
    """Does this collective reach the line rate promised, with the right results?"""
    promise = promised(spec, f"fabric.{collective}_busbw")
    budget_s = limits.locating_s(locate_budget_s(pytestconfig), spec, len(world.nodes))
    found = bench.measure_busbw(
        collective, promise, spec, world, device, known=known, budget_s=budget_s
    )
    print(judges.tables(found))
    measure.record(judges.judge_busbw(found))
    measure.chart(*judges.curves(found))


@needs_group
@pytest.mark.stops("fabric", only_hung=True)
@pytest.mark.mnode(
    timeout=limits.paths_limit_s, still=limits.still_limit_s, on_failure=changed_paths
)
def test_every_path_reaches_the_line_rate(
    world: World, device: torch.device, spec: Spec, measure: Measure, pytestconfig: pytest.Config
) -> None:
    """Does every path between two nodes reach the line rate promised, in each direction?"""
    fabric = spec.criteria.fabric
    promises = [fabric.busbw(name) for name in ("send_recv", *COLLECTIVES)] if fabric else []
    promise = next((promise for promise in promises if promise), None)
    if fabric is None or promise is None:
        not_promised("send_recv_busbw, nor any other from which the rate of a path follows")
    if len(world.nodes) < 2:
        pytest.skip("one node has no path to another; give --mnode-nodes=2 or more")
    every_path = pytestconfig.getoption("mnode_locate")
    found = bench.find_slow_links(
        world,
        spec,
        (),
        promise.nic_mbits_s(spec.fabric),
        device,
        budget_s=limits.locating_s(
            locate_budget_s(pytestconfig), spec, len(world.nodes), every_path=every_path
        ),
        outliers_only=fabric.send_recv_busbw is None,  # one pair may not use the full line rate
        every_path=every_path,
    )
    measure.record(judges.judge_slow_links(found))
    for rates in found.rates if world.rank == 0 else ():
        measure.chart(rates)


@needs_group
@pytest.mark.stops("fabric", only_hung=True)
@pytest.mark.mnode(timeout=limits.paths_limit_s, still=limits.still_limit_s)
def test_small_messages_are_as_fast_as_between_other_nodes(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Do small messages take as long between any two nodes as between most?"""
    promised(spec, "fabric")
    if len(world.nodes) < 3:
        not_promised("small messages of two nodes, which have no other pair to compare with")
    measure.record(judges.judge_latencies(bench.latencies(world, device), world.nodes))


@needs_group
@pytest.mark.mnode(timeout=limits.transport_limit_s)
def test_traffic_runs_on_the_fabric(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does the traffic use the promised fabric, by all four facts?"""
    promise = promised(spec, "fabric.transport")
    if len(world.nodes) < 2:
        pytest.skip("traffic of one node leaves no node; give --mnode-nodes=2 or more")
    found = bench.prove_transport(world, promise, spec, device)
    print(*found, sep="\n")
    measure.record(found)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nccl_tests_reach_the_line_rate(
    collective: str, cluster: Cluster, spec: Spec, measure: Measure
) -> None:
    """Does nccl-tests measure the line rate promised for this collective?"""
    promise = promised(spec, f"fabric.{collective}_busbw")
    if not spec.accelerators.per_node:
        not_promised("accelerators, which nccl-tests needs")
    given = spec.criteria.fabric and spec.criteria.fabric.nccl_tests
    how = given or nccl_tests.DEFAULT
    program = nccl_tests.program_of(collective, how)
    skip_if_waived(spec, "fabric.nccl_tests")
    per_node, platform = spec.accelerators.per_node, Platform.of(spec)
    if how.command is None and (lacking := missing_on(cluster, program)):
        ranks = len(cluster.nodes), per_node
        measure.record(nccl_tests.missing(collective, program, lacking, platform, promise, ranks))
        return
    runs = nccl_tests.run_until_decided(cluster, collective, how, promise, per_node, platform)
    print(*(run.output for run in runs), sep="\n")
    measure.record(nccl_tests.judge(runs, platform, promise))


@pytest.mark.parametrize(
    "key", ["write_bandwidth", "read_bandwidth", "send_bandwidth", "write_latency"]
)
def test_rdma_by_perftest_is_as_promised(
    key: str, cluster: Cluster, spec: Spec, measure: Measure
) -> None:
    """Does perftest measure the promised values from each node to the next, over each rail?"""
    if spec.fabric.kind not in ("infiniband", "roce"):
        not_promised(f"RDMA that perftest can use, on {spec.fabric.kind}")
    given: perftest_pairs.Promise | None = getattr(spec.criteria.fabric, key, None)
    how = given or perftest.DEFAULT
    if given is None and key != "write_bandwidth":
        not_promised(key=f"fabric.{key}")
    skip_if_waived(spec, f"fabric.{key}")
    lacking = missing_on(cluster, how.program)
    if len(lacking) == len(
        cluster.nodes
    ):  # else pairs are measured, and say on which node it lacks
        measure.record(perftest.missing(lacking, spec.fabric, how))
        return
    there = perftest.devices_of(cluster)
    measure.record(perftest.judge_devices(there, spec.fabric))
    devices = perftest.of_fabric(there, spec.fabric)
    bound = perftest.bound_of(spec.fabric, how)
    pairs = list(perftest_pairs.run_pairs(cluster, devices, how, bound))
    measure.record(perftest.judge(pairs, spec.fabric, how))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)


@needs_group
@pytest.mark.stops("fabric", only_hung=True)
@pytest.mark.mnode(timeout=limits.at_once_limit_s, still=limits.still_limit_s)
def test_halves_exchange_at_full_rate(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Do all nodes of one half exchange with those of the other at the rate promised, at once?"""
    promise = promised(spec, "fabric.bisection")
    if not all(at_once.halves_of(world.nodes, promise)):
        pytest.skip("one half has no node of this run; give more nodes, or other halves")
    found = bench.bisection(world, spec, promise, device)
    if not found.halves[0]:
        pytest.skip("NVLink carries each pair; give --mnode-nodes more than an NVLink domain has")
    measure.record(traffic.judge_bisection(found, promise))


@needs_group
@pytest.mark.stops("fabric", only_hung=True)
@pytest.mark.mnode(timeout=limits.at_once_limit_s, still=limits.still_limit_s)
def test_all_send_to_one_without_losses(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does a node to which all others send receive the rate promised, without losses?"""
    promise = promised(spec, "fabric.incast")
    if len(world.nodes) < 3:
        pytest.skip("an incast has two senders; give --mnode-nodes=3 or more")
    found = bench.incast(world, spec, device)
    if not found.gbits_s:
        pytest.skip("NVLink joins all nodes; give --mnode-nodes more than an NVLink domain has")
    measure.record(traffic.judge_incast(found, promise, spec.fabric))


@needs_group
@pytest.mark.stops("fabric", only_hung=True)
@pytest.mark.mnode(timeout=limits.at_once_limit_s, still=limits.still_limit_s)
def test_other_traffic_costs_no_more_than_promised(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does an all-reduce lose no more than promised while other nodes exchange beside it?"""
    promise = promised(spec, "fabric.congestion")
    if min(map(len, at_once.sides_of(world.nodes, promise))) < 2:
        pytest.skip("victims and aggressors are two nodes each at least; give --mnode-nodes=4")
    found = bench.beside(world, spec, promise, device)
    measure.record(traffic.judge_congestion(found, promise))


@needs_group
@pytest.mark.mnode(timeout=limits.switches_limit_s, still=limits.switches_limit_s)
def test_switches_are_sound(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Are all links of the InfiniBand switches fast, and free of errors while all nodes send?"""
    promise = promised(spec, "fabric.switches")
    found = bench.look_at_switches(world, spec, promise, device)
    measure.record(judge_switches(found, promise, world.nodes))


@needs_group
@pytest.mark.stops("fabric", only_hung=True)
@pytest.mark.mnode(timeout=limits.failover_limit_s)
def test_other_ports_take_over_from_one_that_goes_down(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does traffic go on as promised while a port is down, and once it is up again?"""
    promise = promised(spec, "fabric.failover")
    if len(world.nodes) < 2:
        pytest.skip("a port fails over between two nodes; give --mnode-nodes=2 or more")
    measure.record(judge_failover(bench.fail_over(world, spec, promise, device), promise))
