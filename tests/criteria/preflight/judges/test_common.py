"""Behaviour common to all judges: silent nodes, promises, and the culprits of failed paths."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.checks.node.clocks import ClocksAgree
from pytest_mnode.checks.node.interfaces import InterfacesAreUp, InterfacesRunAtTheirSpeed
from pytest_mnode.checks.node.mtu import FullSizePacketsPass, InterfacesHaveTheirMtu
from pytest_mnode.checks.node.names import NamesAreFound
from pytest_mnode.checks.node.reachable import EveryNodeIsReached, FirstNodeIsReached
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.edges import Blame, blame
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import asked, healthy, promising, silent, verdicts

JUDGES = (
    FirstNodeIsReached,
    EveryNodeIsReached,
    NamesAreFound,
    InterfacesAreUp,
    InterfacesRunAtTheirSpeed,
    InterfacesHaveTheirMtu,
    FullSizePacketsPass,
    ClocksAgree,
)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_silent_node_is_inconclusive_and_what_is_not_promised_is_not_judged(
    spec: Spec, judge: type[Check]
) -> None:
    assert verdicts(judge, healthy(), spec) == {}
    mute = silent(healthy(), 2)
    assert verdicts(judge, mute, spec) == {"gpu2": "inconclusive"}
    assert "gpu2: its survey gave no answer" in asked(judge, mute, spec)["gpu2"][0].note
    assert judged(judge, healthy(), promising("{}"), "gpu0") == []


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
