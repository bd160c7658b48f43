"""The algorithm of each measurement; a pinned ring leaves the environment unchanged."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring.algorithms import Algorithm, algorithms_of, fresh_group
from pytest_mnode.spec.bandwidth import Collective

CPU = torch.device("cpu")
RING, DEFAULT = algorithms_of(Collective.ALL_REDUCE, "nccl", 8)


@pytest.mark.parametrize(
    ("collective", "backend", "found"),
    [
        *(
            (name, "nccl", [("ring", True, True), ("default", False, False)])
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
        ),
        ("all_to_all", "nccl", [("default", False, True)]),
        *(
            ("send_recv", name, [("default", False, True), ("rails", False, True)])
            for name in ("nccl", "gloo")
        ),
        ("all_reduce", "gloo", [("ring", False, True)]),
        ("all_gather", "gloo", [("ring", False, True)]),
        ("reduce_scatter", "gloo", [("default", False, True)]),
        ("broadcast", "gloo", [("default", False, True)]),
        ("all_reduce", "ucc", [("default", False, False)]),
    ],
)
def test_a_ring_is_pinned_if_nccl_has_a_choice(
    collective: str, backend: str, found: list[tuple[str, bool, bool]]
) -> None:
    algorithms = algorithms_of(Collective(collective), backend, 8)
    assert [(a.name, a.pinned, a.physical) for a in algorithms] == found


def test_rails_are_measured_where_a_node_has_several_ranks() -> None:
    assert [a.name for a in algorithms_of(Collective.SEND_RECV, "nccl", 1)] == ["default"]
    [next_rank, rails] = algorithms_of(Collective.SEND_RECV, "nccl", 8)
    assert (next_rank.label, rails.label) == ("", ", equal local ranks")


def test_the_default_algorithm_is_noted_with_the_users_settings() -> None:
    assert [a.note for a in algorithms_of(Collective.ALL_REDUCE, "nccl", 8, "TREE")] == [
        "NCCL_ALGO=RING",
        "NCCL_ALGO=TREE",
    ]
    assert DEFAULT.note == "as NCCL chooses"
    [gloo] = algorithms_of(Collective.ALL_REDUCE, "gloo", 1)
    assert gloo.note == "gloo's all_reduce is a ring"


class Communicators:
    """Stands for NCCL: records NCCL_ALGO when a communicator is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.made: list[str | None] = []
        self.destroyed: list[Any] = []
        self.error = error
        monkeypatch.setattr(dist, "new_group", lambda: "the ring")
        monkeypatch.setattr(dist, "all_reduce", self._first)
        monkeypatch.setattr(dist, "destroy_process_group", self.destroyed.append)

    def _first(self, tensor: torch.Tensor, group: Any) -> None:
        assert group == "the ring"
        self.made.append(os.environ.get("NCCL_ALGO"))
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("before", [None, "TREE"])
def test_the_variable_is_set_for_the_communicator_and_restored(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    if before is not None:
        monkeypatch.setenv("NCCL_ALGO", before)
    nccl = Communicators(monkeypatch)
    with fresh_group(RING, CPU) as group:
        assert group == "the ring"
        assert os.environ.get("NCCL_ALGO") == before
    assert nccl.made == ["RING"]
    assert nccl.destroyed == ["the ring"]
    with pytest.raises(ZeroDivisionError), fresh_group(RING, CPU):
        raise ZeroDivisionError
    assert nccl.destroyed == ["the ring"] * 2


def test_the_variable_is_restored_if_no_communicator_can_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    nccl = Communicators(monkeypatch, RuntimeError("no ring"))
    with pytest.raises(RuntimeError, match="no ring"), fresh_group(RING, CPU):
        pass
    assert "NCCL_ALGO" not in os.environ
    assert nccl.destroyed == ["the ring"]


@pytest.mark.parametrize("algorithm", [DEFAULT, *algorithms_of(Collective.ALL_REDUCE, "gloo", 1)])
def test_the_default_algorithm_has_a_fresh_communicator_too(
    monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm
) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    backend = Communicators(monkeypatch)
    for _ in range(3):
        with fresh_group(algorithm, CPU) as group:
            assert group == "the ring"
    assert backend.made == [None] * 3
    assert backend.destroyed == ["the ring"] * 3
