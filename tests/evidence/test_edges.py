"""Blame over pairs: nodes, directions and paths that explain bad edges, and findings of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.edges import Blame, Edges, blame, blame_now_and_then, blame_star
from pytest_mnode.evidence.rules import Subject
from pytest_mnode.measurement import equals

Edge = tuple[int, int]


def _all(count: int) -> set[Edge]:
    return set(itertools.permutations(range(count), 2))


@pytest.mark.parametrize(
    ("count", "failed", "nodes", "paths"),
    [
        (4, {e for e in _all(4) if 2 in e}, {2: "both ways"}, set()),
        (4, {(2, n) for n in (0, 1, 3)}, {2: "sending"}, set()),
        (4, {(n, 2) for n in (0, 1, 3)}, {2: "receiving"}, set()),
        (4, {(1, 3)}, {}, {(1, 3)}),
        (2, {(0, 1), (1, 0)}, {}, {(0, 1), (1, 0)}),
        (5, {e for e in _all(5) if 2 in e} | {(0, 4)}, {2: "both ways"}, {(0, 4)}),
        # A node is blamed if more than half of its paths fail.
        (5, {(0, 4), (1, 4)}, {}, {(0, 4), (1, 4)}),
        (5, {(0, 4), (1, 4), (2, 4)}, {4: "receiving"}, set()),
        (5, {(4, 0), (4, 1)}, {}, {(4, 0), (4, 1)}),
        (5, {(4, 0), (4, 1), (4, 2)}, {4: "sending"}, set()),
    ],
)
def test_nodes_and_paths_that_are_blamed(
    count: int, failed: set[Edge], nodes: dict[int, Any], paths: set[Edge]
) -> None:
    assert blame(_all(count), failed) == Blame(nodes, frozenset(paths))


def test_nodes_known_to_be_down_explain_failed_paths() -> None:
    failed = _all(3)  # two of three nodes are cut off, which the paths alone do not show
    assert blame(_all(3), failed, {0, 1}).nodes == {0: "both ways", 1: "both ways"}


@given(st.integers(5, 16), st.data())
def test_only_cut_off_nodes_are_blamed(count: int, data: st.DataObject) -> None:
    most = (count - 3) // 2
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=most))
    failed = {edge for edge in _all(count) if bad & set(edge)}
    assert blame(_all(count), failed) == Blame(dict.fromkeys(bad, "both ways"), frozenset())


@given(st.integers(6, 16), st.data())
def test_a_direction_and_a_path_are_distinguished(count: int, data: st.DataObject) -> None:
    deaf = data.draw(st.integers(0, count - 1))
    ends = [n for n in range(count) if n != deaf]
    path = (data.draw(st.sampled_from(ends[:2])), data.draw(st.sampled_from(ends[2:])))
    failed = {(n, deaf) for n in ends} | {path}
    assert blame(_all(count), failed) == Blame({deaf: "receiving"}, frozenset({path}))


@pytest.mark.parametrize(
    ("count", "bad", "nodes", "paths"),
    [
        (4, set(), {}, set()),
        (4, {(2, 0)}, {2: "sending"}, set()),
        (4, {(1, 0), (2, 0)}, dict.fromkeys((1, 2), "sending"), set()),
        (4, {(1, 0), (2, 0), (3, 0)}, {0: "receiving"}, set()),
        (2, {(1, 0)}, {}, {(1, 0)}),
    ],
)
def test_who_is_to_blame_for_edges_to_one_node(
    count: int, bad: set[Edge], nodes: dict[int, Any], paths: set[Edge]
) -> None:
    tried = {(index, 0) for index in range(1, count)}
    assert blame_star(tried, bad) == Blame(nodes, frozenset(paths))


@pytest.mark.parametrize(
    ("bad", "nodes", "paths"),
    [
        ({(2, 0), (2, 3)}, {2: "sending"}, set()),
        ({(0, 2), (3, 2)}, {2: "receiving"}, set()),
        ({(0, 2), (2, 3)}, {2: "both ways"}, set()),
        ({(0, 2), (2, 0)}, {}, {(0, 2), (2, 0)}),  # one partner confirms neither of the two
        ({(0, 1), (2, 3)}, {}, {(0, 1), (2, 3)}),
    ],
)
def test_a_fault_that_spares_edges_by_chance(
    bad: set[Edge], nodes: dict[int, Any], paths: set[Edge]
) -> None:
    assert blame_now_and_then(_all(8), bad) == Blame(nodes, frozenset(paths))


def test_a_fault_now_and_then_is_confirmed_by_two_healthy_partners() -> None:
    bad = {(2, 0), (2, 1)}
    assert blame_now_and_then({*bad, (0, 3), (1, 3)}, bad) == Blame({2: "sending"})
    assert blame_now_and_then({*bad, (0, 3)}, bad) == Blame({}, frozenset(bad))


def _judged(count: int, bad: set[Edge]) -> Edges[bool]:
    names = [f"n{index}" for index in range(count)]
    return Edges.judged(names, {e: e in bad for e in _all(count)}, bool)


def test_edges_of_a_node_at_fault_and_of_its_partners() -> None:
    bad = {(2, n) for n in range(5) if n != 2} | {(0, 4)}
    edges = _judged(5, bad)
    at_fault = edges.of("n2")
    assert (at_fault.way, at_fault.without) == ("sending", ())
    assert at_fault.bad == bad - {(0, 4)}
    assert len(at_fault.values) == 8
    named = Culprit("its link", "n2")
    assert at_fault.culprit(named) is named
    end, healthy = edges.of("n4"), edges.of("n1")
    assert (end.way, end.without) == (None, ("n2",))
    assert end.bad == {(0, 4)}
    assert (2, 4) not in end.values, "what the node at fault sends is no edge of its partner"
    assert (4, 2) in end.values, "what it receives is"
    found = end.culprit(named)
    assert found is not None
    assert found.parts.paths == (("n0", "n4"),)
    assert found.either == {frozenset(("n0", "n4"))}
    assert (healthy.bad, healthy.culprit(named)) == (frozenset(), None)


def test_the_finding_of_a_whole_matrix_has_every_culprit() -> None:
    """However many there are; its words name the first."""
    count = 40
    ring = {(n, (n + 1) % count) for n in range(1, count - 1)}
    edges = _judged(count, ring | {edge for edge in _all(count) if 0 in edge})
    found = edges.whole(Subject("bad paths", "", equals(0), "all"), "{}'s link".format, "a note")
    assert (found.value, found.note) == (2 * (count - 1) + len(ring), "a note")
    assert found.culprit is not None
    assert found.culprit.nodes == {"n0"}
    assert found.culprit.startswith("n0's link, path from n1 to n2 (one way), ")
    assert set(found.culprit.parts.paths) == {(f"n{a}", f"n{b}") for a, b in ring}


def test_a_path_is_named_with_its_direction() -> None:
    edges = _judged(3, set())
    for bad, words, paths in (
        ({(0, 1), (1, 0)}, "path between n0 and n1", (("n0", "n1"), ("n1", "n0"))),
        ({(0, 1)}, "path from n0 to n1 (one way)", (("n0", "n1"),)),
        ({(1, 0)}, "path from n1 to n0 (one way)", (("n1", "n0"),)),
    ):
        found = edges.paths(bad)
        assert found is not None
        assert (found, found.parts.paths) == (words, paths)
