"""What is made of findings about placement, and which NICs count."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.criteria.placement.facts import Finding, Question, RankFacts, read_machine
from pytest_mnode.criteria.placement.nics import judge_nics
from pytest_mnode.launchers.rack import Layout
from pytest_mnode.launchers.rack.sockets import board
from pytest_mnode.launchers.rack.sysfs_tree import accelerator_addresses
from pytest_mnode.measure import Measure
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring.carriers import carriers
from pytest_mnode.measuring.nearest import fabric_nics, near_somebody
from pytest_mnode.measuring.numa import Placed
from pytest_mnode.spec import default_spec_path, load_spec
from tests.launchers.test_sockets import machine, write

MIB = 1 << 20


@pytest.mark.parametrize(
    ("carried", "found"),
    [
        ({"fab0": 2 * MIB, "mgmt0": 4096, "lo": 2 * MIB}, (("fab0",), "")),
        ({"rail0": MIB, "rail1": MIB, "eth0": 100}, (("rail0", "rail1"), "")),
        ({"mlx5_0:1": 2 * MIB, "eth0": 2 * MIB}, (("mlx5_0:1",), "")),
        ({"lo": 4 * MIB, "eth0": 10}, (None, "only lo carried it")),
        ({"eth0": 10}, (None, "no counter shows what it sent")),
        ({}, (None, "no counter shows what it sent")),
    ],
)
def test_who_carried_it(carried: dict[str, int], found: tuple[tuple[str, ...] | None, str]) -> None:
    assert carriers(carried) == found


def test_one_nic_for_two_sockets_is_near_to_somebody_or_to_nobody(tmp_path: Path) -> None:
    """On the socket of one of two ranks it passes; where neither rank is, it fails."""
    shown = board(machine(4), Layout(accelerators=(0, 0, 1)), 0, 1)
    write(tmp_path, shown)
    near, also_near, far = accelerator_addresses(shown)
    node = read_machine(tmp_path)
    fabric = fabric_nics(node, ("fab0",), load_spec(default_spec_path()))
    assert fabric == ("fab0",)  # mgmt0 is nearer to some, and not for them

    def found(accelerator: str, beside: list[str | None]) -> Verdict:
        rank = RankFacts(
            rank=0, node="node0", local_rank=0, accelerator=accelerator, nics=("fab0",)
        )
        passed = judge_nics(node, rank, fabric)
        assert passed.verdict is Verdict.PASS
        return near_somebody(node, passed, ("fab0",), beside).verdict

    assert found(near, [near]) is Verdict.PASS
    assert found(also_near, [also_near]) is Verdict.PASS
    assert found(far, [far, near]) is Verdict.PASS
    assert found(far, [far]) is Verdict.FAIL
    assert found(far, [far, None]) is Verdict.PASS  # not known of all, so nobody is blamed


def finding(rank: int, verdict: Verdict, value: float | None, question: Question) -> Finding:
    return Finding(
        question=question,
        rank=rank,
        node="node0",
        verdict=verdict,
        value=value,
        limit=0.9 if question is Question.MEMORY else 0.0,
        unit="of its memory" if question is Question.MEMORY else "CPUs out of place",
        found="CPUs 1",
        expected="CPUs 0",
        why=f"rank {rank} why",
        culprit=f"rank {rank} on node0: CPU binding",
    )


def recorded(question: Question, *given: tuple[Verdict, float | None]) -> Measurement:
    findings = tuple(finding(rank, *one, question) for rank, one in enumerate(given))
    kept: list[Measurement] = []
    placed = Placed(question, findings, ("bound",) * len(findings))
    assert len(placed.table().splitlines()) == len(findings) + 1
    placed.record(Measure(kept, ""))
    [one] = kept
    return one


PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def test_a_rank_out_of_place_fails_and_one_not_known_leaves_it_open() -> None:
    cpus = Question.CPUS
    assert recorded(cpus, (PASS, 0), (PASS, 0)).verdict is PASS
    one = recorded(cpus, (PASS, 0), (FAIL, 2), (OPEN, None))
    assert (one.verdict, one.value) == (FAIL, 1)
    assert one.culprit == "rank 1 on node0: CPU binding (CPUs 1; expected CPUs 0)"
    assert recorded(cpus, (PASS, 0), (OPEN, None)).verdict is OPEN
    many = recorded(cpus, *[(FAIL, 1.0)] * 7)
    assert (many.culprit or "").endswith("; and 3 more ranks")


def test_memory_is_judged_by_the_rank_with_least() -> None:
    memory = Question.MEMORY
    assert recorded(memory, (PASS, 0.99), (PASS, 0.93)).value == 0.93
    low = recorded(memory, (PASS, 0.99), (FAIL, 0.4))
    assert (low.verdict, low.value) == (FAIL, 0.4)
    assert recorded(memory, (PASS, 0.99), (OPEN, None)).verdict is OPEN
