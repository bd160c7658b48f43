"""Values that the wire allows, usual values, and reasons for a value with a known cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.certificate.run_facts import leaves, page_of
from pytest_mnode.measuring.algorithms import Algorithm
from pytest_mnode.measuring.busbw import bounds_of
from pytest_mnode.spec import load_spec, profile_spec
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform, expected_again
from pytest_mnode.spec.bandwidth import busbw_at_line_rate
from pytest_mnode.spec.expect import COLLECTIVES, Expectation
from tests.spec.test_schema import CLUSTERS

H100 = load_spec(CLUSTERS / "h100-ib.yaml")
RACK = profile_spec("rack")
GIB = 1 << 30


def h100(nodes: int = 16, collective: str = "all_reduce") -> Expectation:
    return Expectation(H100, collective, nodes, 8)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_wire_is_the_line_of_the_spec(collective: str) -> None:
    line = busbw_at_line_rate(collective, H100.fabric, 16, 8, "nccl").gbytes_s
    found = h100(collective=collective).of_size(8 * GIB)
    assert found.wire == line
    assert 0 < found.low < found.high <= line


@pytest.mark.parametrize("nodes", [2, 4, 16])
@pytest.mark.parametrize("algorithm", ["ring", "default"])
@pytest.mark.parametrize("size", [1 << 20, GIB, 4 * GIB])
def test_expect_the_criterion_and_judge_have_one_bound(
    nodes: int, algorithm: str, size: int
) -> None:
    """The same spec, nodes and size: the same number."""
    fabric = H100.criteria.fabric
    assert fabric is not None
    assert fabric.all_reduce_busbw is not None
    promise = fabric.all_reduce_busbw
    model = CollectiveModel(Platform.of(H100), "all_reduce", nodes, 8, "nccl")
    measured = Algorithm(algorithm, pinned=algorithm == "ring", physical=False, note="")
    criterion = bounds_of(promise, model, measured).get(size)
    expected = replace(h100(nodes), algorithm=algorithm).of_size(size).bound
    assert expected == (criterion.accepted[0] if criterion else None)
    if criterion:
        again = expected_again(criterion.terms, dict(leaves(page_of(H100))))
        assert again is not None
        assert expected == pytest.approx(promise.at_least_fraction * again[0])


def test_published_values_are_usual() -> None:
    for size, busbw in ((512 << 20, 356), (8 * GIB, 387)):
        found = h100().of_size(size)
        assert found.low <= busbw <= found.high
    a100 = Expectation(load_spec(CLUSTERS / "a100-ib.yaml"), "all_reduce", 4, 8)
    found = a100.of_size(4 * GIB)
    assert found.low <= 165
    assert found.high >= 185


def test_usual_values_rise_with_the_size_and_fall_with_the_nodes() -> None:
    of_sizes = [h100().of_size(1 << power) for power in range(20, 34)]
    assert [one.low for one in of_sizes] == sorted(one.low for one in of_sizes)
    assert [one.high for one in of_sizes] == sorted(one.high for one in of_sizes)
    of_nodes = [h100(nodes).of_size(64 << 20).low for nodes in (2, 8, 64, 512)]
    assert of_nodes == sorted(of_nodes, reverse=True)


def test_headers_count_where_tcp_runs_in_frames() -> None:
    found = Expectation(RACK, "all_reduce", 4, 1).of_size(4 << 20)
    assert found.wire == pytest.approx(0.025 * 0.9564, rel=1e-3)
    real = Expectation(RACK.model_copy(update={"emulated": ()}), "all_reduce", 4, 1)
    assert real.of_size(4 << 20).wire == pytest.approx(0.025 * 0.9415, rel=1e-3)
    for measured in (0.89, 0.95):  # the rack's spec says how it was measured
        assert found.low <= measured * 0.025 <= found.high


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        (0.9, "usual: 90% of the wire"),
        (0.5, "half of the wire"),
        (0.25, "a quarter of the wire"),
        (0.0075, "silent TCP"),
        (0.65, "a slow node, or congestion"),
        (1.2, "120% of one ring: ranks reduce inside nodes first"),
    ],
)
def test_a_share_has_its_reason_first(share: float, reason: str) -> None:
    assert h100(4).reasons(8 * GIB, share * 400)[0].startswith(reason)


@pytest.mark.parametrize(
    ("nodes", "share", "word"),
    [(2, 0.45, "PCIe ACS"), (2, 0.13, "a release of NCCL")],
)
def test_a_published_share_has_its_cause(nodes: int, share: float, word: str) -> None:
    of = h100(nodes)
    reasons = of.reasons(8 * GIB, share * of.of_size(8 * GIB).wire)
    assert any(word in reason for reason in reasons)


def test_a_missing_nic_and_a_small_size_are_among_the_reasons() -> None:
    two_nics = H100.model_copy(
        update={"fabric": H100.fabric.model_copy(update={"nics_per_node": 4})}
    )
    reasons = Expectation(two_nics, "all_reduce", 2, 8).reasons(8 * GIB, 0.74 * 375)
    assert any(reason.startswith("one of 4 NICs carries nothing") for reason in reasons)
    less = 0.9 * h100(2).of_size(4 << 20).low
    [small] = [r for r in h100(2).reasons(4 << 20, less) if r.startswith("too small a size")]
    assert "ring (30)" in small
    one = Expectation(two_nics, "all_reduce", 2, 8).reasons(8 * GIB, 0.12 * 200)
    assert one[0].startswith("one of 4 NICs carries all bytes")


def test_what_misses_the_bound_is_not_usual_though_it_exceeds_a_rings_bound() -> None:
    """As two of eight NICs dead: 0.75 of the 480 GB/s that two healthy nodes reach."""
    found = h100(2).of_size(8 * GIB)
    assert found.bound is not None
    assert found.low < 360 < found.bound
    assert h100(2).reasons(8 * GIB, 360)[0].startswith("a slow node, or congestion")
    assert h100(2).reasons(8 * GIB, 467)[0].startswith("usual")


def test_the_management_network_is_a_reason_on_the_rack() -> None:
    reasons = Expectation(RACK, "all_reduce", 4, 1).reasons(4 << 20, 0.0022)
    assert reasons[0].startswith("over the management network, which leaves 10.0% at most")


def test_more_than_the_wire_without_a_hierarchy_is_a_wrong_spec() -> None:
    [reason] = Expectation(RACK, "all_reduce", 4, 1).reasons(4 << 20, 0.05)
    assert "line_rate or nics_per_node is too low" in reason


@pytest.mark.parametrize(
    ("nodes", "busbw", "reason"),
    [
        (2, 489, "122% of one ring: ranks reduce inside nodes first, which allows 188%"),
        (32, 489, "122% of one ring: switches reduce (SHARP), which allows 199%"),
        (32, 900, "225% of the wire: the spec's line_rate or nics_per_node is too low"),
    ],
)
def test_more_than_a_ring_is_explained_by_faster_algorithms(
    nodes: int, busbw: float, reason: str
) -> None:
    [found] = h100(nodes).reasons(GIB, busbw)
    assert found.startswith(reason)
