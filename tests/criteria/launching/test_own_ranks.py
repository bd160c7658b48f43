"""The run's ranks and those of a user's job: what differs is named, with node and both values."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.launching.own_ranks import judged_settings, settings_of_rank
from pytest_mnode.criteria.launching.reports import read_output
from pytest_mnode.measurement import Measurement, Verdict
from tests.criteria.launching.made import NODES, expected, right, started

PROGRAM = Path(__file__).parents[3] / "fixtures" / "jobs" / "contract.py"
ALIKE = {"NCCL_ALGO": "Ring", "ulimit memlock": "unlimited", "cgroup memory.max": "max"}
NAME = "settings unlike"


def judged(
    ours: dict[str, dict[str, str]],
    theirs: dict[str, dict[str, str]],
    *,
    given: tuple[str, ...] = (),
    promised: bool = True,
) -> Measurement:
    reports = [replace(one, settings=theirs.get(one.node, {})) for one in right(expected())]
    values = dict.fromkeys(given, "")
    return judged_settings(started(reports), ours, values, NAME, judged=promised)


def all_nodes(**changes: dict[str, str]) -> dict[str, dict[str, str]]:
    return {node: ALIKE | changes.get(node, {}) for node in NODES}


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (
            {},
            {"ulimit memlock": "65536"},
            "ulimit memlock: unlimited in the run, 65536 in a job",
        ),
        ({}, {"NCCL_ALGO": "Tree"}, "NCCL_ALGO: Ring in the run, Tree in a job"),
        ({"LD_PRELOAD": "a.so"}, {}, "LD_PRELOAD: a.so in the run, not set in a job"),
        ({}, {"UCX_TLS": ""}, "UCX_TLS: not set in the run, empty in a job"),
        ({}, {"cgroup memory.max": "max, 9"}, "cgroup memory.max: max in the run, max, 9 in a job"),
    ],
)
def test_what_differs_is_named(ours: dict[str, str], theirs: dict[str, str], text: str) -> None:
    found = judged(all_nodes(node2=ours), all_nodes(node2=theirs))
    assert (found.value, found.verdict) == (1, Verdict.FAIL)
    assert found.culprit == f"node2: {text}"
    assert found.culprit.nodes == {"node2"}
    recorded = judged(all_nodes(node2=ours), all_nodes(node2=theirs), promised=False)
    assert (recorded.value, recorded.verdict, recorded.note) == (1, None, f"node2: {text}")


def test_what_each_side_is_meant_to_have_is_no_difference() -> None:
    """Pins, what torchrun adds, what the run gives its ranks, and what the user set for it."""
    ours = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "fab0", "NCCL_DEBUG": "INFO"}
    ours |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_HOSTID": "node0"}
    theirs = {"TORCH_NCCL_BLOCKING_WAIT": "0", "CUDA_VISIBLE_DEVICES": "3"}
    found = judged(all_nodes(node0=ours), all_nodes(node0=theirs), given=("NCCL_DEBUG",))
    assert found.passed
    assert not judged(all_nodes(node0=ours), all_nodes(node0=theirs)).passed


def test_nodes_of_which_a_side_is_unknown_are_inconclusive() -> None:
    known = all_nodes()
    some = {node: known[node] for node in NODES[:2]}
    for found in (judged(known, some), judged(some, known)):
        assert found.verdict is Verdict.INCONCLUSIVE
        assert found.note == "settings of node2, node3 are not known"
    differs = judged(known, some | {"node0": {**ALIKE, "NCCL_ALGO": "Tree"}})
    assert (differs.verdict, differs.value) == (Verdict.FAIL, 1)
    assert differs.culprit is not None
    assert frozenset().union(*differs.culprit.either) == {"node2", "node3"}


def test_real_processes_report_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's program started by a shell that has changed its limits and variables."""
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    monkeypatch.setenv("SITE_TOKEN", "x")
    ours = settings_of_rank(str(PROGRAM))
    changes = "ulimit -S -n 333; export NCCL_IB_HCA=mlx5_3 UCX_TLS=tcp"
    command = f'{changes}; exec "$0" "$1" --meet=none'
    argv = ["sh", "-c", command, sys.executable, str(PROGRAM)]
    done = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60)
    [report], _ = read_output(done.stdout)
    assert "settings" not in report.missing
    node, reports = NODES[0], right(expected())
    jobs = [replace(one, settings=report.settings) for one in reports if one.node == node]
    run = replace(started(jobs), expected=expected(nodes=(node,)))
    found = judged_settings(run, {node: ours}, {}, NAME)
    assert found.value == 3
    assert found.note.split("; ") == [
        f"{node}: NCCL_IB_HCA: mlx5_0 in the run, mlx5_3 in a job",
        f"{node}: UCX_TLS: not set in the run, tcp in a job",
        f"{node}: ulimit nofile: {ours['ulimit nofile']} in the run, 333 in a job",
    ]
    assert "SITE_TOKEN" not in json.dumps(ours)


def test_a_program_of_the_cluster_that_reports_no_settings_is_known() -> None:
    [report], _ = read_output('{"mnode_rank": 1, "node": "node0", "contract": {}}')
    assert (report.settings, "settings" in report.missing) == ({}, True)
