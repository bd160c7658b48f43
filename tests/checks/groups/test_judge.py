"""Ranks in a wrong group, position or host, from the reports of ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import acceptance.test_groups as questions
from pytest_mnode.checks.groups import collectives, members, slices
from pytest_mnode.checks.groups.judge import (
    CollectiveResult,
    Expected,
    Layout,
    Membership,
    RankGroups,
    agreed,
    asked_layout,
    judge_collectives,
    judge_inside_node,
    judge_members,
    layouts,
    plan_layouts,
)
from pytest_mnode.checks.judged import At
from pytest_mnode.errors import UsageError
from pytest_mnode.measure import Measure
from pytest_mnode.measurement import Measurement
from pytest_mnode.rank.world import World
from pytest_mnode.spec.checks import GroupsCriterion
from tests.acceptance.certified import certify, spec_edited
from tests.inner import need_rack

LAYOUT = Layout.of(dp=2, tp=2)
EXPECTED = {name: LAYOUT.groups(name) for name in LAYOUT.names}


def reported(hosts: Sequence[str] = ("a", "a", "b", "b")) -> list[RankGroups]:
    """Four correct ranks."""
    return [
        RankGroups(
            At(rank, f"node{rank // 2}"),
            hosts[rank],
            {
                name: Membership(
                    group := LAYOUT.group_of(rank, name), group.index(rank), None, group
                )
                for name in LAYOUT.names
            },
            machine=hosts[rank] * 4,
        )
        for rank in range(4)
    ]


def changed(rank: int, name: str, membership: Membership | None) -> list[RankGroups]:
    ranks = reported()
    groups = {k: v for k, v in ranks[rank].groups.items() if k != name}
    if membership is not None:
        groups[name] = membership
    ranks[rank] = replace(ranks[rank], groups=groups)
    return ranks


def judged(ranks: Sequence[RankGroups]) -> tuple[Measurement, Measurement]:
    members, order = judge_members("mesh", ranks, EXPECTED)
    return members, order


def test_correct_groups_pass() -> None:
    members, order = judged(reported())
    assert members.passed
    assert order.passed
    assert members.name == "mesh: ranks in a wrong group"
    assert order.name == "mesh: ranks at a wrong place in their group"


def test_a_wrong_member_is_named_and_the_order_is_not_judged() -> None:
    ranks = changed(3, "tp", Membership((1, 3), 1))
    assert not agreed(ranks, "tp")
    members, order = judged(ranks)
    assert (members.value, members.culprit) == (
        1,
        "rank 3 on node1 is in tp [1, 3], expected [2, 3]",
    )
    assert order.value is None
    assert order.note.startswith("no rank answered in tp: ranks disagree on who is in it")


def test_a_rank_that_is_left_out_and_one_too_many() -> None:
    members, _ = judged(changed(2, "dp", None))
    assert members.culprit == "rank 2 on node1 is in no dp, expected in [0, 2]"
    extra = changed(2, "cp", Membership((2,), 0))
    found, _ = judge_members("mesh", extra, {**EXPECTED, "cp": ((0, 1),)})
    assert found.culprit is not None
    assert "rank 2 on node1 is in cp [2], expected in none" in found.culprit
    assert "rank 0 on node0 is in no cp, expected in [0, 1]" in found.culprit


def test_received_values_count_beside_torchs_group_ranks() -> None:
    right = reported()[0].groups["dp"]
    members, order = judged(changed(0, "dp", replace(right, heard=(0, 3))))
    assert members.culprit == "rank 0 on node0 heard [0, 3] in dp, expected [0, 2]"
    members, order = judged(changed(0, "dp", replace(right, heard=(2, 0))))
    assert members.passed
    assert order.culprit == "rank 0 on node0 heard dp in the order [2, 0], expected [0, 2]"


def test_wrong_orders() -> None:
    swapped = Membership((3, 2), 1)
    _, order = judged(changed(2, "tp", swapped))
    assert (order.value, order.culprit) == (
        1,
        "rank 2 on node1 has tp in the order [3, 2], expected [2, 3]",
    )
    right = reported()[2].groups["tp"]
    _, order = judged(changed(2, "tp", replace(right, coordinate=1)))
    assert order.culprit == "rank 2 on node1 is at place 0 of tp [2, 3], and 1 in the mesh"


@pytest.mark.parametrize(
    ("ranks", "expected", "note"),
    [
        ([], EXPECTED, "ranks 0, 1, 2, 3 reported no groups"),
        (reported()[:1], EXPECTED, "ranks 1, 2, 3 reported no groups"),
        (reported(), {}, "no group is expected"),
        (reported(), {"cp": []}, "no group is expected"),
    ],
)
def test_no_comparison_does_not_pass(
    ranks: Sequence[RankGroups], expected: Expected, note: str
) -> None:
    for found in judge_members("mesh", ranks, expected):
        assert found.value is None
        assert note in found.note


def test_a_group_without_received_values_does_not_pass() -> None:
    def unheard(one: RankGroups) -> RankGroups:
        return replace(
            one, groups={name: replace(has, heard=None) for name, has in one.groups.items()}
        )

    for found in judged([unheard(one) for one in reported()]):
        assert found.value is None
        assert found.note == "all 4 ranks: no rank answered in dp, tp"
    one_deaf = reported()
    one_deaf[2] = unheard(one_deaf[2])
    for found in judged(one_deaf):
        assert (found.value, found.note) == (None, "rank 2 on node1: no rank answered in dp, tp")
    # Groups that torch itself reports as wrong fail, whatever was received.
    assert judged(changed(3, "tp", Membership((1, 3), 1)))[0].value == 1


def test_groups_that_span_hosts() -> None:
    wrong = judge_inside_node("mesh", reported(("a", "b", "c", "c")), ["tp"])
    assert (wrong.value, wrong.culprit) == (1, "tp [0, 1] spans a, b")
    assert wrong.name == "mesh: tp groups over more than one node"
    assert judge_inside_node("mesh", reported(), ["tp"]).note == "2 groups over 2 hosts"
    assert judge_inside_node("mesh", reported(), ["dp"]).value == 2


def test_hosts_of_the_same_name_are_distinguished_by_machine() -> None:
    ranks = [replace(one, host="localhost", machine=f"m{one.at.rank}") for one in reported()]
    wrong = judge_inside_node("mesh", ranks, ["tp"])
    assert wrong.culprit == (
        "tp [0, 1] spans localhost (m0), localhost (m1); "
        "tp [2, 3] spans localhost (m2), localhost (m3)"
    )


def test_no_group_of_the_name_is_inconclusive() -> None:
    assert judge_inside_node("mesh", reported(), ["cp"]).value is None
    found = judge_inside_node("mesh", reported(), iter(["tp", "cp"]))
    assert (found.name, found.value) == ("mesh: tp and cp groups over more than one node", None)
    assert found.note == "there is no group of cp; 2 groups over 2 hosts"
    assert judge_inside_node("mesh", reported(), []).value is None
    broken = judge_inside_node("mesh", reported(), ["dp", "cp"])
    assert (broken.value, broken.note) == (2, "there is no group of cp; 2 groups over 2 hosts")


def test_a_rank_of_an_unknown_host_is_inconclusive() -> None:
    found = judge_inside_node("mesh", reported()[:3], ["tp"])
    assert (found.value, found.culprit) == (None, None)
    assert found.note == "the host of rank 3 is not known; 2 groups over 2 hosts"
    # Two nodes with equal host names, and no ids to distinguish their machines.
    alike = [replace(one, host="localhost", machine="") for one in reported(("a", "b", "c", "c"))]
    alike[1] = replace(alike[1], at=At(1, "node9"))
    found = judge_inside_node("mesh", alike, ["tp"])
    assert found.value is None
    assert found.note.startswith("the hosts of ranks 0, 1, 2, 3 are not known; ")


def test_wrong_values_and_groups_that_were_not_tried() -> None:
    right = (At(0, "node0"), [CollectiveResult("dp", "all_reduce", 0)])
    bad = (
        At(1, "node0"),
        [CollectiveResult("dp", "all_reduce", 3, "position 2 is 7, expected 8")],
    )
    wrong = judge_collectives("mesh", [right, bad], {})
    assert (wrong.value, wrong.culprit) == (
        3,
        "rank 1 on node0: all_reduce in dp: position 2 is 7, expected 8",
    )
    assert judge_collectives("mesh", [right], {}).passed
    untried = judge_collectives("mesh", [right], {"tp": "it has wrong ranks"})
    assert (untried.value, untried.note) == (None, "tp not tried: it has wrong ranks; all_reduce")
    assert judge_collectives("mesh", [right, bad], {"tp": "it has wrong ranks"}).value == 3
    nothing = judge_collectives("mesh", [(At(0, "node0"), [])], {})
    assert (nothing.value, nothing.note) == (None, "no collective was run")


@pytest.mark.parametrize(
    ("wrong", "sure", "either"),
    [
        ({("dp", 2)}, {"node1"}, set()),  # the other rank of its group has right results
        ({("dp", 0), ("dp", 2)}, set(), {frozenset({"node0", "node1"})}),
        ({("dp", 0), ("dp", 2), ("tp", 2), ("tp", 3)}, {"node1"}, set()),
        ({("dp", 0), ("dp", 2), ("dp", 1), ("dp", 3), ("tp", 2), ("tp", 3)}, {"node1"}, set()),
    ],
)
def test_a_rank_whose_peers_have_wrong_results_too_is_blamed_if_all_groups_share_it(
    wrong: set[tuple[str, int]], sure: set[str], either: set[frozenset[str]]
) -> None:
    """Or a node, both of whose ranks send wrong values."""
    expected = {"dp": [(0, 2), (1, 3)], "tp": [(0, 1), (2, 3)]}
    gathered = [
        (
            At(rank, f"node{rank // 2}"),
            [CollectiveResult(name, "sum", (name, rank) in wrong) for name in expected],
        )
        for rank in range(4)
    ]
    culprit = judge_collectives("mesh", gathered, {}, expected).culprit
    assert culprit is not None
    assert (set(culprit.nodes), set(culprit.either)) == (sure, either)


@pytest.mark.parametrize(
    ("copies", "sums", "sure", "either"),
    [
        # Of two nodes, the one that receives is no more suspect than the one that sends.
        ({2: {0}, 3: {1}}, {0, 1, 2, 3}, set(), {frozenset({"node0", "node1"})}),
        ({2: {0}}, set(), set(), {frozenset({"node0", "node1"})}),
        ({1: {0}, 2: {0}, 3: {0}}, set(), {"node0"}, set()),  # what it sends is wrong on all others
        ({2: {0, 1}}, set(), {"node1"}, set()),  # what it receives from several
    ],
)
def test_of_copies_that_came_wrong_the_sender_is_suspected_too(
    copies: dict[int, set[int]], sums: set[int], sure: set[str], either: set[frozenset[str]]
) -> None:
    several = len(copies) == 3 or any(len(one) > 1 for one in copies.values())
    expected = {"dp": [(0, 1, 2, 3)] if several else [(0, 2), (1, 3)]}
    gathered = [
        (
            At(rank, f"node{rank // 2}"),
            [
                CollectiveResult(
                    "dp", "all_gather", rank in copies, "", frozenset(copies.get(rank, ()))
                ),
                CollectiveResult("dp", "all_reduce", rank in sums),
            ],
        )
        for rank in range(4)
    ]
    culprit = judge_collectives("mesh", gathered, {}, expected).culprit
    assert culprit is not None
    assert (set(culprit.nodes), set(culprit.either)) == (sure, either)


def test_ranks_agree_only_if_all_report_the_same() -> None:
    assert agreed(reported(), "tp")
    assert agreed(reported(), "nowhere")
    assert not agreed(changed(1, "tp", Membership((0, 1), 0)), "tp")
    assert not agreed(changed(1, "tp", Membership((1, 0), 0)), "tp")
    assert not agreed(changed(1, "tp", None), "tp")
    assert not agreed(changed(1, "tp", Membership((0, 1, 9), 1)), "tp")


def test_two_groups_of_one_name_with_a_rank_in_both_are_refused() -> None:
    world = World(0, 3, 0, 3, "node0", ("node0",))
    both = {"ep": [[0, 1], [1, 2]]}
    for judge in (members, collectives):
        with pytest.raises(ValueError, match=r"^expected: rank 1 twice in ep; give each "):
            judge({}, world, torch.device("cpu"), expected=both)


def test_groups_of_thousands_of_ranks_are_compared_in_seconds() -> None:
    layout, began = Layout.of(dp=1024, tp=4), time.process_time()
    own = {
        rank: Membership((*group,), place)
        for group in layout.groups("dp")
        for place, rank in enumerate(group)
    }
    every = [RankGroups(At(rank, ""), "", {"dp": one}) for rank, one in own.items()]
    assert agreed(every, "dp")
    assert not agreed([*every[:-1], replace(every[-1], groups={})], "dp")
    assert time.process_time() - began < 10


def test_groups_of_three_dimensions() -> None:
    layout = Layout.of(pp=2, dp=3, tp=2)
    assert layout.groups("tp") == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11))
    assert layout.groups("dp") == ((0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11))
    assert layout.groups("pp") == ((0, 6), (1, 7), (2, 8), (3, 9), (4, 10), (5, 11))
    assert layout.groups("pp", "tp") == ((0, 1, 6, 7), (2, 3, 8, 9), (4, 5, 10, 11))
    assert layout.group_of(9, "pp", "dp", "tp") == tuple(range(12))
    assert str(layout) == "pp 2 × dp 3 × tp 2"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_groups_are_the_rows_of_an_array_of_ranks(sizes: list[int]) -> None:
    names = tuple("abcd"[: len(sizes)])
    layout = Layout(names, tuple(sizes))
    ranks = torch.arange(layout.size).reshape(sizes)
    for axis, name in enumerate(names):
        rows = ranks.movedim(axis, -1).reshape(-1, sizes[axis]).tolist()
        assert sorted(map(list, layout.groups(name))) == sorted(rows)


@pytest.mark.parametrize(
    ("nodes", "per_node", "planned"),
    [
        (4, 2, ["dp 4 × tp 2", "pp 2 × dp 2 × tp 2"]),
        (1, 2, ["dp 1 × tp 2", "pp 2 × dp 1 × tp 1"]),
        (3, 2, ["dp 3 × tp 2", "pp 3 × dp 1 × tp 2"]),
        (8, 2, ["dp 8 × tp 2", "pp 2 × dp 4 × tp 2"]),
        (2, 8, ["dp 2 × tp 8", "pp 2 × dp 1 × tp 8", "pp 2 × dp 2 × tp 4"]),
        (1, 8, ["dp 1 × tp 8", "pp 2 × dp 4 × tp 1", "pp 1 × dp 2 × tp 4"]),
        (4, 1, ["dp 4 × tp 1", "pp 2 × dp 2 × tp 1"]),
        (1, 1, ["dp 1 × tp 1", "pp 1 × dp 1 × tp 1"]),
    ],
)
def test_planned_meshes(nodes: int, per_node: int, planned: list[str]) -> None:
    found = plan_layouts(nodes, per_node)
    assert [str(layout) for layout in found] == planned
    assert {layout.size for layout in found} == {nodes * per_node}


@given(st.integers(1, 40), st.integers(1, 16))
def test_tp_is_planned_inside_a_node(nodes: int, per_node: int) -> None:
    for layout in plan_layouts(nodes, per_node):
        assert layout.size == nodes * per_node
        for group in layout.groups("tp"):
            assert len({rank // per_node for rank in group}) == 1


def test_the_spec_names_meshes() -> None:
    world = World(0, 16, 0, 8, "node0", ("node0", "node1"))
    promise = GroupsCriterion(meshes=({"pp": 2, "dp": "rest", "tp": 4}, {"dp": "rest"}))
    assert [str(one) for one in layouts(promise, world)] == ["pp 2 × dp 2 × tp 4", "dp 16"]
    assert layouts(GroupsCriterion(), world) == plan_layouts(2, 8)


def test_any_name_is_valid_for_a_dimension() -> None:
    layout = asked_layout({"cls": 2, "self": "rest"}, 4)
    assert (layout.names, layout.sizes) == (("cls", "self"), (2, 2))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dp": 2, "tp": 3}, "mesh {dp: 2, tp: 3} needs 6 ranks, and there are 8; "),
        ({"dp": "rest", "tp": 3}, "mesh {dp: rest, tp: 3} needs a multiple of 3 ranks, and there "),
        ({"dp": 2, "tp": 2}, "mesh {dp: 2, tp: 2} needs 4 ranks, and there are 8; "),
        ({"dp": 16}, "mesh {dp: 16} needs 16 ranks, and there are 8; give other sizes, or rest"),
    ],
)
def test_a_mesh_that_does_not_fit(sizes: Mapping[str, int | str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        asked_layout(sizes, 8)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("names", "sizes"), [(("a", "a"), (2, 2)), (("a",), (2, 2)), (("a",), (0,)), ((), ())]
)
def test_invalid_layouts_are_refused(names: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes"):
        Layout(names, sizes)


WORLD = World(0, 4, 0, 2, "node0", ("node0", "node1"))
CPU = torch.device("cpu")


def test_a_one_dimensional_mesh_has_no_slices() -> None:
    mesh: Any = SimpleNamespace(mesh_dim_names=("dp",), shape=(4,))
    with pytest.raises(ValueError, match=r"^a mesh of one dimension, dp, has no slices; give "):
        slices(mesh, WORLD, CPU)


def test_slices_of_it_are_not_promised() -> None:
    ask = cast(Any, questions.test_slices_of_a_mesh_are_right)
    with pytest.raises(pytest.skip.Exception) as skipped:
        ask(WORLD, CPU, (Layout.of(dp=4),), Measure([], ""))
    assert str(skipped.value) == "not promised by the spec: a mesh of two dimensions or more"


def test_a_one_dimensional_mesh_is_certified(tmp_path: Path) -> None:
    need_rack()

    def edit(page: dict[str, Any]) -> None:
        page["criteria"] = {"groups": {"meshes": [{"dp": "rest"}]}}

    spec = spec_edited(tmp_path, edit)
    done = certify(tmp_path, spec, "--mnode-nodes=2", files=["test_groups.py"], cold=False)
    assert done.criterion("groups")["verdict"] == "pass", done.run.output
    assert {name for name, outcome in done.run.outcomes().items() if outcome == "skipped"} == {
        "test_tensor_parallel_groups_stay_inside_a_node",
        "test_slices_of_a_mesh_are_right",
    }
