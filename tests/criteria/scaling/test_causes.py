"""Causes of lost throughput in words, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.criteria.scaling.causes import Cause, explained
from pytest_mnode.criteria.scaling.table import table
from pytest_mnode.criteria.scaling.timings import JobTimings
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Verdict
from tests.criteria.scaling import made


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 2), (3, 1), (16, 2)])
def test_a_healthy_job_passes_every_measurement(nodes: int, per_node: int) -> None:
    plan = made.plan(nodes, per_node)
    found = made.judged(made.timings(plan))
    verdicts = {name: one.verdict for name, one in made.measured(found).items() if one.expected}
    assert set(verdicts.values()) == {Verdict.PASS}, verdicts
    assert f"efficiency, {nodes} nodes" in verdicts


@pytest.mark.parametrize(
    ("job", "kind", "culprit"),
    [
        (
            {"own": made.slow_on("node3", compute=0.28)},
            "straggler",
            "node3 computes 1.4× slower: 280 ms, others 200 ms",
        ),
        (
            {"own": made.slow_on("node2", input=0.06)},
            "input",
            "node2 waits 60 ms per step for input, others 1.0 ms",
        ),
        (
            {"own": made.slow_on(["node2", "node3"], input=0.06)},
            "input",
            "node2 and node3 wait up to 60 ms per step for input, others 1.0 ms",
        ),
        (
            {"own": made.slow_on("node1", optimiser=0.06)},
            "optimiser",
            "node1 takes 60 ms per step in the optimiser",
        ),
        (
            {"needed_s": made.exposed_by(0.038), "line": 0.47},
            "fabric",
            "collectives exposed 38 ms per step: fabric at 47% of its model and 47% of line rate",
        ),
        (
            {"needed_s": made.exposed_by(0.09), "hidden": 0.03},
            "overlap",
            "collectives are not overlapped: 3% of communication is hidden, 90 ms per step exposed",
        ),
        (
            {"needed_s": made.exposed_by(0.3), "nic": "mgmt0"},
            "network",
            "traffic on mgmt0 (480 MB), not fab0: collectives ",
        ),
        (
            {"needed_s": made.exposed_by(0.05)},
            "contention",
            "collectives exposed 50 ms per step; 90% of communication is hidden; 47 ms more than "
            "the fabric allows at 95% of its model and 95% of line rate",
        ),
    ],
)
def test_the_largest_cause_comes_first(job: dict[str, Any], kind: str, culprit: str) -> None:
    plan = made.plan(4)
    judged, efficiency = made.judged_last(made.timings(plan, **job))
    assert efficiency.verdict is Verdict.FAIL
    assert str(efficiency.culprit).startswith(culprit)
    assert judged.causes[0].kind == kind
    assert sum(cause.seconds for cause in judged.causes) == pytest.approx(judged.parts.lost_s)


def test_a_different_slow_rank_in_each_step_blames_no_rank() -> None:
    plan = made.plan(4)
    job = made.timings(plan)
    numbers = {count: iter(range(10**6)) for count in plan.counts}

    def by(rank: int, count: int) -> float:
        step, index = divmod(next(numbers[count]), count)
        return 0.04 if count > 1 and index == step % count else 0.0

    culprit = str(made.last(made.judged(made.later(job, by))).culprit)
    assert culprit.startswith("ranks compute unevenly: "), culprit


EXCUSED = "explained_from 0.9, as 100% of the loss is due to allowed_causes"


@pytest.mark.parametrize(
    ("exposed_s", "allowed", "verdict", "words"),
    [
        (0.015, [], Verdict.FAIL, ""),
        (0.015, ["communication", "contention"], Verdict.PASS, EXCUSED),
        (0.015, ["input", "straggler"], Verdict.FAIL, "0% of the loss is due to allowed_causes"),
        (0.05, ["communication", "contention"], Verdict.FAIL, EXCUSED),  # below the lower bound
    ],
)
def test_between_the_bounds_allowed_causes_must_explain_the_loss(
    exposed_s: float, allowed: list[str], verdict: Verdict, words: str
) -> None:
    plan = made.plan(4)
    job = made.timings(plan, needed_s=made.exposed_by(exposed_s))
    found = made.judged_last(job, *allowed)[1]
    assert found.verdict is verdict
    assert found.expected is not None
    assert found.expected.limit == (0.9 if words == EXCUSED else 0.95)
    assert words in found.source


def test_a_gain_in_one_part_does_not_offset_a_loss_in_another() -> None:
    seconds = {"communication": 0.02, "straggler": 0.02, "rest": -0.02}
    causes = [Cause(kind, lost_s, "") for kind, lost_s in seconds.items()]
    assert explained(causes, ["communication"], 0.02) == pytest.approx(0.5)
    assert explained((), [], 0.0) == 1.0


@pytest.mark.parametrize(
    ("later_s", "rounds", "verdict"),
    [
        ((0.0, 0.001, 0.002), 3, Verdict.PASS),
        ((0.0, 0.01, 0.018), 3, Verdict.INCONCLUSIVE),  # above its bound, and within its interval
        ((0.012, 0.014, 0.016), 3, Verdict.INCONCLUSIVE),  # below it
        ((0.012, 0.014, 0.016), 9, Verdict.FAIL),
        ((0.030, 0.032, 0.034), 3, Verdict.FAIL),
    ],
)
def test_an_efficiency_too_close_to_its_bound_is_inconclusive_on_both_sides(
    later_s: tuple[float, ...], rounds: int, verdict: Verdict
) -> None:
    """later_s: of the steps of several nodes, by round. The bound of 0.95 is at 0.0109 s."""
    plan = made.plan(4, rounds=rounds)
    job = made.exposed_later(made.timings(plan), lambda round_, step: later_s[round_ % 3])
    found = made.judged(job)
    assert made.last(found).verdict is verdict
    row = found.counts[-1].row
    assert row.reaches(0.95) is {"pass": True, "fail": False}.get(verdict)
    assert made.last(found).value == row.efficiency
    if verdict is Verdict.INCONCLUSIVE:
        assert "undecided: the bound is within its interval" in made.last(found).doubt


@pytest.mark.parametrize(
    ("alone", "changes", "verdict"),
    [
        (0.3, {}, Verdict.INCONCLUSIVE),
        (0.205, {}, Verdict.PASS),
        (0.3, {"parallel": "fsdp2"}, Verdict.PASS),  # a rank of more has less to update
        (0.3, {"kind": "strong"}, Verdict.PASS),  # smaller batches may fit into caches
    ],
)
def test_one_node_that_is_slow_alone_hides_what_many_lose(
    alone: float, changes: dict[str, Any], verdict: Verdict
) -> None:
    plan = made.plan(4, **changes)

    def own(node: str, count: int) -> dict[str, float]:
        share = 1 / count if "kind" in changes else 1.0
        return made.HEALTHY | {"compute": (alone if count == 1 else 0.2) * share}

    found = made.last(made.judged(made.timings(plan, own), **changes))
    assert found.verdict is verdict, found
    assert ("one node alone is slow" in found.note) == (verdict is Verdict.INCONCLUSIVE)


def test_a_busy_machine_is_inconclusive_unless_a_rank_is_to_blame() -> None:
    plan = made.plan(4)

    def starved(job: JobTimings) -> JobTimings:
        seconds = [replace(t, cpu_wait_s=tuple(1.0 for _ in t.ranks)) for t in job.trained]
        return replace(job, trained=tuple(seconds))

    diffuse = starved(made.timings(plan, needed_s=made.exposed_by(0.03)))
    assert made.last(made.judged(diffuse)).verdict is Verdict.INCONCLUSIVE
    assert "nodes share this machine's processors" in made.last(made.judged(diffuse)).note
    slow = starved(made.timings(plan, made.slow_on("node3", compute=0.28)))
    assert made.last(made.judged(slow)).verdict is Verdict.FAIL


def test_parts_that_do_not_add_up_to_the_step_fail() -> None:
    plan = made.plan(4)
    found = made.measured(made.judged(made.timings(plan, missed_s=0.01)))
    one = found["step time that differs from its parts, 4 nodes"]
    assert one.verdict is Verdict.FAIL
    assert str(one.culprit).startswith("rank ")


def test_the_table_shows_emulated_time_and_waiting_ranks() -> None:
    plan = made.plan(4)
    found = made.judged(made.timings(plan, made.slow_on("node3", compute=0.28)))
    how, _, _, *rows = table(found).splitlines()
    assert "emulated compute 200 ms per step" in how
    assert {row.split()[1]: row.split()[-1] for row in rows} == {
        **{f"node{number}": "0%" for number in range(3)},
        "node3": "100%",
    }


def test_slow_links_are_named_where_the_fabric_is_slow() -> None:
    plan, links = made.plan(4), Culprit("node2 fab0 (50 Mbit/s)", "node2")
    located = made.judged(made.timings(plan, line=0.4, needed_s=made.exposed_by(0.1)))
    assert located.falls_short_by_fabric
    located = replace(located, slow_links=links)
    assert str(links) in str(made.last(located).culprit)
    slow = made.judged(made.timings(plan, made.slow_on("node3", compute=0.28)))
    assert str(links) not in str(made.last(replace(slow, slow_links=links)).culprit)


@pytest.mark.parametrize(
    ("part", "every"),
    [("input", 5), ("compute", 4), ("optimiser", 3), ("rest", 4), ("exposed", 3), ("exposed", 4)],
)
def test_stalls_in_some_steps_fail_with_the_stalled_part(part: str, every: int) -> None:
    plan = made.plan(4)
    job = made.stalled(made.timings(plan), 0.4, lambda number: number % every == 0, part)
    found = made.judged(job)
    one = made.last(found)
    assert one.verdict is Verdict.FAIL
    value = 0.207 / (0.207 + 0.04 * -(-10 // every))
    assert one.value == pytest.approx(value)
    assert f"median 207.0 ms, mean {207 / value:.1f} ms" in one.note
    assert "judged by the mean of each turn's steps, because the median hides slow ones" in one.note
    kinds = {"exposed": "contention"}
    assert found.counts[-1].causes[0].kind == kinds.get(part, part)
    assert made.not_attributed(found.counts[-1]) < 0.02
    assert made.measured(found)["throughput, 4 nodes"].value == pytest.approx(
        found.counts[0].row.samples_s * 4 * value
    )


def test_stalls_of_one_node_name_the_node() -> None:
    plan = made.plan(4, 2)
    job = made.timings(plan)
    number = iter(range(10**6))

    def by(rank: int, count: int) -> float:
        step = next(number) // (2 * count) % 10
        return 0.4 if count > 1 and rank // 2 == 2 and step % 4 == 0 else 0.0

    found = made.judged(made.later(job, by, "input")).counts[-1]
    assert found.causes[0].kind == "input"
    assert found.causes[0].culprit == "node2"
    assert found.holds is False
