"""Behaviour common to all judges: silent nodes, promises, and the culprits of failed paths."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.criteria.preflight.judges import links, names, packets, reach
from pytest_mnode.criteria.preflight.judges.common import Blame, blame
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import asked, healthy, silent, spec_of, verdicts

JUDGES = (
    reach.master,
    reach.peers,
    names.look_ups,
    links.interfaces,
    links.speed,
    links.interface_mtu,
    packets.path_mtu,
    names.clocks,
)


@pytest.mark.parametrize("judge", JUDGES)
def test_healthy_nodes_pass_and_a_silent_node_is_inconclusive(spec: Spec, judge: object) -> None:
    assert verdicts(judge, healthy(), spec) == {}  # type: ignore[arg-type]
    mute = silent(healthy(), 2)
    assert verdicts(judge, mute, spec) == {"gpu2": "inconclusive"}  # type: ignore[arg-type]
    [first, *_] = asked(judge, mute, spec)["gpu2"]  # type: ignore[arg-type]
    assert "gpu2: its survey gave no answer" in first.note


@pytest.mark.parametrize("judge", JUDGES)
def test_what_is_not_promised_is_not_judged(tmp_path: Path, judge: object) -> None:
    silent_spec = spec_of(tmp_path, "{}")
    assert judge(healthy(), silent_spec, "gpu0") == []  # type: ignore[operator]


def _all(count: int) -> set[tuple[int, int]]:
    return set(itertools.permutations(range(count), 2))


def test_only_the_node_that_is_cut_off_is_blamed() -> None:
    failed = {edge for edge in _all(4) if 2 in edge}
    assert blame(_all(4), failed) == Blame({2: "both ways"}, frozenset())


def test_the_failed_direction_of_a_node_is_named() -> None:
    assert blame(_all(4), {(2, n) for n in (0, 1, 3)}).nodes == {2: "sending"}
    assert blame(_all(4), {(n, 2) for n in (0, 1, 3)}).nodes == {2: "receiving"}


def test_one_failed_path_blames_no_node() -> None:
    assert blame(_all(4), {(1, 3)}) == Blame({}, frozenset({(1, 3)}))
    assert blame(_all(2), {(0, 1), (1, 0)}) == Blame({}, frozenset({(0, 1), (1, 0)}))


@pytest.mark.parametrize("bad", [1, 2])
def test_a_node_is_blamed_if_more_than_half_of_its_paths_fail(bad: int) -> None:
    into = {(n, 4) for n in range(bad + 1)}
    for failed, way in ((into, "receiving"), ({(b, a) for a, b in into}, "sending")):
        paths = Blame({}, frozenset(failed))
        expected = Blame({4: way}) if bad == 2 else paths  # type: ignore[dict-item]
        assert blame(_all(5), failed) == expected


def test_a_failed_path_is_reported_beside_a_node_that_is_cut_off() -> None:
    failed = {edge for edge in _all(5) if 2 in edge} | {(0, 4)}
    assert blame(_all(5), failed) == Blame({2: "both ways"}, frozenset({(0, 4)}))


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
