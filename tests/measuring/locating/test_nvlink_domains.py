"""Paths inside NVLink domains and across them: each is compared only with its like."""

from __future__ import annotations

import pytest
import torch

from pytest_mnode.criteria.fabric import judge_slow_links
from pytest_mnode.machine.nvlink import NO_CLUSTER, Registration
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring import nvlink_domains as module
from pytest_mnode.measuring import ranks
from pytest_mnode.measuring.locating.diagnosis import diagnose
from pytest_mnode.measuring.locating.locate import SlowLinks
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Reading
from pytest_mnode.measuring.locating.search import search
from pytest_mnode.path_rates import State
from pytest_mnode.rank.world import World
from pytest_mnode.spec import profile_spec
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.fabric import locate
from pytest_mnode.virtual.faults import inject

GB200 = profile_spec("gb200-nvl72")


def _searched(nodes: int, *faults: str) -> SlowLinks:
    cluster = VirtualCluster.healthy(GB200, nodes, seed=1)
    for fault in faults:
        inject(cluster, fault)
    return locate(cluster, 0.78 * GB200.fabric.line_rate_mbits_s, ())


@pytest.mark.parametrize("nodes", [2, 8, 19, 36, 90])
def test_nobody_of_a_healthy_cluster_is_slow(nodes: int) -> None:
    """Two racks and a half of nodes, of which pairs of one rack are 14 times as fast as others."""
    found = _searched(nodes)
    assert (found.culprit, found.faults, found.paths_measured) == (None, 0, found.paths)
    assert all(one.verdict is not Verdict.FAIL for one in judge_slow_links(found))


@pytest.mark.parametrize("nodes", [24, 36])
@pytest.mark.parametrize(
    ("fault", "named", "device"),
    [
        ("slow_nic:node20:mlx5_2=0.6", "node20 mlx5_2 (", "mlx5_2"),
        ("narrow_nvlink:node20=0.6", "node20 NVLink (", "NVLink of GPU 3"),
        ("slow_path:node1+node20=0.5", "the path node1↔node20 (", ""),
        ("slow_path:node1+node3=0.5", "the path node1↔node3 NVLink (", ""),
    ],
)
def test_the_culprit_is_slow_among_its_like(
    nodes: int, fault: str, named: str, device: str
) -> None:
    found = _searched(nodes, fault)
    assert found.culprit is not None
    assert found.culprit.startswith(named)
    if device:
        assert {*found.culprit.nodes} == {"node20"}
        assert ("node20", device) in found.culprit.parts.devices


def test_a_slow_nic_and_a_slow_nvlink_of_one_node() -> None:
    found = _searched(36, "slow_nic:node20:mlx5_2=0.6", "narrow_nvlink:node3=0.6")
    assert {*(found.culprit or _searched(2).summary).nodes} == {"node3", "node20"}


def test_one_domain_says_that_no_nic_was_measured() -> None:
    found = _searched(8, "slow_nic:node3:mlx5_2=0.5", "narrow_nvlink:node5=0.6")
    assert str(found.culprit).startswith("node5 NVLink (")
    _, measured, *_ = judge_slow_links(found)
    assert measured.verdict is Verdict.PASS
    assert measured.note.endswith("NICs: no path leaves the NVLink domain")
    [table] = found.rates
    assert table.rails == tuple(f"NVLink of GPU {gpu}" for gpu in range(4))


def test_tables_of_nics_and_of_nvlink_have_their_own_paths_and_bounds() -> None:
    nics, nvlink = _searched(24, "slow_nic:node20:mlx5_2=0.6").rates
    assert (nics.bound_mbits_s, nvlink.bound_mbits_s) == pytest.approx((312e3, 4.24e6), rel=0.01)
    tried = [
        {path[:2] for path in t.paths() if path[2] is not State.NOT_TESTED} for t in (nics, nvlink)
    ]
    assert not tried[0] & tried[1]
    assert len(tried[0] | tried[1]) == 24 * 23
    assert nics.rail_states[20] == "ppfp"
    assert nvlink.rail_states[20] == "pppp"


def test_domains_need_not_follow_the_order_of_nodes() -> None:
    """Nodes of two racks in turns, whose third node has a slow NIC."""
    rates = Rates(8, 1, 85.0, [node % 2 for node in range(8)], 850.0)
    steps = search(rates, every_path=True, day=0)
    step = next(steps, None)
    while step is not None:
        readings = [
            Reading(f.sender, f.receiver, rail, rate, step.alone)
            for f in step.flows
            for rail in f.rails
            for rate in [1000 if rail else 50 if 2 in (f.sender, f.receiver) else 100]
        ]
        assert all((one.sender - one.receiver) % 2 != one.rail for one in readings)
        try:
            step = steps.send(readings)
        except StopIteration:
            step = None
    [slow] = diagnose(rates).nodes
    assert (slow.node, slow.rails, slow.confirmed) == (2, (0,), True)


A = "aaaaaaaa-d722-4357-9ba6-5291dd461278"


@pytest.mark.parametrize(
    ("mine", "others", "device", "said", "domains"),
    [
        ((A, 1), (f"{A} 1", f"{A} 2"), "cuda", f"{A} 1", [0, 0, 2]),
        ((NO_CLUSTER, 0), (f"{A} 1", "node2"), "cuda", "node0", [0, 1, 2]),
        ((None, None), (f"{A} 1", f"{A} 2"), "cuda", None, [0, 0, 0]),
        ((A, 1), (None, f"{A} 2"), "cuda", f"{A} 1", [0, 0, 0]),
        ((A, 1), (f"{A} 1", f"{A} 1"), "cpu", None, [0, 1, 2]),
    ],
)
def test_domains_are_as_gpus_are_registered(  # noqa: PLR0917  a table
    monkeypatch: pytest.MonkeyPatch,
    mine: tuple[str | None, int | None],
    others: tuple[str | None, ...],
    device: str,
    said: str | None,
    domains: list[int],
) -> None:
    """Else in the spec's order; ranks on CPUs send over NICs wherever they are."""
    monkeypatch.setattr(module, "nvidia_smi", lambda *_: "")
    monkeypatch.setattr(module, "parse_fabric", lambda _: [Registration("Completed", "", *mine)])
    asked: list[str | None] = []

    def gathered(one: str | None) -> list[str | None]:
        asked.append(one)
        return [each for node in (one, *others) for each in (node, None)]

    monkeypatch.setattr(ranks, "gathered", gathered)
    world = World(0, 6, 0, 2, "node0", ("node0", "node1", "node2"))
    assert list(module.domains_of(world, GB200, torch.device(device))) == domains
    assert asked == ([said] if device == "cuda" else [])
