"""What the criterion's tests record, from values: green as it should be, and each thing red."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.launching.absent import gist
from pytest_mnode.launching.clients import Part
from pytest_mnode.launching.crowded import Crowd, record_crowds, table
from pytest_mnode.launching.described import LaunchJob
from pytest_mnode.launching.held_back import Said, judge_absent
from pytest_mnode.launching.images import in_image
from pytest_mnode.launching.paths import Outcome, Submitted
from pytest_mnode.launching.rendezvous import RankTimes, judge_times, ranks_per_node, slow_rank
from pytest_mnode.launching.reports import Login, Met, RankReport
from pytest_mnode.launching.starting import Started, elsewhere, record_place
from pytest_mnode.measure import Measure
from pytest_mnode.spec.launch import AbsentPromise, RendezvousPromise, StartPromise, StorePromise
from pytest_mnode.verdict import Measurement, Verdict
from tests.launching.made import NODES, PINS, but, changed, expected, right

START = StartPromise.model_validate({"within": "20 s"})
STORE = StorePromise.model_validate({"clients": [64, 256], "within": "5 s"})
ABSENT = AbsentPromise.model_validate({"limit": "1 s", "said_within": "3 s"})


def started(reports: list[RankReport] | None = None, **outcome: Any) -> Started:
    wanted = expected()
    job = LaunchJob.model_validate(
        {"name": "a", "nodes": 4, "accelerators_per_node": 0, "command": ["x"]}
    )
    found = Outcome(
        codes=dict.fromkeys(NODES, 0),
        reports=tuple(right(wanted) if reports is None else reports),
        logins=(Login("node0", 0, "root", "no right"), Login("node1", 65534, "nobody", "")),
        hosts={node: node for node in NODES},
        output=dict.fromkeys(NODES, "noise\n{}"),
        seconds=4.0,
    )
    submitted = Submitted(NODES, PINS, ("a note",))
    return Started("torchrun", job, wanted, submitted, replace(found, **outcome))


def recorded(one: Started) -> dict[str, Measurement]:
    kept: list[Measurement] = []
    one.record(Measure(kept, ""), START, "criteria.launch.torchrun")
    return {m.name.removeprefix("torchrun: "): m for m in kept}


def red(found: dict[str, Measurement]) -> dict[str, str | None]:
    return {n: m.culprit for n, m in found.items() if m.verdict is Verdict.FAIL}


def open_(found: dict[str, Measurement]) -> set[str]:
    return {n for n, m in found.items() if m.verdict is Verdict.INCONCLUSIVE}


def test_a_right_job_passes_and_says_as_whom_it_ran() -> None:
    found = recorded(started())
    assert {m.verdict for m in found.values()} == {Verdict.PASS}
    assert len(found) == 7
    assert found["submission to end"].note == (
        "a note; ran as root (uid 0): no right [node0]; ran as nobody (uid 65534) [node1]"
    )
    assert "node3: noise" in started().text()


def test_a_wrong_variable_is_the_culprit() -> None:
    found = recorded(started(changed(right(expected()), 5, LOCAL_RANK=None)))
    assert red(found) == {"variables wrong": "node2 rank 5: LOCAL_RANK is not set"}


def test_a_leak_is_the_culprit() -> None:
    reports = right(expected())
    names = reports[2].names | {"MNODE_CANARY"}
    found = recorded(started(but(reports, 2, names=names)))
    said = "node1 rank 2: MNODE_CANARY of the submitting environment is visible"
    assert red(found) == {"variables leaked": said}


def test_jobs_of_one_rank_are_told_from_one_job() -> None:
    reports = [replace(report, met=Met(1, 1, (0,))) for report in right(expected())]
    found = recorded(started(reports))
    assert set(red(found)) == {"ranks that met all others", "ranks in the smallest group that met"}
    smallest = found["ranks in the smallest group that met"]
    assert (smallest.value, smallest.note) == (1, "8 jobs of one rank")


def test_a_silent_node_and_one_that_failed() -> None:
    reports = [report for report in right(expected()) if report.node != "node2"]
    codes = {"node0": 0, "node1": 0, "node2": 127, "node3": 0}
    found = recorded(started(reports, codes=codes))
    assert red(found)["ranks that reported"] == "node2: 0 of 2 ranks reported"
    assert red(found)["nodes on which the job failed"] == "node2 (exit 127)"


def test_nothing_said_or_not_ended_is_never_a_pass() -> None:
    found = recorded(started([], codes=dict.fromkeys(NODES)))
    assert open_(found) == set(found)
    found = recorded(started([]))
    assert set(red(found)) == {"ranks that reported"}
    assert open_(found) == {"ranks that met all others", "variables wrong", "variables leaked"}


def test_late_is_late() -> None:
    assert set(red(recorded(started(seconds=20.1)))) == {"submission to end"}


@pytest.mark.parametrize(
    ("nodes", "others"),
    [
        (("a", "b"), ("b", "a")),
        (("a", "b", "c"), ("c", "b")),
        (("a", "b", "c", "d"), ("d", "c")),
        (tuple("abcdefgh"), ("h", "g", "f", "e")),
    ],
)
def test_elsewhere_begins_on_another_node(nodes: tuple[str, ...], others: tuple[str, ...]) -> None:
    assert elsewhere(nodes) == others


ADDRESSES = {node: f"10.77.1.{index + 1}" for index, node in enumerate(NODES)}
PLACE = "nodes that it ran on as asked"
MASTER = "ranks whose MASTER_ADDR is the first node's"


@pytest.mark.parametrize(
    ("address", "stray", "found"),
    [
        ("10.77.1.1", None, {}),
        ("10.77.1.4", None, {MASTER: "MASTER_ADDR=10.77.1.4 (node3)"}),
        ("127.0.0.1", None, {MASTER: "MASTER_ADDR=127.0.0.1 (no node)"}),
        ("10.77.1.1", "node9", {PLACE: "node9"}),
    ],
)
def test_a_placement_that_was_not_kept(
    address: str, stray: str | None, found: dict[str, str]
) -> None:
    reports = right(expected())
    for rank in range(len(reports)):
        reports = changed(reports, rank, MASTER_ADDR=address)
    if stray:
        reports = but(but(reports, 6, node=stray), 7, node=stray)
    kept: list[Measurement] = []
    record_place(Measure(kept, ""), started(reports), NODES, ADDRESSES)
    assert red({m.name.removeprefix("torchrun: "): m for m in kept}) == found


def crowds(**changes: Any) -> list[Crowd]:
    small = [Part(r, f"node{r}", 16, 0.1, 0.2, 0.3 + r / 10) for r in range(4)]
    large = [Part(r, f"node{r}", 64, 1.0, 2.0, 3.0 + r / 10) for r in range(4)]
    large[2] = replace(large[2], **changes)
    return [Crowd(64, tuple(small)), Crowd(256, tuple(large))]


def crowd_verdicts(found: list[Crowd]) -> dict[str, Measurement]:
    kept: list[Measurement] = []
    record_crowds(found, STORE, Measure(kept, ""))
    return {m.name.removeprefix("store: "): m for m in kept}


def test_crowds_are_judged_and_shown() -> None:
    found = crowd_verdicts(crowds())
    assert [m.verdict for m in found.values()] == [Verdict.PASS] * 4
    assert table(crowds()).splitlines()[1:] == [
        "     64      0.100     0.200           0.600",
        "    256      1.000     2.000           3.300",
    ]


@pytest.mark.parametrize(
    ("changes", "name", "culprit"),
    [
        ({"passed_s": 9.0}, "256 clients came", "node2 (clients of rank 2 last)"),
        ({"connected_s": 4.0, "passed_s": 9.0}, "256 clients came", "node2 (clients of rank 2: 4"),
        (
            {"passed_s": 9.0, "look_up_s": 8.0},
            "256 clients came",
            "node2 (the store's address is looked up in 8.0 s)",
        ),
        ({"wrong": 3}, "keys that did not come right", "rank 2 on node2"),
        ({"left": ("2 threads",)}, "ranks that left clients", "rank 2 on node2: 2 threads"),
    ],
)
def test_a_slow_or_wrong_crowd_is_red(changes: dict[str, Any], name: str, culprit: str) -> None:
    found = red(crowd_verdicts(crowds(**changes)))
    assert [str(one)[: len(culprit)] for one in found.values()] == [culprit]
    assert next(iter(found)).startswith(name)


@pytest.mark.parametrize("changes", [{"passed_s": None}, {"errors": ("client 7: no answer",)}])
def test_a_crowd_that_was_not_served_is_not_measured(changes: dict[str, Any]) -> None:
    found = crowd_verdicts(crowds(**changes))
    assert any(name.startswith("256 clients") for name in open_(found))
    assert not red(found)


def test_no_crowd_at_all_is_not_measured() -> None:
    found = crowd_verdicts([Crowd(64, (), "no world"), Crowd(256, (), "no world")])
    assert {m.verdict for m in found.values()} == {Verdict.INCONCLUSIVE}
    assert "never" in table([Crowd(64, (), "no world")])


def absent(*texts: str, seconds: float = 1.5) -> dict[str, Measurement]:
    said = [Said(rank, f"node{rank}", text, seconds) for rank, text in enumerate(texts)]
    kept: list[Measurement] = []
    judge_absent(said, 3, NODES, ABSENT, Measure(kept, ""), failed="" if texts else "no world")
    return {m.name: m for m in kept}


LINE = "rank 3 of 4 never came within 1 s (ranks 0-2 on node0,node1,node2 did)"


def test_all_name_the_one_that_was_held_back() -> None:
    assert {m.verdict for m in absent(LINE, LINE, LINE).values()} == {Verdict.PASS}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wait timeout after 1000ms, keys: /default_pg/0//cpu//0/3",
        "ranks 2-3 of 4 never came within 1 s",
        "rank 2 of 4 never came within 1 s",
    ],
)
def test_naming_another_or_nobody_is_red(text: str) -> None:
    found = absent(LINE, text, LINE)
    assert red(found) == {"ranks that named the one that never came": "rank 1 on node1"}


def test_late_or_silent_is_no_pass() -> None:
    name = "time from the limit of initialisation to the error"
    assert set(red(absent(LINE, LINE, LINE, seconds=4.5))) == {name}
    assert len(open_(absent())) == 2


def times(*connect_s: float) -> list[RankTimes]:
    return [RankTimes(rank, f"node{rank}", s, 1.0) for rank, s in enumerate(connect_s)]


@pytest.mark.parametrize(
    ("connect_s", "rank"),
    [
        ((0.01, 0.01, 2.0, 0.02), 2),
        ((0.01, 0.05, 0.01, 0.02), None),  # noise
        ((2.0, 2.1, 2.2, 2.0), None),  # all of them
        ((0.01, 2.0), 1),
        ((0.01,), None),
    ],
)
def test_a_rank_that_is_slow_by_itself_is_named(
    connect_s: tuple[float, ...], rank: int | None
) -> None:
    found = slow_rank(times(*connect_s))
    assert (found.rank if found else None) == rank


@pytest.mark.parametrize(
    ("init_s", "connect_s", "verdict", "culprit"),
    [
        (0.9, 0.01, Verdict.PASS, "no rank by itself; rank 2 on node2 was the last"),
        (3.1, 0.01, Verdict.FAIL, "no rank by itself; rank 2 on node2 was the last"),
        (3.1, 0.8, Verdict.FAIL, "node2 (rank 2: 0.80 s to connect to the store alone)"),
        (None, 0.8, Verdict.INCONCLUSIVE, "node2 (rank 2: 0.80 s to connect to the store alone)"),
    ],
)
def test_a_rendezvous_is_judged_by_its_slowest_rank(
    init_s: float | None, connect_s: float, verdict: Verdict, culprit: str
) -> None:
    found = [replace(one, init_s=0.5) for one in times(0.01, 0.01, connect_s, 0.01)]
    found[2] = replace(found[2], init_s=init_s, error="" if init_s else "no peer")
    kept: list[Measurement] = []
    promise = RendezvousPromise.model_validate({"within": "2 s"})
    judge_times(found, promise, "init", Measure(kept, ""))
    assert (kept[0].verdict, kept[0].culprit) == (verdict, culprit)
    assert kept[0].note == ("" if init_s else "rank 2 on node2: no peer")


def test_ranks_are_spread_evenly_and_have_an_accelerator_each() -> None:
    assert [ranks_per_node(16, nodes, 0) for nodes in (1, 2, 3, 4, 8, 16, 20)] == [
        *(16, 8, 6, 4, 2, 1, 1)
    ]
    assert ranks_per_node(16, 1, 8) == 8


def test_an_image_has_a_root_of_its_own() -> None:
    reports = but(right(expected()), 3, root="9:9")
    roots = dict.fromkeys(NODES, "1:2")
    assert [report.rank for report in in_image(reports, roots)] == [3]
    assert in_image(reports, {}) == []


def test_the_gist_of_an_account_is_its_error() -> None:
    account = "[rank 0 of 4 on node0]\nTraceback (most recent call last):\n  x\nRuntimeError: no\n"
    assert gist(account) == "RuntimeError: no"
    assert gist("node3 is lost\nsince") == "node3 is lost"
    assert re.match("no message", gist(""))
