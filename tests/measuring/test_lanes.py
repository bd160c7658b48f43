"""Lanes of one rank on a network that answers at once: errors, groups, which paths are tried."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_mnode.measuring import lanes, nic_counters, ranks
from pytest_mnode.measuring.lanes import Lane, Together, at_once, message_bytes, some_nics
from pytest_mnode.rank.world import World
from pytest_mnode.spec import default_spec_path, load_spec

WORLD = World(0, 4, 0, 1, "node0", ("node0", "node1", "node2", "node3"))
LANES = [
    Lane("dp", "all_reduce", ((0, 1), (2, 3)), 64),
    Lane("ep", "all_to_all", ((0, 2), (1, 3)), 64),
]


@pytest.fixture(autouse=True)
def four_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only rank 0 is there; the others measured the same."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    monkeypatch.setattr(ranks, "by_rank", lambda numbers, _: [[*numbers]] * 4)
    monkeypatch.setattr(nic_counters, "gathered", lambda one: [one] * 4)
    yield
    dist.destroy_process_group()


def measured(**given: Any) -> Together:
    spec = load_spec(default_spec_path())
    return at_once("dp 2 × ep 2", LANES, spec, WORLD, torch.device("cpu"), rounds=3, **given)


def test_an_error_in_the_thread_of_a_lane_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(dist, "all_to_all_single", fails)
    with pytest.raises(RuntimeError, match="connection closed by peer") as raised:
        measured()
    assert raised.value.__notes__ == ["in lane ep"]


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        ({}, set()),
        ({"least_together": 0.0, "least": 1e-9}, set()),
        ({"least_together": 1e9}, {(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1)}),
    ],
)
def test_paths_are_tried_where_lanes_fall_short_together(
    given: dict[str, float], pairs: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, destroyed = list[object](), list[Any]()

    def paths_alone(found: set[tuple[int, int]], *_: object) -> dict[Any, tuple[float, float]]:
        asked.append(found)
        return {}

    destroy = dist.destroy_process_group
    monkeypatch.setattr(lanes, "paths_alone", paths_alone)
    monkeypatch.setattr(dist, "destroy_process_group", destroyed.append)
    assert len(measured(**given).overlaps) == 3
    monkeypatch.setattr(dist, "destroy_process_group", destroy)
    assert asked == [pairs]
    assert len(destroyed) == 2
    for group in destroyed:
        destroy(group)


@pytest.mark.parametrize(("size", "rounded"), [(1 << 20, 1 << 20), (1000, 768), (10, 256)])
def test_a_message_has_whole_values_of_each_rank(size: int, rounded: int) -> None:
    world = World(0, 64, 0, 8, "node0", tuple(f"node{n}" for n in range(8)))
    assert message_bytes(load_spec(default_spec_path()), world, size) == rounded


def test_bytes_of_nics_are_counted_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([{"mlx5_0:1": 7, "mlx5_1:1": 7}, {"mlx5_0:1": 107, "mlx5_1:1": 207}])
    monkeypatch.setattr(nic_counters, "sent_so_far", lambda: next(counts))
    sent = measured().sent
    assert [one.node for one in sent] == [*WORLD.nodes]
    assert [one.sent_bytes for one in sent] == [{"mlx5_0": 100, "mlx5_1": 200}] * 4
    assert all(one.least_bytes > 0 for one in sent)


@pytest.mark.parametrize(
    ("kind", "groups", "some"),
    [
        ("all_reduce", (tuple(range(8)),), False),  # one ring leaves by one rank, several by all
        ("all_reduce", ((0, 4), (1, 5), (2, 6), (3, 7)), False),
        ("all_to_all", ((0, 1), (2, 3), (4, 5), (6, 7)), False),  # stays in nodes of four
        ("all_reduce", ((0, 1), (2, 4), (3, 5), (6, 7)), True),
        ("send_recv", ((0, 4), (1, 5), (2, 6), (3, 7)), False),
        ("send_recv", (tuple(range(8)),), True),  # from rank 3 to 4 only
        ("send_recv", ((0, 2, 4, 6), (1, 3, 5, 7)), True),
    ],
)
def test_which_nics_lanes_use(
    kind: lanes.Kind, groups: tuple[tuple[int, ...], ...], some: bool
) -> None:
    assert bool(some_nics([Lane("pp", kind, groups, 64)], 4)) is some
