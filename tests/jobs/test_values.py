"""The Job value, decisions about requeues, and torchrun's command line and output."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.jobs.job import WAIT, Decision, Job, JobEvent, JobResult, JobSnapshot, decide
from pytest_mnode.jobs.torchrun import Start, exit_codes, was_preempted
from pytest_mnode.launchers.nodes import FREE_PORT

ALL = ("node0", "node1", "node2", "node3")
REPORT = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_12:34:45
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 11)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_12:34:45
  rank      : 2 (local_rank: 0)
  exitcode  : 75 (pid: 10)
  error_file: <N/A>
"""


def _snapshot(**given: Any) -> JobSnapshot:
    known: dict[str, Any] = {
        "nodes": ALL[:3],
        "first_size": 3,
        "ended": {},
        "there": ALL,
        "lost": (),
        "requeue": 0,
    }
    return JobSnapshot(**(known | given))


def _gone(*names: str) -> dict[str, Any]:
    there = tuple(name for name in ALL if name not in names)
    lost = tuple(name for name in ALL[:3] if name in names)
    return {"lost": lost, "there": there, "ended": dict.fromkeys(lost, 137)}


THREE = ALL[:3]
FAILED, WELL = dict.fromkeys(THREE, 1), dict.fromkeys(THREE, 0)
OVER = Decision(final=True)
SPARE = {"requeues": 1, "spares": ["node3"]}
SHRINKS = {**SPARE, "fewest_nodes": 2}


def again(why: str, *nodes: str) -> Decision:
    """Started again on these nodes; on none, it waits."""
    return Decision(nodes=nodes, why=why)


@pytest.mark.parametrize(
    ("given", "seen", "decision"),
    [
        ({}, {}, WAIT),
        ({}, {"ended": {"node0": 0}}, WAIT),
        ({}, {"ended": WELL}, OVER),
        ({"requeues": 3}, {"ended": FAILED}, OVER),
        ({"requeues": 3}, {"ended": WELL, "preempted": True}, OVER),
        ({"requeues": 1}, {"ended": FAILED, "preempted": True}, again("preempted", *THREE)),
        (
            {"requeues": 1},
            {"ended": {**FAILED, "node0": 0}, "preempted": True},
            again("preempted", *THREE),
        ),
        (
            {"requeues": 1},
            {"ended": FAILED, "preempted": True, "requeue": 1},
            Decision(final=True, why="preempted"),
        ),
        ({"requeues": 1}, _gone("node1"), again("node1 is gone")),
        (SPARE, _gone("node1"), again("node1 is gone", "node0", "node3", "node2")),
        (
            {"requeues": 1, "spares": ["node3", "node4"]},
            {**_gone("node1"), "there": ("node0", "node2", "node3", "node4")},
            again("node1 is gone", "node0", "node3", "node2"),
        ),
        (
            {**SPARE, "requeues": 2},  # the spare took the place of a node before
            {**_gone("node0"), "nodes": ("node0", "node3", "node2"), "requeue": 1},
            again("node0 is gone"),
        ),
        (SHRINKS, _gone("node1", "node3"), again("node1 is gone", "node0", "node2")),
        (SHRINKS, _gone("node0", "node1", "node3"), again("node0, node1 is gone")),
        (SPARE, {**_gone("node1"), "there": ALL}, again("node1 is gone", *THREE)),
        ({}, _gone("node1"), WAIT),
        ({}, {**_gone("node1"), "ended": FAILED}, Decision(final=True, why="node1 is gone")),
    ],
)
def test_decision_about_a_job(
    given: dict[str, Any], seen: dict[str, Any], decision: Decision
) -> None:
    assert decide(Job(["x"], **given), _snapshot(**seen)) == decision


@pytest.mark.parametrize(("codes", "ok"), [((0, 0), True), ((0, 1), False), ((137, 137), False)])
def test_a_job_is_well_if_each_torchrun_is(codes: tuple[int, int], ok: bool) -> None:
    assert JobResult(dict(zip(ALL, codes, strict=False)), {}).ok is ok


def test_nodes_of_the_first_start() -> None:
    assert Job(["x"]).placed_on(ALL) == ALL
    assert Job(["x"], spares=["node1"]).placed_on(ALL) == ("node0", "node2", "node3")
    assert Job(["x"], nodes=2, spares=["node0"]).placed_on(ALL) == ("node1", "node2")
    assert Job(["x"], nodes=["node3", "node0"]).placed_on(ALL) == ("node3", "node0")
    assert Job(["x"], nodes="node3", spares="node0").placed_on(ALL) == ("node3",)
    for nodes in (0, 5):
        with pytest.raises(UsageError, match=f"nodes={nodes}: this test has 4 nodes"):
            Job(["x"], nodes=nodes).placed_on(ALL)


def test_torchrun_of_a_job_that_restarts_and_of_one_that_does_not() -> None:
    start = Start("abc", ("node2", "node0"), 1, "10.78.0.3", 4711)
    argv = start.argv(Job(["x.py", "-v"]), "node0", "10.78.0.1", "/logs")
    assert argv[argv.index("-m") + 1 :] == [
        *("torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", "1"),
        *("--master-addr", "10.78.0.3", "--master-port", "4711", "--log-dir", "/logs"),
        *("x.py", "-v"),
    ]
    argv = start.argv(Job(["x.py"], restarts=3), "node0", "10.78.0.1", "/logs")
    assert argv[argv.index("--rdzv-backend") : -3] == [
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "10.78.0.3:4711", "--rdzv-id", "abc.1"),
        *("--max-restarts", "3", "--rdzv-conf", "is_host=0", "--local-addr", "10.78.0.1"),
    ]
    assert "is_host=1" in start.argv(Job(["x.py"], restarts=3), "node2", "10.78.0.3", "/logs")


def test_environment_of_a_start() -> None:
    start = Start("abc", ("node0",), 2, "10.78.0.1", 4711)
    env = start.env(Job(["x"], env={"A": "1", "MNODE_JOB": "no"}), "node0", "fab0", {"A": "1"})
    assert env == {
        **{"A": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "fab0"},
        **{"NCCL_SOCKET_IFNAME": "=fab0", "MNODE_JOB": "abc", "MNODE_JOB_NODE": "node0"},
        "MNODE_REQUEUE": "2",
    }
    env = start.env(Job(["x"], restarts=1), "node0", "fab0", {"GLOO_SOCKET_IFNAME": "mgmt0"})
    assert "GLOO_SOCKET_IFNAME" not in env
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "NCCL_SOCKET_IFNAME" not in start.env(Job(["x"]), "node0", None, {})


def test_exit_codes_of_ranks_in_torchruns_output() -> None:
    assert exit_codes(REPORT) == (-9, 75)
    assert exit_codes("exitcode: seventy") == ()
    assert was_preempted(["", REPORT])
    assert not was_preempted(["failed (exitcode: 1) local_rank: 0", "75"])


@pytest.mark.parametrize("code", [1, -11])
def test_a_failure_beside_a_preempted_rank_is_no_preemption(code: int) -> None:
    assert not was_preempted([REPORT, f"  exitcode  : {code} (pid: 12)\n"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": ["node0", "node0"]}, "nodes: node0 is named twice"),
        ({"nodes": []}, "nodes: none; give one or more"),
        ({"spares": ["node3", "node3"]}, "spares: node3 is named twice"),
        ({"procs_per_node": 0}, "procs_per_node=0: give 1 or more"),
        ({"restarts": -1}, "restarts=-1: give 0 or more"),
        ({"requeues": -1}, "requeues=-1: give 0 or more"),
        ({"fewest_nodes": 0}, "fewest_nodes=0: give 1 or more"),
        ({"nodes": ["n"], "spares": ["n"]}, "the job runs on n; give nodes that it does not use"),
        ({"argv": "train.py"}, "argv='train.py': accepted: a list of texts"),
        ({"argv": []}, r"argv=\[\]: accepted: a list of texts"),
        ({"argv": ["t.py", 1]}, "argv=1: accepted: a list of texts"),
        ({"torchrun": "--tee=3"}, "torchrun='--tee=3': accepted: a list of texts"),
        ({"env": {"A": 1}}, "env A=1: accepted: a name without =, and a text"),
    ],
)
def test_a_job_that_could_never_run_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Job(**{"argv": ["train.py"], **given})


def test_torchrun_gets_no_rank_variables_of_the_run() -> None:
    argv = Start("j", ALL, 0, "10.0.0.1", 29500).argv(Job(["t.py"]), "node1", "10.0.0.2", "logs")
    program = (
        "import os; print([n for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE') if n in os.environ])"
    )
    words = [*argv[: argv.index("-m")], "-c", program]
    env = {**os.environ, "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert subprocess.check_output(words, env=env, text=True) == "[]\n"


def test_an_event_in_a_line() -> None:
    event = JobEvent(12.5, "signalled", 0, "node1", (7, 8), "SIGKILL")
    assert str(event) == "12.500 signalled on node1, pids 7 8: SIGKILL"
    assert str(JobEvent(1, "requeued", 1, detail="preempted")) == "1.000 requeued: preempted"


def test_a_free_port_is_below_those_of_connections() -> None:
    """A connection that somebody opens meanwhile takes none of these."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(3):
        argv = [sys.executable, "-I", "-S", "-c", FREE_PORT]
        port = int(subprocess.check_output(argv, text=True))
        assert 10000 <= port < lowest or lowest <= 12000
        socket.create_server(("127.0.0.1", port)).close()
