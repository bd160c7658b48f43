"""What was located once stands for the next collective, where it explains, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from pytest_mnode.measuring.busbw import KnownCulprits
from pytest_mnode.rank.world import World

NODES = ("node0", "node1")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "broadcast_object_list", lambda objects, src: None)


def _world(nodes: tuple[str, ...] = NODES, rank: int = 0) -> World:
    return World(rank, len(nodes), 0, 1, nodes[rank], nodes)


@pytest.mark.parametrize(
    ("nodes", "instead", "age_s", "explains"),
    [
        (NODES, None, 10.0, True),
        (NODES, None, 301.0, False),
        (NODES, None, -1.0, False),  # the node was started again
        (NODES, "all nodes sent over mgmt0 instead of fab0", 10.0, False),
        (("node0", "node2"), None, 10.0, False),
    ],
)
def test_a_finding_explains_the_same_nodes_for_a_while(
    tmp_path: Path, nodes: tuple[str, ...], instead: str | None, age_s: float, explains: bool
) -> None:
    KnownCulprits(tmp_path, lambda: 1000.0).keep(_world(), None, "node1 fab0", "all_reduce")
    found = KnownCulprits(tmp_path, lambda: 1000.0 + age_s).explaining(_world(nodes), instead)
    assert (found is not None) is explains
    if found is not None:
        assert (found.culprit, found.collective) == ("node1 fab0", "all_reduce")


def test_only_rank_0_keeps_and_reads(tmp_path: Path) -> None:
    known = KnownCulprits(tmp_path)
    known.keep(_world(rank=1), None, "node1 fab0", "all_reduce")
    assert list(tmp_path.iterdir()) == []
    known.keep(_world(), None, "node1 fab0", "all_reduce")
    assert known.explaining(_world(rank=1), None) is None  # it hears of it from rank 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": 3}', "\x00"])
def test_what_cannot_be_read_is_looked_for_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "culprit.json").write_text(text)
    assert KnownCulprits(tmp_path).explaining(_world(), None) is None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    known = KnownCulprits(tmp_path / "missing")
    known.keep(_world(), None, "node1 fab0", "all_reduce")
    assert known.explaining(_world(), None) is None
