"""Measurements of the launching criterion: correct jobs pass, and each fault fails or is open."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.criteria.launching.rendezvous import (
    RankClients,
    StoreLoad,
    first_error,
    judged_loads,
    table,
)
from pytest_mnode.criteria.launching.reports import Met, read_nodes
from pytest_mnode.criteria.launching.starting import Started, judged_image, judged_start
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec.launch import StartPromise, StorePromise
from tests.criteria.launching.made import NODES, but, changed, expected, open_, red, right, started

START = StartPromise.model_validate({"within": "20 s"})
STORE = StorePromise.model_validate({"clients": [64, 256], "within": "5 s"})


def recorded(one: Started) -> dict[str, Measurement]:
    judged = judged_start(one, START, "criteria.launch.torchrun")
    return {m.name.removeprefix("torchrun: "): m for m in judged}


def test_the_lines_of_all_nodes_are_read() -> None:
    def printed(host: str, *ranks: int) -> str:
        lines: list[Any] = [{"login": {"node": host, "uid": 7}}]
        lines += [{"mnode_rank": 1, "node": host, "contract": {"RANK": str(n)}} for n in ranks]
        return "\n".join(map(json.dumps, lines))

    output = {"node0": printed("host0", 1, 0), "node1": printed("host1", 2), "node2": "no JSON"}
    reports, logins, hosts = read_nodes(output)
    assert [(one.node, one.rank) for one in reports] == [("node0", 0), ("node0", 1), ("node1", 2)]
    assert [one.node for one in logins] == ["host0", "host1"]
    assert hosts == {"node0": "host0", "node1": "host1", "node2": "node2"}


def test_a_correct_job_passes_with_its_user_in_the_note() -> None:
    found = recorded(started())
    assert {m.verdict for m in found.values()} == {Verdict.PASS}
    assert len(found) == 7
    assert found["submission to end"].note == (
        "a note; ran as root (uid 0): no right [node0]; ran as nobody (uid 65534) [node1]"
    )
    assert "node3: noise" in started().text()


def test_a_wrong_variable_and_a_leak_are_culprits() -> None:
    reports = changed(right(expected()), 5, LOCAL_RANK=None)
    reports = but(reports, 2, names=reports[2].names | {"MNODE_CANARY"})
    assert red(recorded(started(reports))) == {
        "variables wrong": "node2 rank 5: LOCAL_RANK is not set",
        "variables leaked": "node1 rank 2: MNODE_CANARY of the submitting environment is visible",
    }


def test_jobs_of_one_rank_are_not_one_job() -> None:
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


def test_no_node_is_blamed_for_a_job_that_never_left_the_queue() -> None:
    why = "job 7 waits in the queue: PENDING (Resources)"
    one = started([], codes=dict.fromkeys(NODES), waits=why)
    found = recorded(one)
    assert open_(found) == set(found)
    assert {m.culprit for m in found.values()} <= {why, None}
    for name in ("ranks that reported", "nodes on which the job failed"):
        assert (found[name].culprit, found[name].note) == (why, ""), name
    assert found["submission to end"].culprit == why
    assert f"a note; {why}" in found["submission to end"].note
    assert why in one.text().splitlines()


def test_a_job_that_failed_names_its_cause() -> None:
    printed = {
        "node0": "RuntimeError: Connection closed by peer [10.0.0.2]:9\n",
        "node2": "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
    }
    cause = "rank 5 on node2: GPU out of memory ("
    failed = started([], codes={"node0": 1, "node2": 1}, output=printed)
    assert any(line.startswith(cause) for line in failed.text().splitlines())
    assert cause not in started(output=printed).text()


@pytest.mark.parametrize(
    ("code", "value", "verdict", "culprit"),
    [
        (1, 1, Verdict.FAIL, "node1 (exit 1)"),
        (0, None, Verdict.INCONCLUSIVE, "node0, node2, node3"),
    ],
)
def test_a_failed_node_counts_while_others_wait_for_it(
    code: int, value: int | None, verdict: Verdict, culprit: str
) -> None:
    codes = dict.fromkeys(NODES) | {"node1": code}
    failed = recorded(started([], codes=codes))["nodes on which the job failed"]
    assert (failed.value, failed.verdict, failed.culprit) == (value, verdict, culprit)
    assert failed.note == "not finished at the time limit on node0, node2, node3"


def test_missing_reports_or_a_job_not_ended_never_pass() -> None:
    found = recorded(started([], codes=dict.fromkeys(NODES)))
    assert open_(found) == set(found)
    found = recorded(started([]))
    assert set(red(found)) == {"ranks that reported"}
    assert open_(found) == {"ranks that met all others", "variables wrong", "variables leaked"}


@pytest.mark.parametrize(
    ("fact", "judged"),
    [
        ("names", "variables leaked"),
        ("contract", "variables wrong"),
        ("interfaces", "variables wrong"),
        ("master_is_here", "variables wrong"),
        ("arguments", "variables wrong"),
    ],
)
def test_a_missing_fact_is_inconclusive(fact: str, judged: str) -> None:
    found = recorded(started(but(right(expected()), 5, missing=frozenset({fact}))))
    assert (open_(found), red(found)) == ({judged}, {})
    assert found[judged].note == f"node2 rank 5: reported no {fact} (1 of 8 ranks)"


def test_reports_of_other_ranks_still_count() -> None:
    reports = but(right(expected()), 5, missing=frozenset({"names"}))
    found = recorded(started(but(reports, 2, names=reports[2].names | {"MNODE_CANARY"})))
    assert list(red(found)) == ["variables leaked"]
    assert "reported no names" in found["variables leaked"].note


def test_more_accelerators_than_the_job_asked_for_are_a_note() -> None:
    found = recorded(started(but(right(expected()), 5, accelerators=8)))
    assert {m.verdict for m in found.values()} == {Verdict.PASS}
    note = "accelerators visible on node2: 8, the job requested 0"
    assert found["variables wrong"].note == note


def test_a_job_that_took_too_long_fails() -> None:
    assert set(red(recorded(started(seconds=20.1)))) == {"submission to end"}


def loads(**changes: Any) -> list[StoreLoad]:
    small = [RankClients(r, f"node{r}", 16, 0.1, 0.2, 0.3 + r / 10) for r in range(4)]
    large = [RankClients(r, f"node{r}", 64, 1.0, 2.0, 3.0 + r / 10) for r in range(4)]
    large[2] = replace(large[2], **changes)
    return [StoreLoad(64, tuple(small)), StoreLoad(256, tuple(large))]


def load_verdicts(found: list[StoreLoad]) -> dict[str, Measurement]:
    return {m.name.removeprefix("store: "): m for m in judged_loads(found, STORE)}


def test_loads_are_judged_and_shown() -> None:
    found = load_verdicts(loads())
    assert [m.verdict for m in found.values()] == [Verdict.PASS] * 3
    assert table(loads()).splitlines()[1:] == [
        "     64      0.100     0.200           0.600",
        "    256      1.000     2.000           3.300",
    ]


ADDRESS = "node2 (looking up the store's address took 8.0 s)"


@pytest.mark.parametrize(
    ("changes", "name", "culprit"),
    [
        ({"passed_s": 9.0}, "256 clients", "node2 (clients of rank 2 last)"),
        ({"connected_s": 4.0, "passed_s": 9.0}, "256 clients", "node2 (clients of rank 2: 4"),
        ({"passed_s": 9.0, "look_up_s": 8.0}, "256 clients", ADDRESS),
        ({"wrong": 3}, "wrong keys", "rank 2 on node2"),
    ],
)
def test_slow_clients_or_wrong_keys_fail(changes: dict[str, Any], name: str, culprit: str) -> None:
    [(failed, named)] = red(load_verdicts(loads(**changes))).items()
    assert failed.startswith(name)
    assert str(named).startswith(culprit)


@pytest.mark.parametrize("changes", [{"passed_s": None}, {"errors": ("client 7: no answer",)}])
def test_clients_that_were_not_served_are_inconclusive(changes: dict[str, Any]) -> None:
    found = load_verdicts(loads(**changes))
    assert any(name.startswith("256 clients") for name in open_(found))
    assert not red(found)


def test_wrong_keys_fail_even_if_other_clients_were_not_served() -> None:
    unserved = StoreLoad(1024, (), "no world")
    wrong = load_verdicts([*loads(wrong=3), unserved])
    assert red(wrong) == {"wrong keys": "rank 2 on node2"}
    assert wrong["wrong keys"].value == 3
    assert "wrong keys" in open_(load_verdicts([*loads(), unserved]))


def test_no_served_client_at_all_is_inconclusive() -> None:
    found = load_verdicts([StoreLoad(64, (), "no world"), StoreLoad(256, (), "no world")])
    assert {m.verdict for m in found.values()} == {Verdict.INCONCLUSIVE}
    assert "never" in table([StoreLoad(64, (), "no world")])


def test_a_job_in_an_image_has_another_root_than_its_node() -> None:
    reports = but(right(expected()), 3, root="9:9")
    roots = dict.fromkeys(NODES, "1:2")
    found = judged_image(reports, roots, 8, "")
    assert (found.value, found.verdict, found.culprit) == (1, Verdict.FAIL, "rank 0 on node0")
    inside = [replace(report, root="9:9") for report in reports]
    assert judged_image(inside, roots, 8, "").passed
    assert judged_image(reports, {}, 8, "").value == 0
    assert judged_image([], roots, 8, "").verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("account", "error"),
    [
        (
            "[rank 0 of 4 on node0]\nTraceback (most recent call last):\n  x\nRuntimeError: no\n",
            "RuntimeError: no",
        ),
        ("node3 is lost\nsince", "node3 is lost"),
        ("", "no message"),
    ],
)
def test_first_error_of_a_rank_report(account: str, error: str) -> None:
    assert first_error(account) == error
