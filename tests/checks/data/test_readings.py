"""Shards that overlap, lack samples, repeat an order or lose samples across an interruption."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_mnode.checks.data import (
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
from pytest_mnode.checks.data.readings import judge_sockets
from pytest_mnode.checks.judged import unlike_most
from pytest_mnode.measurement import Measurement


def readings(*shards: Sequence[int], epoch: int = 0) -> list[Reading]:
    """Readings of one rank per node, each with its own sampler."""
    ranks = len(shards)
    return [
        Reading(
            At(rank, f"node{rank}"), epoch, tuple(shard), SamplerFacts(rank, ranks, seed=7, epoch=3)
        )
        for rank, shard in enumerate(shards)
    ]


def judged(
    read: Sequence[Reading], samples: int, padding: int = 0, left_out: int = 0
) -> dict[str, Measurement]:
    found = judge_shards("epoch 0", read, samples, padding=padding, left_out=left_out)
    return {one.name.removeprefix("epoch 0: "): one for one in found}


MISSING, TWICE = "samples that reached no rank", "samples read more than once"
UNEVEN, FOREIGN = "ranks with more or fewer samples", "indices outside the data set"


def test_disjoint_and_complete() -> None:
    found = judged(readings([0, 2, 4], [1, 3, 5]), 6)
    assert {name: one.value for name, one in found.items()} == dict.fromkeys(
        (MISSING, TWICE, UNEVEN, FOREIGN), 0
    )


def test_padding_is_counted_and_noted() -> None:
    found = judged(readings([0, 2, 4], [1, 3, 0]), 5, padding=padding_of(5, 2))
    assert found[TWICE].passed
    assert found[TWICE].note == "1 came twice, to have equal shards"
    more = judged(readings([0, 2, 4], [1, 3, 0]), 5)
    assert (more[TWICE].value, more[MISSING].value) == (1, 0)
    assert more[TWICE].culprit == "rank 0 on node0 and rank 1 on node1 both read sample 0"


def test_samples_dropped_by_drop_last_are_counted_and_noted() -> None:
    found = judged(readings([0, 2], [1, 3]), 5, left_out=tail_of(5, 2))
    assert found[MISSING].passed
    assert found[MISSING].note == "1 left out, to have equal shards"
    assert judged(readings([0, 2], [1, 3]), 6, left_out=1)[MISSING].value == 1


def test_an_overlap_that_looks_like_padding_leaves_a_sample_out() -> None:
    found = judged(readings([0, 2, 4], [0, 3, 5]), 6, padding=1)
    assert (found[TWICE].value, found[MISSING].value) == (0, 1)
    assert found[MISSING].culprit == "sample 1 reached no rank"


def test_a_rank_with_the_sampler_of_another_rank_is_named() -> None:
    read = readings([0, 2, 4], [0, 2, 4])
    read[1] = replace(read[1], sampler=SamplerFacts(0, 2, 7, 3))
    found = judged(read, 6)
    assert found[MISSING].culprit == (
        "rank 1 on node1 has the sampler of rank 0; samples 1, 3, 5 reached no rank"
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
def test_the_attributes_of_a_sampler_give_the_cause(own: SamplerFacts, cause: str) -> None:
    read = readings([0, 3], [1, 4], [2, 0])
    read[2] = replace(read[2], sampler=own)
    assert str(judged(read, 6)[MISSING].culprit).startswith(f"{cause}; ")


def test_without_a_sampler_ranks_are_compared_with_the_expected_samples() -> None:
    read = [replace(r, sampler=SamplerFacts()) for r in readings([0, 2, 4], [1, 2, 5])]
    [missing, twice, *_] = judge_shards("", read, 6, expected=[[0, 2, 4], [1, 3, 5]])
    assert missing.culprit == (
        "rank 1 on node1 lacks 1 of its 3 samples, sample 3; sample 3 reached no rank"
    )
    assert twice.culprit == (
        "rank 1 on node1 lacks 1 of its 3 samples, sample 3; "
        "rank 0 on node0 and rank 1 on node1 both read sample 2"
    )


def test_ranks_that_read_what_is_not_their_own_are_named() -> None:
    read = [replace(r, sampler=SamplerFacts()) for r in readings([0, 1], [1, 2], [2, 0])]
    _, twice, *_ = judge_shards("", read, 3, expected=[[0], [1, 2]])
    assert str(twice.culprit).startswith(
        "rank 0 on node0 read 1 that are not its own, sample 1; "
        "rank 2 on node2 read 2 that are not its own, samples 2, 0; "
    )


def test_a_rank_that_reads_twice_and_one_that_reads_less() -> None:
    found = judged(readings([0, 2, 0], [1, 3], [4, 5, 6]), 7)
    assert found[TWICE].culprit == (
        "rank 1 on node1 read 2, most ranks 3; rank 0 on node0 read samples more than once"
    )
    assert found[UNEVEN].culprit == "rank 1 on node1 read 2, most ranks 3"


def test_shards_that_cannot_be_equal_differ_by_one() -> None:
    assert all(one.passed for one in judged(readings([0, 3], [1, 4], [2]), 5).values())
    assert judged(readings([0, 3, 4], [1], [2]), 5)[UNEVEN].value == 1
    assert judged(readings([0, 3], [1, 4], [2]), 5, padding=1)[UNEVEN].value == 1
    assert judged(readings([0, 3], [1, 4], [2]), 5, left_out=1)[UNEVEN].value == 1
    assert judged(readings([0, 2], [1, 3, 4, 5]), 6)[UNEVEN].value == 2


def test_two_differing_ranks_have_no_majority() -> None:
    found = judged(readings([0, 2], [1, 3, 4, 5]), 6)[UNEVEN]
    assert (found.value, found.culprit) == (2, "rank 0 on node0 read 2; rank 1 on node1 read 4")
    read = readings([0, 3], [1, 0])
    read[1] = replace(read[1], sampler=SamplerFacts(1, 2, 8, 3))
    assert str(judged(read, 4)[MISSING].culprit).startswith(
        "rank 0 on node0 shuffles by seed 7; rank 1 on node1 shuffles by seed 8; "
    )


def test_samples_that_do_not_exist() -> None:
    found = judged(readings([0, 2, -1], [1, 3, 9]), 4)
    assert found[FOREIGN].culprit == "rank 0 on node0 read -1; rank 1 on node1 read 9"
    assert found[FOREIGN].source == "indices 0 to 3"


def test_overlaps_of_at_least_half_the_largest_are_named() -> None:
    first, second = [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 6, 7]
    for third, count, named in (([4, 5, 8, 9, 10, 11], 6, 2), ([4, 8, 9, 10, 11, 12], 5, 1)):
        found = judged(readings(first, second, third), 13)[TWICE]
        assert (found.value, str(found.culprit).count(" both read ")) == (count, named)


@pytest.mark.parametrize(
    ("read", "samples", "left_out"),
    [([], 4, 0), ([], 0, 0), (readings([], []), 0, 0), (readings([], [], []), 2, 2)],
)
def test_no_samples_read_does_not_pass(read: list[Reading], samples: int, left_out: int) -> None:
    for found in judged(read, samples, left_out=left_out).values():
        assert found.value is None
        assert found.note.startswith("no rank read anything")


def test_samples_that_no_rank_read_are_missing() -> None:
    found = judged(readings([], []), 4)
    assert {name: one.value for name, one in found.items()} == {
        MISSING: 4,
        TWICE: None,
        UNEVEN: None,
        FOREIGN: None,
    }
    assert judged(readings([0], [1]), 0)[MISSING].value is None
    assert judged(readings([0], [1]), 0)[FOREIGN].value == 2


FEW = [3, 0, 7, 5, 1, 6, 2, 4]
MANY = [11, 3, 14, 0, 7, 9, 5, 12, 1, 6, 15, 2, 8, 13, 4, 10]


def test_orders_of_epochs() -> None:
    one = (MANY, [16 + i for i in MANY])
    two = (MANY[::-1], [16 + i for i in MANY[::-1]])
    again, unshuffled = judge_orders("2 epochs", [readings(*one), readings(*two, epoch=1)])
    assert again.passed
    assert unshuffled.passed
    again, _ = judge_orders("2 epochs", [readings(*one), readings(one[0], two[1], epoch=1)])
    assert (again.value, again.culprit) == (
        1,
        "rank 0 on node0: epoch 1 in the order of epoch 0: "
        "set_epoch was not called, or does nothing",
    )
    again, _ = judge_orders("2 epochs", [readings(*one), readings(*one, epoch=1)])
    assert str(again.culprit).startswith("all 2 ranks: epoch 1 in the order of epoch 0: ")


def test_an_unshuffled_order() -> None:
    read = [readings(range(16)), readings(MANY, epoch=1)]
    _, unshuffled = judge_orders("2 epochs", read)
    assert (unshuffled.value, unshuffled.culprit) == (
        1,
        "rank 0 on node0: epoch 0 in the order of the data set",
    )


def test_few_samples_per_rank_are_judged_together() -> None:
    ranks = 8
    split = [range(rank, 32, ranks) for rank in range(ranks)]
    mixed = [[shard[i] for i in (2, 0, 3, 1)] for shard in split]
    _, found = judge_orders("", [readings(*split), readings(*mixed, epoch=1)])
    assert (found.value, found.culprit) == (
        8,
        "all 8 ranks: epoch 0 in the order of the data set",
    )
    # A rank that is unshuffled by chance in another epoch is not blamed.
    one_more = [split[0], *mixed[1:]]
    _, found = judge_orders("", [readings(*split), readings(*one_more, epoch=1)])
    assert found.value == 8
    again, _ = judge_orders("", [readings(*mixed), readings(*mixed, epoch=1)])
    assert again.value == 8


def _shuffled(length: int, seed: int) -> list[int]:
    order = list(range(length))
    random.Random(seed).shuffle(order)
    return order


def test_repeats_are_judged_by_rank_by_epoch_or_all_together() -> None:
    """Each of these alone is what shuffles of so few samples may give."""

    def repeats(samples: int, odd: set[tuple[int, int]]) -> int | None:
        """The number found. odd: (rank, epoch) that repeat the order of the epoch before."""
        orders = {(r, e): _shuffled(samples, 10 * r + e) for r in range(4) for e in range(5)}
        orders |= {(r, e): orders[r, e - 1] for r, e in sorted(odd)}
        epochs = [readings(*(orders[r, e] for r in range(4)), epoch=e) for e in range(5)]
        value = judge_orders("", epochs)[0].value
        return None if value is None else int(value)

    assert repeats(8, {(1, 2)}) is None
    assert repeats(10, {(1, 2), (1, 4)}) == 2, "one rank"
    assert repeats(8, {(0, 2), (1, 2), (2, 2)}) == 3, "one epoch"
    assert repeats(8, {(r, r + 1) for r in range(4)}) == 4, "all together"


@pytest.mark.parametrize(("ranks", "value"), [(2, 1), (64, None)])
def test_the_more_ranks_the_likelier_is_an_order_by_chance(ranks: int, value: int | None) -> None:
    """Of 13 samples, one order in 6e9 is that of the data set."""
    shards = [list(range(13)), *(_shuffled(13, rank) for rank in range(1, ranks))]
    assert judge_orders("", [readings(*shards)])[1].value == value


def test_few_samples_whose_order_may_be_chance_are_inconclusive() -> None:
    read = [readings([0, 1, 2, 3], [7, 5, 4, 6]), readings([2, 0, 1, 3], [5, 6, 7, 4], epoch=1)]
    again, unshuffled = judge_orders("", read)
    assert again.passed
    assert (unshuffled.value, unshuffled.culprit) == (None, None)
    assert unshuffled.note == (
        "rank 0 on node0: epoch 0 in the order of the data set; "
        "correct shuffles of so few samples may look like this; give each rank 16"
    )
    again, _ = judge_orders("", [readings([1, 0, 3, 2]), readings([1, 0, 3, 2], epoch=1)])
    assert again.value is None
    assert again.note.startswith("rank 0 on node0: epoch 1 in the order of epoch 0: set_epoch ")


@pytest.mark.parametrize("each", [1, 2, 4, 8, 16])
def test_correct_shuffles_are_never_called_wrong(each: int) -> None:
    shuffle = random.Random(each).shuffle
    for _ in range(200):
        epochs = []
        for epoch in range(3):
            order = list(range(8 * each))
            shuffle(order)
            epochs.append(readings(*(order[rank::8] for rank in range(8)), epoch=epoch))
        found = judge_orders("", epochs)
        assert not any(one.value for one in found), found
        if each >= 16:
            assert all(one.passed for one in found), found


@pytest.mark.parametrize("epochs", [[], [readings([])], [readings([0]), readings([0], epoch=1)]])
def test_too_few_samples_to_judge_an_order(epochs: list[list[Reading]]) -> None:
    assert [one.value for one in judge_orders("", epochs)] == [None, None]


def test_one_epoch_alone_and_a_rank_without_an_epoch() -> None:
    again, unshuffled = judge_orders("", [readings(FEW)])
    assert (again.value, again.note) == (None, "one epoch has none before it")
    assert unshuffled.passed
    lacks = judge_orders("", [readings(MANY, FEW), readings(MANY[::-1], epoch=1)])
    assert {(one.value, one.note) for one in lacks} == {
        (None, "rank 1 on node1 read 1 of 2 epochs")
    }


def test_a_repeated_reading_with_the_same_order() -> None:
    first = readings([3, 0], [1, 2])
    assert judge_again("", first, readings([3, 0], [1, 2])).passed
    wrong = judge_again("", first, readings([3, 0], [2, 1]))
    assert wrong.culprit == "rank 1 on node1 read sample 2 at place 0, and 1 before"
    assert judge_again("", first, readings([3, 0], [1])).culprit == (
        "rank 1 on node1 read 1 samples, and 2 before"
    )
    assert judge_again("", first, readings([3, 0])).culprit == "rank 1 on node1 did not read again"
    more = judge_again("", readings([3, 0]), first)
    assert more.culprit == "rank 1 on node1 read the second time only"


def test_a_missing_second_reading_does_not_pass() -> None:
    assert judge_again("", [], []).value is None
    found = judge_again("", readings([3, 0], []), readings([3, 0], []))
    assert (found.value, found.note) == (None, "rank 1 on node1 read nothing")
    assert judge_again("", readings([3, 0], []), readings([0, 3], [])).value == 1


def test_samples_across_an_interruption() -> None:
    whole, before = readings([0, 2, 4, 6], [1, 3, 5, 7]), readings([0, 2], [1, 3])
    assert judge_resumed("", whole, before, readings([4, 6], [5, 7])).passed
    assert judge_resumed("", whole, before, readings([4, 5, 6, 7])).passed  # one rank continues
    wrong = judge_resumed("", whole, before, readings([2, 4, 6], [5]))
    assert (wrong.value, wrong.culprit) == (
        2,
        "sample 7 lost; sample 2 read again by rank 0 on node0",
    )
    twice = judge_resumed("", whole, before, readings([0, 2, 4, 6], [5, 7]))
    assert (twice.value, twice.culprit) == (2, "samples 0, 2 read again by rank 0 on node0")
    assert twice.culprit is not None
    assert set(twice.culprit.nodes) == {"node0"}
    swapped = judge_resumed("", whole, before, readings([4, 6, 1], [5, 0]))
    assert swapped.culprit is not None
    assert not swapped.culprit.nodes
    assert frozenset(["node0", "node1"]) in swapped.culprit.either
    assert judge_resumed("", whole, before, []).value is None
    assert judge_resumed("", whole, before, readings([], [])).value == 4
    # Samples padded twice in the epoch may occur twice across the interruption, but no more often.
    padded = readings([0, 1], [1, 2])
    assert judge_resumed("", padded, readings([0], [1]), readings([1], [2])).passed


@pytest.mark.parametrize(
    ("whole", "before", "after", "note"),
    [
        ([[0, 2], [1, 3]], [[0, 2], [1, 3]], [[], []], "nothing was read after the cut; 2 ranks "),
        ([[0, 2], [1, 3]], [[]], [[0, 1, 2, 3]], "nothing was read before the cut; 1 ranks "),
        ([[]], [], [[]], "nothing was read without a cut; nothing was read before the cut; "),
        ([[]], [[0]], [[1]], "nothing was read without a cut; 1 ranks before, 1 after"),
    ],
)
def test_no_samples_on_one_side_of_an_interruption_do_not_pass(
    whole: list[list[int]], before: list[list[int]], after: list[list[int]], note: str
) -> None:
    found = judge_resumed("", readings(*whole), readings(*before), readings(*after))
    assert (found.value, found.culprit) == (None, None)
    assert found.note.startswith(note)


def test_two_of_five_ranks_are_no_majority() -> None:
    ats = [At(rank, f"node{rank}") for rank in range(5)]
    assert len(unlike_most(zip(ats, "aabcd", strict=True), ", most {}")) == 5
    (first, _) = unlike_most(zip(ats, "aaabc", strict=True), ", most {}")
    assert first == (ats[3], "b", ", most a")


def test_thousands_of_ranks_that_are_all_wrong_are_judged_in_seconds() -> None:
    ranks, began = 2048, time.process_time()
    same = [readings(*[range(64)] * ranks, epoch=epoch) for epoch in range(3)]
    assert [one.value for one in judge_orders("", same)] == [2 * ranks, 3 * ranks]
    twice = judged(same[0], 64)[TWICE]
    assert str(twice.culprit).startswith("rank 0 on node0 and rank 1 on node1 both read samples")
    assert time.process_time() - began < 10


@pytest.mark.parametrize(("size", "text"), [(75, ""), (76, "OSError: x; TMPDIR has 76 bytes")])
def test_a_socket_is_opened_where_tmpdir_is_long(
    monkeypatch: pytest.MonkeyPatch, size: int, text: str
) -> None:
    from pytest_mnode.checks.data import in_ranks

    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * (size - 1))
    monkeypatch.setattr(in_ranks, "_OPENS", "raise OSError('x')")
    assert in_ranks.worker_socket_error() == text
    monkeypatch.setattr(in_ranks, "_OPENS", "")
    assert in_ranks.worker_socket_error() == ""


def test_ranks_whose_workers_have_no_sockets_are_named() -> None:
    at = [At(rank, f"node{rank}") for rank in range(2)]
    assert judge_sockets("", [(one, "") for one in at]).passed
    found = judge_sockets("", [(at[0], ""), (at[1], "too long")])
    assert (found.value, found.culprit) == (1, "rank 1 on node1: too long")
