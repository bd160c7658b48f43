"""Which CPUs each rank of a node gets."""

from __future__ import annotations

from pytest_mnode.rank.cores import Share, shares

CORES: dict[int, list[tuple[int, ...]]] = {0: [(0,), (1,), (2,)], 1: [(4, 5), (6, 7)]}


def cpus(homes: list[int | None], exclusive: bool = True) -> list[tuple[int, ...]]:
    return [share.cpus for share in shares(homes, CORES, exclusive)]


def test_ranks_beside_one_node_get_cores_of_their_own() -> None:
    assert cpus([0, 1, 0, 1]) == [(0, 1), (4, 5), (2,), (6, 7)]
    assert cpus([0]) == [(0, 1, 2)]


def test_or_all_of_its_cores_where_that_is_asked_for() -> None:
    assert cpus([0, 1, 0], exclusive=False) == [(0, 1, 2), (4, 5, 6, 7), (0, 1, 2)]


def test_ranks_share_where_there_are_not_enough_and_it_is_said() -> None:
    assert shares([1, 1, 1, 0], CORES, True) == [
        Share((4, 5), 1, shared_with=(2,)),
        Share((6, 7), 1),
        Share((4, 5), 1, shared_with=(0,)),
        Share((0, 1, 2), 0),
    ]


def test_what_is_not_known_is_not_bound() -> None:
    unknown, nowhere = shares([None, 3], CORES, True)
    assert (unknown.cpus, nowhere.cpus) == ((), ())
    assert unknown.why == "the NUMA node of its accelerator is not known"
    assert nowhere.why == "none of the CPUs of NUMA node 3, its accelerator's, may be used here"
