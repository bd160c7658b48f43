"""The nodes that a restarted job gets, and whether MASTER_ADDR is on its first node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.launching.contract import wrong_variables
from pytest_mnode.criteria.launching.starting import Started, elsewhere, job_of, judged_place
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Accelerators, profile_spec
from pytest_mnode.spec.launch import StartPromise
from tests.criteria.launching.made import NODES, but, everywhere, expected, red, right, started

JOBS = Path(__file__).parents[3] / "fixtures" / "jobs"
START = StartPromise.model_validate({"within": "20 s"})


@pytest.mark.parametrize(
    ("nodes", "count", "others"),
    [
        ("ab", None, "ba"),
        ("abc", None, "cb"),
        ("abcd", None, "dc"),
        ("abcdefgh", None, "hgfe"),
        ("abcd", 3, "dcb"),
        ("abcd", 4, "dcba"),
        ("abcd", 1, "d"),
    ],
)
def test_a_moved_job_starts_elsewhere(nodes: str, count: int | None, others: str) -> None:
    """A job of fewer nodes goes to the last nodes."""
    assert elsewhere(tuple(nodes), count) == tuple(others)


ADDRESSES = {node: f"10.77.1.{index + 1}" for index, node in enumerate(NODES)}
PLACE = "requested nodes that it ran on"
MASTER = "ranks whose MASTER_ADDR is the first node's"


def placed(one: Started, addresses: Mapping[str, str] = ADDRESSES) -> dict[str, Measurement]:
    kept = judged_place(one, NODES, addresses)
    return {m.name.removeprefix("torchrun: "): m for m in kept}


def test_a_node_that_was_not_requested_is_named() -> None:
    reports = right(expected())
    assert red(placed(started(reports))) == {}
    stray = but(but(reports, 6, node="node9"), 7, node="node9")
    assert red(placed(started(stray))) == {PLACE: "node9"}


@pytest.mark.parametrize(
    ("address", "here", "where"),
    [
        ("node0", True, None),  # the node's name in the run
        ("n0.cluster", None, None),  # the name that the node has for itself
        ("ib0.node0", True, None),  # any name that resolves to the node itself
        ("10.1.0.1", True, None),  # the address of another interface
        ("ib0.node0", False, "no node"),
        ("node3", True, "node3"),
        ("10.77.1.4", True, "node3"),
        ("n3.cluster", True, "node3"),
        ("localhost", True, "no node"),
        ("127.0.1.1", True, "no node"),
        ("::1", True, "no node"),
    ],
)
def test_master_addr_may_be_any_address_of_the_first_node(
    address: str, here: bool | None, where: str | None
) -> None:
    reports = everywhere(right(expected()), MASTER_ADDR=address)
    reports = [replace(r, master_is_here=here if r.node == "node0" else False) for r in reports]
    one = started(reports, hosts={"node0": "n0.cluster", "node3": "n3.cluster"})
    named = {MASTER: f"MASTER_ADDR={address} ({where})"} if where else {}
    assert red(placed(one)) == named


def test_nodes_on_one_machine_share_one_address() -> None:
    reports = everywhere(right(expected()), MASTER_ADDR="127.0.0.1")
    reports = [replace(report, master_is_here=True) for report in reports]
    one = started(reports, hosts=dict.fromkeys(NODES, "here"))
    found = placed(one, dict.fromkeys(NODES, "127.0.0.1"))
    assert {m.verdict for m in found.values()} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("style", "accelerators", "words"),
    [
        ("torchrun", 0, "--meet=torch --meet=gloo"),
        ("torchrun", 1, "--meet=torch --meet=torch"),
        ("megatron", 0, "--tensor-model-parallel-size=2 --pipeline-model-parallel-size=1"),
        (
            *("megatron", 1),
            "--tensor-model-parallel-size=1 --pipeline-model-parallel-size=1 --meet=torch",
        ),
        ("deepspeed", 0, ""),
        ("deepspeed", 3, "--meet=torch"),
    ],
)
def test_our_jobs_fit_any_number_of_accelerators(style: str, accelerators: int, words: str) -> None:
    each = Accelerators.model_validate({"per_node": accelerators})
    spec = profile_spec("rack").model_copy(update={"accelerators": each})
    job = job_of(style, START, JOBS, spec, 4)
    assert [word for word in job.command if word.startswith("--")] == words.split()
    wanted = expected(style, job.rank_count)
    assert not wrong_variables(wanted, [replace(r, arguments=job.command) for r in right(wanted)])


def test_a_job_of_three_of_four_nodes_can_move(tmp_path: Path) -> None:
    spec = profile_spec("rack")
    path = tmp_path / "job.yaml"
    page = "name: a\nnodes: 3\naccelerators_per_node: 0\ncommand: [python, x.py]\n"
    for nodes, count in (("3", 3), ("all", 2)):
        path.write_text(page.replace("nodes: 3", f"nodes: {nodes}"))
        promise = StartPromise.model_validate({"job": str(path)})
        assert job_of("torchrun", promise, JOBS, spec, 4, every=2).node_count == count
