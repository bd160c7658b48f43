"""The model of collectives: published runs of healthy clusters reach 0.89 of it, faulty do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.measurement import at_least
from pytest_mnode.spec import BusbwPromise, load_spec, profile_spec
from pytest_mnode.spec.alpha_beta import (
    SLOW_BELOW_KNEE,
    Algorithm,
    CollectiveModel,
    Platform,
    expected_again,
)
from tests.spec.test_schema import CLUSTERS

GIB = 1 << 30
H100 = Platform("infiniband", 400 * 10**9, 8, 8, "NVIDIA H100 80GB HBM3")
B200 = replace(H100, kind="roce", accelerator="NVIDIA B200")
A100 = Platform("infiniband", 200 * 10**9, 4, 8, "NVIDIA A100-SXM4-80GB")
MI300X = replace(H100, kind="roce", accelerator="AMD Instinct MI300X")
GB200 = Platform("infiniband", 400 * 10**9, 4, 4, "NVIDIA GB200", 72, 900e9)
RING, DEFAULT = "ring", "default"
RACK = Platform.of(profile_spec("rack"))


def reached(
    platform: Platform, algorithm: str, nodes: int, size: float, collective: str = "all_reduce"
) -> float:
    model = CollectiveModel(platform, collective, nodes, platform.per_node, "nccl")
    return model.least_gbytes_s(model.algorithms(algorithm), size)


@pytest.mark.parametrize(
    ("platform", "algorithm", "nodes", "gib", "busbw"),
    [
        # NVIDIA/nccl-tests #309 and #290: 2, 4, 8 and 12 nodes of 8 H100
        (H100, RING, 2, 1, 384.49),
        (H100, RING, 2, 8, 392.69),
        (H100, DEFAULT, 2, 0.25, 392.35),
        (H100, DEFAULT, 2, 1, 448.9),
        (H100, DEFAULT, 2, 16, 469.21),
        (H100, DEFAULT, 4, 1, 358.14),
        (H100, DEFAULT, 8, 1, 374.8),
        (H100, DEFAULT, 12, 8, 386.56),
        # 2 nodes of 8 B200, 4 × 200G A100 (#152), MI300X; a rack of 72 and two racks
        (B200, DEFAULT, 2, 0.5, 593.81),
        (B200, DEFAULT, 2, 8, 683.52),
        (A100, DEFAULT, 2, 2, 89.65),
        (MI300X, DEFAULT, 2, 1, 340.75),
        (MI300X, DEFAULT, 2, 16, 357.46),
        (GB200, DEFAULT, 18, 8, 834.57),
        (GB200, DEFAULT, 36, 16, 810.41),
    ],
)
def test_healthy_clusters_come_near_to_the_model(
    platform: Platform, algorithm: str, nodes: int, gib: float, busbw: float
) -> None:
    assert 0.88 < busbw / reached(platform, algorithm, nodes, gib * GIB) < 1.26


@pytest.mark.parametrize(
    ("nodes", "gib", "busbw"),
    [
        (2, 8, 155.57),  # NVIDIA/nccl-tests #290
        (2, 1, 358.0),  # one setting of queue pairs, 456 without it
        (4, 8, 324.52),  # too few channels
        (8, 8, 320.7),
    ],
)
def test_faulty_clusters_miss_it(nodes: int, gib: float, busbw: float) -> None:
    assert busbw < 0.89 * reached(H100, DEFAULT, nodes, gib * GIB)


@pytest.mark.parametrize(("algorithm", "low", "high"), [(RING, 290, 300), (DEFAULT, 350, 360)])
def test_a_quarter_of_the_nics_misses_it_on_two_nodes(
    algorithm: str, low: float, high: float
) -> None:
    """By default NVLink is the limit of all eight; of six no more than 0.75 of what is seen."""
    whole = reached(H100, algorithm, 2, 8 * GIB)
    assert low < 0.75 * whole < high
    assert 0.75 * whole < 0.89 * whole
    # above a ring's bound: a ring alone would let it pass
    assert (0.75 * whole > 0.89 * reached(H100, RING, 2, 8 * GIB)) is (algorithm == DEFAULT)


def test_steps_count_where_ranks_are_many() -> None:
    """1 GiB over 128 ranks: a ring's 254 steps leave 0.82 of the line."""
    assert reached(H100, RING, 16, GIB) == pytest.approx(327, abs=2)
    assert reached(H100, RING, 16, 64 * GIB) > 0.99 * 400
    by_nodes = [reached(H100, RING, nodes, GIB) for nodes in (2, 4, 16, 128)]
    assert by_nodes == sorted(by_nodes, reverse=True)


@pytest.mark.parametrize(
    ("platform", "collective", "nodes", "line"),
    [
        (H100, "all_reduce", 2, 400),
        (H100, "send_recv", 2, 50),
        (GB200, "all_reduce", 18, 0.755 * 900),
        (GB200, "all_reduce", 36, 0.755 * 900),  # the NICs of a rack carry more than NVLink
        (GB200, "all_reduce", 19, 200),  # the second rack has one node
        (replace(GB200, domain_gpus=None), "all_reduce", 18, 200),
    ],
)
def test_the_line_is_that_of_a_domain(
    platform: Platform, collective: str, nodes: int, line: float
) -> None:
    model = CollectiveModel(platform, collective, nodes, platform.per_node, "nccl")
    assert model.line.gbytes_s == pytest.approx(line)


@pytest.mark.parametrize(
    ("nics", "ranks", "next_rank", "rails"),
    [
        (8, 8, 50, 50),  # as fast, but over all eight NICs of a node
        (16, 8, 100, 100),
        (4, 8, 50, 25),
        (1, 2, 50, 25),
    ],
)
def test_by_rails_all_ranks_of_a_node_share_its_nics(
    nics: int, ranks: int, next_rank: float, rails: float
) -> None:
    platform = replace(H100, nics_per_node=nics, per_node=ranks)
    model = CollectiveModel(platform, "send_recv", 2, ranks, "nccl")
    assert model.line.gbytes_s == pytest.approx(next_rank)
    assert model.line_gbytes_s(Algorithm.RAILS) == pytest.approx(rails)
    assert model.algorithms("rails") == (Algorithm.RAILS,)


@pytest.mark.parametrize(
    ("platform", "nodes", "ceiling"),
    [
        (H100, 2, 750),
        (H100, 16, 400 * 2 * 127 / 128),
        (replace(H100, kind="roce"), 16, 400 * 127 / 120),  # reduced inside nodes first
        (A100, 2, 100 * 15 / 8),
        (A100, 16, 100 * 2 * 127 / 128),  # switches of InfiniBand reduce
        (GB200, 18, None),
        (GB200, 36, 900 * 2 * 143 / 144),
    ],
)
def test_the_ceiling_is_what_no_algorithm_exceeds(
    platform: Platform, nodes: int, ceiling: float | None
) -> None:
    found = CollectiveModel(platform, "all_reduce", nodes, platform.per_node, "nccl")
    assert found.ceiling_gbytes_s == (ceiling and pytest.approx(ceiling, rel=1e-3))


@pytest.mark.parametrize(("size", "share"), [(4 << 20, 0.998), (64 << 10, 0.92)])
def test_steps_of_tcp_loosen_the_racks_bounds_by_little(size: int, share: float) -> None:
    model = CollectiveModel(RACK, "all_reduce", 4, 1, "gloo")
    ring = model.busbw_gbytes_s(Algorithm.RING, size)
    assert share < ring / model.line.gbytes_s < 1


def test_at_the_knee_a_ring_has_most_of_its_line() -> None:
    for platform in (H100, MI300X, RACK):
        model = CollectiveModel(platform, "all_reduce", 4, platform.per_node or 1, "nccl")
        ring = model.busbw_gbytes_s(Algorithm.RING, model.knee_bytes)
        assert ring == pytest.approx(0.95 * model.line.gbytes_s, rel=1e-3)


def test_a_bound_is_computed_again_from_its_terms() -> None:
    model = CollectiveModel(H100, "all_reduce", 4, 8, "nccl")
    terms = model.terms(at_least(1), model.default, GIB).terms
    leaves = {
        "fabric.kind": "roce",
        "fabric.line_rate": 200 * 10**9,
        "fabric.nics_per_node": 8,
        "accelerators.per_node": 8,
        "accelerators.model": "NVIDIA A100-SXM4-80GB",
    }
    found = expected_again(terms, leaves)
    assert found is not None
    other = CollectiveModel(Platform.of_leaves(leaves) or H100, "all_reduce", 4, 8, "nccl")
    assert found == (other.least_gbytes_s(model.default, GIB), 200)
    assert expected_again(terms, {}) is None
    assert expected_again(at_least(1).terms, leaves) is None


def test_the_parts_of_a_profile_are_known() -> None:
    spec = load_spec(CLUSTERS / "h100-ib.yaml")
    assert Platform.of(spec) == H100


@pytest.mark.parametrize(
    ("collective", "ranks", "message"),
    [
        ("all_reduce", 1, "all_reduce over one rank moves nothing; give two nodes or more"),
        ("allreduce", 8, "collective 'allreduce' is not one of all_reduce, "),
    ],
)
def test_nothing_to_model_is_said_in_one_line(collective: str, ranks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CollectiveModel(H100, collective, 1, ranks, "nccl")


@pytest.mark.parametrize(
    ("release", "inside_us", "between_us"),
    [
        (None, 3.4, 14),
        ((2, 30), 3.4, 14),
        ((2, 18), 3.4, 14),
        ((2, 17), 3.4, 9.6),
        ((2, 13), 3.4, 28),
        ((2, 11), 3.4, 9.6),
        ((2, 6), 5.7, 6.6),
    ],
)
def test_steps_follow_from_the_release(
    release: tuple[int, int] | None, inside_us: float, between_us: float
) -> None:
    alpha = replace(H100, nccl=release).alpha
    assert (alpha.inside_s * 1e6, alpha.between_s * 1e6) == pytest.approx((inside_us, between_us))
    on_efa = replace(H100, nccl=release, kind="efa").alpha
    assert on_efa.between_s * 1e6 == pytest.approx(between_us + 18)


def test_a_release_is_kept_with_the_bound() -> None:
    model = CollectiveModel(replace(A100, nccl=(2, 13)), "all_reduce", 4, 8, "nccl")
    bound = model.terms(at_least(1), model.default, GIB)
    leaves = {
        "fabric.kind": "infiniband",
        "fabric.line_rate": 200 * 10**9,
        "fabric.nics_per_node": 4,
        "accelerators.per_node": 8,
        "accelerators.model": A100.accelerator,
    }
    again = expected_again(bound.terms, leaves)
    assert again == pytest.approx((model.least_gbytes_s(model.default, GIB), 100))


@pytest.mark.parametrize(
    ("platform", "nodes", "gib", "healthy"),
    [
        (H100, 128, 1, 111),  # of published clusters, whose steps are slower than the model's
        (H100, 128, 8, 365),
        (GB200, 360, 8, 381),
    ],
)
def test_below_the_knee_healthy_clusters_keep_their_bounds_and_half_of_them_does_not(
    platform: Platform, nodes: int, gib: float, healthy: float
) -> None:
    promise = BusbwPromise.model_validate({"at_least_fraction": 0.89, "sizes": ["1 GiB", "8 GiB"]})
    model = CollectiveModel(platform, "all_reduce", nodes, platform.per_node, "nccl")
    bound = promise.bound_gbytes_s(model, model.default, int(gib * GIB)).accepted[0]
    assert healthy / 2 < bound < healthy
    assert f"{SLOW_BELOW_KNEE:g} × (NCCL" in promise.source(model, model.default, int(gib * GIB))


@pytest.mark.parametrize(("ranks", "line"), [(8, 400), (4, 200), (1, 50)])
def test_ranks_of_a_part_of_the_accelerators_use_their_part_of_the_nics(
    ranks: int, line: float
) -> None:
    assert CollectiveModel(H100, "all_reduce", 4, ranks, "nccl").line.gbytes_s == line
