"""The nodes that a restarted job gets, and whether MASTER_ADDR is on its first node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.launching.judge_start import elsewhere, judged_place
from pytest_mnode.criteria.launching.starting import job_of
from pytest_mnode.criteria.launching.variables import wrong_variables
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import Accelerators, default_spec_path, load_spec
from pytest_mnode.spec.launch import StartPromise
from tests.criteria.launching.made import NODES, but, changed, expected, red, right, started

JOBS = Path(__file__).parents[3] / "fixtures" / "jobs"
START = StartPromise.model_validate({"within": "20 s"})


@pytest.mark.parametrize(
    ("nodes", "others"),
    [
        (("a", "b"), ("b", "a")),
        (("a", "b", "c"), ("c", "b")),
        (("a", "b", "c", "d"), ("d", "c")),
        (tuple("abcdefgh"), ("h", "g", "f", "e")),
    ],
)
def test_a_moved_job_starts_elsewhere(nodes: tuple[str, ...], others: tuple[str, ...]) -> None:
    assert elsewhere(nodes) == others


def test_a_job_of_fewer_nodes_goes_to_the_last_nodes() -> None:
    assert elsewhere(("a", "b", "c", "d"), 3) == ("d", "c", "b")
    assert elsewhere(("a", "b", "c", "d"), 4) == ("d", "c", "b", "a")
    assert elsewhere(("a", "b", "c", "d"), 1) == ("d",)


ADDRESSES = {node: f"10.77.1.{index + 1}" for index, node in enumerate(NODES)}
PLACE = "requested nodes that it ran on"
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
    kept = judged_place(started(reports), NODES, ADDRESSES)
    assert red({m.name.removeprefix("torchrun: "): m for m in kept}) == found


@pytest.mark.parametrize(
    ("address", "here", "culprit"),
    [
        ("node0", True, None),  # the node's name in the run
        ("n0.cluster", None, None),  # the name that the node has for itself
        ("ib0.node0", True, None),  # any name that resolves to the node itself
        ("10.1.0.1", True, None),  # the address of another interface
        ("ib0.node0", False, "MASTER_ADDR=ib0.node0 (no node)"),
        ("node3", True, "MASTER_ADDR=node3 (node3)"),
        ("10.77.1.4", True, "MASTER_ADDR=10.77.1.4 (node3)"),
        ("n3.cluster", True, "MASTER_ADDR=n3.cluster (node3)"),
        ("localhost", True, "MASTER_ADDR=localhost (no node)"),
        ("127.0.1.1", True, "MASTER_ADDR=127.0.1.1 (no node)"),
        ("::1", True, "MASTER_ADDR=::1 (no node)"),
    ],
)
def test_master_addr_may_be_any_address_of_the_first_node(
    address: str, here: bool | None, culprit: str | None
) -> None:
    reports = right(expected())
    for rank in range(len(reports)):
        reports = changed(reports, rank, MASTER_ADDR=address)
    reports = [replace(r, master_is_here=here if r.node == "node0" else False) for r in reports]
    one = started(reports, hosts={"node0": "n0.cluster", "node3": "n3.cluster"})
    kept = judged_place(one, NODES, ADDRESSES)
    assert red({m.name.removeprefix("torchrun: "): m for m in kept}) == (
        {MASTER: culprit} if culprit else {}
    )


def test_nodes_on_one_machine_share_one_address() -> None:
    reports = right(expected())
    for rank in range(len(reports)):
        reports = but(changed(reports, rank, MASTER_ADDR="127.0.0.1"), rank, master_is_here=True)
    one = started(reports, hosts=dict.fromkeys(NODES, "here"))
    kept = judged_place(one, NODES, dict.fromkeys(NODES, "127.0.0.1"))
    assert {m.verdict for m in kept} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("style", "accelerators", "words"),
    [
        ("torchrun", 0, ["--meet=torch", "--meet=gloo"]),
        ("torchrun", 1, ["--meet=torch", "--meet=torch"]),
        (
            "megatron",
            0,
            ["--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=1"],
        ),
        (
            "megatron",
            1,
            [
                *("--tensor-model-parallel-size=1", "--pipeline-model-parallel-size=1"),
                "--meet=torch",
            ],
        ),
        ("deepspeed", 0, []),
        ("deepspeed", 3, ["--meet=torch"]),
    ],
)
def test_our_jobs_fit_any_number_of_accelerators(
    style: str, accelerators: int, words: list[str]
) -> None:
    eight = Accelerators.model_validate({"per_node": accelerators})
    spec = load_spec(default_spec_path()).model_copy(update={"accelerators": eight})
    job = job_of(style, START, JOBS, spec, 4)
    assert [word for word in job.command if word.startswith("--")] == words
    assert not wrong_variables(
        expected(style, job.rank_count),
        [replace(r, arguments=job.command) for r in right(expected(style, job.rank_count))],
    )


def test_a_job_of_three_of_four_nodes_can_move(tmp_path: Path) -> None:
    spec = load_spec(default_spec_path())
    path = tmp_path / "job.yaml"
    page = "name: a\nnodes: 3\naccelerators_per_node: 0\ncommand: [python, x.py]\n"
    for nodes, count in (("3", 3), ("all", 2)):
        path.write_text(page.replace("nodes: 3", f"nodes: {nodes}"))
        promise = StartPromise.model_validate({"job": str(path)})
        assert job_of("torchrun", promise, JOBS, spec, 4, every=2).node_count == count
