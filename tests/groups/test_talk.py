"""What is sent inside groups: no two ranks the same, and who sent what is known."""

from __future__ import annotations

import torch

from pytest_mnode.groups.talk import COUNT, difference, sent

CPU = torch.device("cpu")


def test_no_two_send_the_same() -> None:
    every = torch.cat([sent(rank, salt, CPU) for rank in (0, 1, 7, 1023) for salt in range(8)])
    assert len(set(every.tolist())) == len(every)


def test_sums_of_many_ranks_stay_exact() -> None:
    largest = int(sent(4095, (1 << 15) - 1, CPU)[-1])
    assert largest * 4096 < 2**63


def test_who_sent_a_wrong_value_is_told() -> None:
    def value(rank: int, salt: int, position: int) -> int:
        return int(sent(rank, salt, CPU)[position])

    right = value(4, 2, 9)
    assert difference(value(5, 2, 9), right) == "from rank 5, expected from rank 4"
    assert difference(value(4, 3, 9), right) == "what rank 4 sends elsewhere"
    assert difference(value(4, 2, 10), right) == "rank 4's of position 10, expected 9"
    assert difference(-(1 << 40), right) == "not written, expected from rank 4"
    assert difference(right, -(1 << 40)) == "from rank 4, expected nothing"
    assert difference(-5, right) == "-5, which nobody sends, expected from rank 4"
    assert COUNT > 10
