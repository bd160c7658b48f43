"""Shards that overlap, lack samples, repeat an order or lose some across a cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_mnode.data import (
    At,
    Reading,
    SamplerFacts,
    judge_again,
    judge_orders,
    judge_resumed,
    judge_shards,
    padding_of,
    tail_of,
)
from pytest_mnode.wrong import Wrong


def readings(*shards: Sequence[int], epoch: int = 0) -> list[Reading]:
    """Of one rank a node, each with a sampler of its own."""
    ranks = len(shards)
    return [
        Reading(
            At(rank, f"node{rank}"), epoch, tuple(shard), SamplerFacts(rank, ranks, seed=7, epoch=3)
        )
        for rank, shard in enumerate(shards)
    ]


def judged(
    read: Sequence[Reading], samples: int, padding: int = 0, left_out: int = 0
) -> dict[str, Wrong]:
    found = judge_shards("epoch 0", read, samples, padding=padding, left_out=left_out)
    return {one.name.removeprefix("epoch 0: "): one for one in found}


MISSING, TWICE = "samples that reached no rank", "samples read more than once"
UNEVEN, FOREIGN = "ranks with more or fewer samples", "samples that there are not"


def test_disjoint_and_complete() -> None:
    found = judged(readings([0, 2, 4], [1, 3, 5]), 6)
    assert {name: one.count for name, one in found.items()} == dict.fromkeys(
        (MISSING, TWICE, UNEVEN, FOREIGN), 0
    )


def test_padding_is_counted_and_said() -> None:
    found = judged(readings([0, 2, 4], [1, 3, 0]), 5, padding=padding_of(5, 2))
    assert found[TWICE].right
    assert found[TWICE].note == "1 came twice, to have equal shards"
    more = judged(readings([0, 2, 4], [1, 3, 0]), 5)
    assert (more[TWICE].count, more[MISSING].count) == (1, 0)
    assert more[TWICE].culprit == "rank 0 on node0 and rank 1 on node1 both read sample 0"


def test_what_drop_last_leaves_out_is_counted_and_said() -> None:
    found = judged(readings([0, 2], [1, 3]), 5, left_out=tail_of(5, 2))
    assert found[MISSING].right
    assert found[MISSING].note == "1 left out, to have equal shards"
    assert judged(readings([0, 2], [1, 3]), 6, left_out=1)[MISSING].count == 1


def test_an_overlap_that_hides_behind_padding_leaves_a_sample_out() -> None:
    found = judged(readings([0, 2, 4], [0, 3, 5]), 6, padding=1)
    assert (found[TWICE].count, found[MISSING].count) == (0, 1)
    assert found[MISSING].culprit == "sample 1 reached nobody"


def test_a_rank_with_another_ones_sampler_is_named() -> None:
    read = readings([0, 2, 4], [0, 2, 4])
    read[1] = replace(read[1], sampler=SamplerFacts(0, 2, 7, 3))
    found = judged(read, 6)
    assert found[MISSING].culprit == (
        "rank 1 on node1 has the sampler of rank 0; samples 1, 3, 5 reached nobody"
    )
    assert found[TWICE].culprit == (
        "rank 1 on node1 has the sampler of rank 0; "
        "rank 0 on node0 and rank 1 on node1 both read samples 0, 2, 4"
    )


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        (SamplerFacts(2, 4, 7, 3), "rank 2 on node2 shards for 4 ranks, and there are 3"),
        (SamplerFacts(2, 3, 8, 3), "rank 2 on node2 shuffles by seed 8, most ranks by 7"),
        (SamplerFacts(2, 3, 7, 0), "rank 2 on node2 shuffles by epoch 0, most ranks by 3"),
    ],
)
def test_what_a_sampler_says_of_itself_is_the_cause(own: SamplerFacts, cause: str) -> None:
    read = readings([0, 3], [1, 4], [2, 0])
    read[2] = replace(read[2], sampler=own)
    assert str(judged(read, 6)[MISSING].culprit).startswith(f"{cause}; ")


def test_without_a_sampler_ranks_are_known_by_what_they_should_have_read() -> None:
    read = [replace(r, sampler=SamplerFacts()) for r in readings([0, 2, 4], [1, 2, 5])]
    [missing, twice, *_] = judge_shards("", read, 6, expected=[[0, 2, 4], [1, 3, 5]])
    assert missing.culprit == (
        "rank 1 on node1 lacks 1 of its 3 samples, sample 3; sample 3 reached nobody"
    )
    assert twice.culprit == (
        "rank 1 on node1 lacks 1 of its 3 samples, sample 3; "
        "rank 0 on node0 and rank 1 on node1 both read sample 2"
    )


def test_a_rank_that_reads_twice_and_one_that_reads_less() -> None:
    found = judged(readings([0, 2, 0], [1, 3], [4, 5, 6]), 7)
    assert found[TWICE].culprit == (
        "rank 1 on node1 read 2, most ranks 3; rank 0 on node0 read samples more than once"
    )
    assert found[UNEVEN].culprit == "rank 1 on node1 read 2, most ranks 3"


def test_samples_that_there_are_not() -> None:
    found = judged(readings([0, 2, -1], [1, 3, 9]), 4)
    assert found[FOREIGN].culprit == "rank 0 on node0 read -1; rank 1 on node1 read 9"


def test_nothing_read_is_no_pass() -> None:
    assert judged([], 4)[MISSING].count is None
    assert judged(readings([], []), 4)[MISSING].count == 4


def test_orders_of_epochs() -> None:
    one, two = ([3, 0, 2, 1], [7, 5, 4, 6]), ([0, 3, 1, 2], [6, 4, 5, 7])
    again, unshuffled = judge_orders("2 epochs", [readings(*one), readings(*two, epoch=1)])
    assert again.right
    assert unshuffled.right
    again, _ = judge_orders("2 epochs", [readings(*one), readings(one[0], two[1], epoch=1)])
    assert (again.count, again.culprit) == (
        1,
        "rank 0 on node0: epoch 1 in the order of epoch 0: "
        "set_epoch was not called, or does nothing",
    )
    again, _ = judge_orders("2 epochs", [readings(*one), readings(*one, epoch=1)])
    assert str(again.culprit).startswith("all 2 ranks: epoch 1 in the order of epoch 0: ")


def test_an_order_that_is_the_data_sets() -> None:
    read = [readings([0, 1, 2, 3]), readings([2, 0, 1, 3], epoch=1)]
    _, unshuffled = judge_orders("2 epochs", read)
    assert unshuffled.culprit == "rank 0 on node0: epoch 0 in the order of the data set"


@pytest.mark.parametrize("epochs", [[], [readings([2, 0, 1, 3])], [readings([0]), readings([0])]])
def test_too_little_to_judge_an_order_by(epochs: list[list[Reading]]) -> None:
    assert [one.count for one in judge_orders("", epochs)] == [None, None]


def test_the_same_again() -> None:
    first = readings([3, 0], [1, 2])
    assert judge_again("", first, readings([3, 0], [1, 2])).right
    wrong = judge_again("", first, readings([3, 0], [2, 1]))
    assert wrong.culprit == "rank 1 on node1 read sample 2 at place 0, and 1 before"
    assert judge_again("", first, readings([3, 0], [1])).culprit == (
        "rank 1 on node1 read 1 samples, and 2 before"
    )
    assert judge_again("", first, readings([3, 0])).culprit == "rank 1 on node1 did not read again"
    assert judge_again("", [], []).count is None


def test_across_a_cut() -> None:
    whole, before = readings([0, 2, 4, 6], [1, 3, 5, 7]), readings([0, 2], [1, 3])
    assert judge_resumed("", whole, before, readings([4, 6], [5, 7])).right
    assert judge_resumed("", whole, before, readings([4, 5, 6, 7])).right  # one rank goes on
    wrong = judge_resumed("", whole, before, readings([2, 4, 6], [5]))
    assert (wrong.count, wrong.culprit) == (
        2,
        "sample 7 lost; sample 2 read again by rank 0 on node0",
    )
    assert judge_resumed("", whole, before, []).count is None
    # What was padded twice in the epoch may come twice across the cut, and no more often.
    padded = readings([0, 1], [1, 2])
    assert judge_resumed("", padded, readings([0], [1]), readings([1], [2])).right
