"""Messages inside groups: no two ranks send equal values, and wrong values show their sender."""

from __future__ import annotations

import itertools

import pytest
import torch

from pytest_mnode.checks.groups import check
from pytest_mnode.checks.groups.check import COUNT, Call, Pending, difference, sent
from pytest_mnode.checks.groups.judge import Expected

CPU = torch.device("cpu")


def test_no_two_ranks_send_equal_values() -> None:
    every = torch.cat([sent(rank, salt, CPU) for rank in (0, 1, 7, 1023) for salt in range(8)])
    assert len(set(every.tolist())) == len(every)


def test_sums_of_many_ranks_stay_exact() -> None:
    largest = int(sent(4095, (1 << 20) - 1, CPU)[-1])
    assert largest * 4096 < 2**63


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "expected",
    [
        {"emb": [[0, 3]], "dp": [[0, 1], [2, 3]]},  # first and last stage, as in Megatron
        {"a": [[0], [1, 2, 3]], "b": [[0, 1], [2, 3]]},
        {"dp": [[0, 2], [1, 3]], "none": [], "tp": [[0, 1], [2, 3]]},
    ],
)
def test_ranks_of_a_group_share_a_salt_whatever_their_other_groups(
    at_once: bool, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    salts: dict[tuple[int, ...], dict[int, list[int]]] = {}

    def noted(call: Call) -> Pending:
        salts.setdefault(tuple(call.ranks), {}).setdefault(call.me, []).append(call.salt)
        return Pending(None, torch.zeros(1), torch.zeros(1))

    every = dict.fromkeys(check.COLLECTIVES, noted)
    monkeypatch.setattr(check, "COLLECTIVES", every)
    for me in range(4):
        mine = {n: n for n, groups in expected.items() if any(me in ranks for ranks in groups)}
        done = check.exchange(mine, expected, me, CPU, at_once=at_once)
        assert {one.group for one in done} == set(mine)
    for ranks, by_rank in salts.items():
        assert set(by_rank) == set(ranks)
        assert len(set(map(tuple, by_rank.values()))) == 1, (ranks, by_rank)
    # A call uses as many salts as its group has ranks; no other call of the same rank uses them.
    widest = max(map(len, salts))
    for me in range(4):
        own = sorted(salt for by_rank in salts.values() for salt in by_rank.get(me, []))
        assert all(later - salt >= widest for salt, later in itertools.pairwise(own))


def test_the_sender_of_a_wrong_value_is_named() -> None:
    def value(rank: int, salt: int, position: int) -> int:
        return int(sent(rank, salt, CPU)[position])

    right = value(4, 2, 9)
    assert difference(value(5, 2, 9), right) == "from rank 5, expected from rank 4"
    assert difference(value(4, 3, 9), right) == "what rank 4 sends elsewhere"
    assert difference(value(4, 2, 10), right) == "rank 4's of position 10, expected 9"
    assert difference(-(1 << 40), right) == "not written, expected from rank 4"
    assert difference(right, -(1 << 40)) == "from rank 4, expected nothing"
    assert difference(-5, right) == "-5, which no rank sends, expected from rank 4"
    assert COUNT > 10
