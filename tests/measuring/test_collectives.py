"""Each check gets correct data, and data that are wrong in the ways that collectives fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring.collectives import COLLECTIVES, Measured, Prepared, send_recv_by_rails
from pytest_mnode.spec.bandwidth import Collective

CPU = torch.device("cpu")
RANKS = 4
PART = 2048
NAMES = sorted(COLLECTIVES)
Tensors = list[torch.Tensor]


@dataclass
class Call:
    """Tensors that one rank passed to torch.distributed; the same tensor for in-place calls."""

    sent: torch.Tensor
    received: torch.Tensor


class Ranks:
    """All ranks of a world in one process: calls are recorded, then done for all at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = RANKS) -> None:
        self.count, self.rank = count, 0
        self.calls: list[Call] = []
        self.peers: list[tuple[int, int]] = []
        monkeypatch.setattr(dist, "get_world_size", lambda: count)
        monkeypatch.setattr(dist, "get_rank", lambda: self.rank)
        monkeypatch.setattr(dist, "all_reduce", lambda buffer, group: self._keep(buffer, buffer))
        monkeypatch.setattr(
            dist, "broadcast", lambda buffer, src, group: self._keep(buffer, buffer, src == 0)
        )
        for name in ("all_gather_single", "reduce_scatter_single", "all_to_all_single"):
            monkeypatch.setattr(
                dist, name, lambda into, of, group: self._keep(of, into), raising=False
            )
        monkeypatch.setattr(dist, "P2POp", lambda what, tensor, peer, group: (what, tensor, peer))
        monkeypatch.setattr(dist, "batch_isend_irecv", self._exchange)

    def _keep(self, sent: torch.Tensor, received: torch.Tensor, as_it_should: bool = True) -> None:
        assert as_it_should
        self.calls.append(Call(sent, received))

    def _exchange(self, ops: Sequence[tuple[Any, torch.Tensor, int]]) -> list[Any]:
        (receive, into, before), (send, of, following) = ops
        assert (receive, send) == (dist.irecv, dist.isend)  # else gloo ranks take turns
        self.peers.append((before, following))
        self._keep(of, into)
        return []

    def each(self, do: Callable[[], Any]) -> list[Any]:
        found = []
        for rank in range(self.count):
            self.rank = rank
            found.append(do())
        return found

    def called(
        self, measured: Measured, size_bytes: int, carry: Callable[[Tensors], Tensors]
    ) -> list[Prepared]:
        """Each rank after a call; `carry` maps sent to received tensors."""
        part = measured.part(size_bytes, self.count)
        prepared: list[Prepared] = self.each(lambda: measured.prepare(part, CPU, None))
        self.calls = []
        for rank, one in enumerate(prepared):
            self.rank = rank
            one.fill()
            one.run()
        received = carry([call.sent.clone() for call in self.calls])
        for call, values in zip(self.calls, received, strict=True):
            call.received.copy_(values)
        return prepared

    def wrong(
        self, measured: Measured, size_bytes: int, carry: Callable[[Tensors], Tensors]
    ) -> int:
        """Number of wrong values over all ranks."""
        prepared = self.called(measured, size_bytes, carry)
        total = 0
        for rank, one in enumerate(prepared):
            self.rank = rank
            total += int(one.wrong().sum())
        return total


def _carried(name: str, sent: Tensors) -> Tensors:
    """The correct results of every rank."""
    ranks = len(sent)
    match Collective(name):
        case Collective.ALL_REDUCE:
            return [torch.stack(sent).sum(0)] * ranks
        case Collective.BROADCAST:
            return [sent[0]] * ranks
        case Collective.ALL_GATHER:
            return [torch.cat(sent)] * ranks
        case Collective.REDUCE_SCATTER:
            return list(torch.stack(sent).sum(0).chunk(ranks))
        case Collective.ALL_TO_ALL:
            return [torch.cat([s.chunk(ranks)[r] for s in sent]) for r in range(ranks)]
        case _:
            return [sent[r - 1] for r in range(ranks)]


@pytest.mark.parametrize(
    ("measured", "step"), [(COLLECTIVES["send_recv"], 1), (send_recv_by_rails(2), 2)]
)
def test_an_exchange_is_with_the_next_rank_or_that_of_the_same_place(
    measured: Measured, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch)
    right = ranks.wrong(measured, PART, lambda sent: [sent[r - step] for r in range(RANKS)])
    assert (right, measured.collective) == (0, "send_recv")
    assert ranks.peers == [((r - step) % RANKS, (r + step) % RANKS) for r in range(RANKS)]
    assert ranks.wrong(measured, PART, lambda sent: [sent[r - 3] for r in range(RANKS)])


def _of_the_call_before(name: str, sent: Tensors) -> Tensors:
    return _carried(name, [torch.zeros_like(values) for values in sent])


def _without_rank_2(name: str, sent: Tensors) -> Tensors:
    """Rank 3 counts twice and rank 2 never; if only rank 0 sends, rank 3 sends in its place."""
    if name == "broadcast":
        return [sent[3]] * len(sent)
    return _carried(name, [*sent[:2], sent[3], sent[3]])


def _chunks_swapped(name: str, sent: Tensors) -> Tensors:
    """On rank 1 the first and second parts of the received data, or of the message, are swapped."""
    received = _carried(name, sent)
    first, second, *others = received[1].chunk(RANKS)
    received[1] = torch.cat([second, first, *others])
    return received


def _of_neighbours_swapped(name: str, sent: Tensors) -> Tensors:
    """Ranks 1 and 2 each get the other's result."""
    first, second, third, *others = _carried(name, sent)
    return [first, third, second, *others]


def _one_value(name: str, sent: Tensors, wrong: float = 1.0) -> Tensors:
    received = [values.clone() for values in _carried(name, sent)]
    received[2][-1] += wrong
    return received


def _not_a_number(name: str, sent: Tensors) -> Tensors:
    return _one_value(name, sent, float("nan"))


def _sum_off_by_one(name: str, sent: Tensors) -> Tensors:
    return [values + 1 for values in _carried(name, sent)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size_bytes", [PART * RANKS * 4, PART * 4 + 7, 4 * RANKS])
def test_correct_data_pass(monkeypatch: pytest.MonkeyPatch, name: str, size_bytes: int) -> None:
    ranks = Ranks(monkeypatch)
    assert ranks.wrong(COLLECTIVES[name], size_bytes, lambda sent: _carried(name, sent)) == 0


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_are_each_other_s_neighbours(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ranks = Ranks(monkeypatch, 2)
    assert ranks.wrong(COLLECTIVES[name], 4096, lambda sent: _carried(name, sent)) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("fault", "least_wrong"),
    [
        (_of_the_call_before, PART),
        (_without_rank_2, PART),
        (_chunks_swapped, PART // 2),
        (_one_value, 1),
        (_not_a_number, 1),
        (_sum_off_by_one, PART),
    ],
)
def test_wrong_data_is_counted(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Callable[[str, Tensors], Tensors],
    least_wrong: int,
) -> None:
    ranks = Ranks(monkeypatch)
    wrong = ranks.wrong(COLLECTIVES[name], PART * RANKS * 4, lambda sent: fault(name, sent))
    assert wrong == 1 if least_wrong == 1 else wrong >= least_wrong


@pytest.mark.parametrize("name", NAMES)
def test_a_result_of_an_earlier_call_is_wrong(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ranks = Ranks(monkeypatch)
    prepared = ranks.called(COLLECTIVES[name], PART * RANKS * 4, lambda s: _carried(name, s))
    ranks.rank = 1
    assert prepared[1].wrong().sum() == 0
    prepared[1].fill()
    prepared[1].run()  # and no data arrive
    assert prepared[1].wrong().sum() == len(ranks.calls[1].received)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_to_all", "send_recv"])
def test_the_result_of_another_rank_is_wrong(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ranks = Ranks(monkeypatch)
    size_bytes = PART * RANKS * 4
    wrong = ranks.wrong(COLLECTIVES[name], size_bytes, lambda s: _of_neighbours_swapped(name, s))
    assert wrong >= 2 * PART


@pytest.mark.parametrize(
    ("name", "split", "copies"),
    [
        ("all_reduce", False, 2),
        ("broadcast", False, 2),
        ("send_recv", False, 2),
        ("all_gather", True, 1.125),
        ("reduce_scatter", True, 1.125),
        ("all_to_all", True, 2),
    ],
)
def test_sizes_of_nccl_tests_and_their_memory(name: str, split: bool, copies: float) -> None:
    """split: whether each of the ranks holds a part of the message."""
    measured = COLLECTIVES[name]
    assert measured.part(1 << 20, 3) == (87381 if split else 262144)
    assert measured.moved_bytes(1 << 20, 3) == (1048572 if split else 1 << 20)
    size_bytes = 16 << 30
    assert 0 <= measured.held_bytes(size_bytes, 8) - copies * size_bytes <= 64 << 20


@pytest.mark.parametrize(
    ("name", "size_bytes", "message"),
    [
        ("all_reduce", 3, "3 bytes hold no value of 4 bytes$"),
        ("all_gather", 15, "15 bytes hold no value of 4 bytes for each of 4 ranks"),
    ],
)
def test_a_size_below_one_value_is_refused(name: str, size_bytes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        COLLECTIVES[name].part(size_bytes, RANKS)
