"""Causes in the output of failed ranks and jobs: named with the culprit, never invented."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
import yaml

from pytest_mnode.logs.causes import Cause, causes, is_peer_lost
from pytest_mnode.logs.causes.table import candidates, known_causes, rules

TABLE = known_causes()

COMPOSED = yaml.safe_load(
    (Path(__file__).parents[2] / "fixtures" / "logs" / "causes.yaml").read_text()
)
FAILING = [
    (text, cause, culprit)
    for cause, culprits in COMPOSED["failing"].items()
    for culprit, texts in culprits.items()
    for text in texts
]
HEALTHY = COMPOSED["healthy"]


def test_the_cause_of_each_failing_text() -> None:
    wrong = []
    for text, name, culprit in FAILING:
        found = [(one.name, one.culprit, one.line.strip() in text) for one in causes(text)[:1]]
        if found != [(name, culprit, True)]:
            wrong.append((text, name, culprit, found))
    assert wrong == []


def test_every_cause_of_the_table_has_a_test() -> None:
    assert {kind.name for kind in TABLE} == {name for _, name, _ in FAILING}
    assert len(FAILING) >= 600
    assert len(HEALTHY) >= 300


def test_a_healthy_text_has_no_cause() -> None:
    assert {text: found for text in HEALTHY if (found := causes(text))} == {}


ROOTS = [one for one in FAILING if next(kind.root for kind in TABLE if kind.name == one[1])]
LOST = [one for one in FAILING if one not in ROOTS]

PREFIXES = [
    *("", "11: ", "[1,11]<stderr>:", "[prterun-elm3-91@1,11]<stderr>: "),
    *("[prterun-elm3-91@1,11][elm4:77]<stderr>: ", "[1,mpirank:11,algo-2]<stderr>:"),
    *("Sat Nov 21 08:11:12 2026<stderr>: ", "[trainer3]:", "2026-11-21T08:11:12.123456Z "),
    *("2026-11-21T08:11:12.123456789Z stderr F ", "[2026-11-21 08:11:12] ", "[default3]:"),
    *("[rank11]: ", "(RayWorkerWrapper pid=7712, ip=10.9.0.7) ", "[pod/nccl-worker-3/main] "),
    *("worker-3  | ", "\x1b[36m"),
]
OVER = (
    *("Step created", "now responding", " OK", "came back", "Started container", "is ready"),
    *("Admitted by", "NET/IB : Using", "NET/Socket : Using", "Using network", "SOCKET_IFNAME"),
    "Bootstrap : Using",
)
NOISE = ["epoch 3:  12%|#  | 3/25 [00:01, loss=0.7, timeout=600]", "", "    x = f(y)"]
NOISE += [text for text in HEALTHY if not any(what in text for what in OVER)]
"""Without what tells that a cause is over, or which ports carry data."""


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_and_noise_hide_no_cause(prefix: str) -> None:
    """Each prefix with a quarter of the texts: each text with several, and both ends of lines."""
    number = PREFIXES.index(prefix)
    noise, end = random.Random(prefix), ("\n", "\r\n")[number // 4 % 2]
    for text, name, _ in FAILING[number % 4 :: 4]:
        lines = []
        for line in text.split("\n"):
            lines += [
                noise.choice(NOISE),
                f"{prefix}{line}",
                *([prefix + line] * noise.randint(0, 1)),
            ]
        found = causes(end.join(lines) + end)
        assert found[0].name == name, text
        assert len({(one.name, one.detail) for one in found}) <= 3


@pytest.mark.parametrize(("lost", "name", "_"), LOST)
def test_no_consequence_wins_over_a_root_cause(lost: str, name: str, _: str) -> None:
    # Slurm and SGLang then kill what still runs.
    roots = [one for one in ROOTS if "Killed" not in one[0]]
    for root, cause, _ in random.Random(lost).sample(roots, 12):
        found = causes(f"{lost}\n{root}")
        assert (found[0].name, found[0].root) == (cause, True), root
        assert name in [one.name for one in found]
    assert is_peer_lost(lost) is (name not in ("aborted", "ended by the launcher"))


def _literals(parsed: Any) -> list[str]:
    """Literals that every match of each alternative contains, joined by "."."""
    found = [""]
    for op, arg in parsed:
        ways = ["."]
        if op is _constants.LITERAL:
            ways = [chr(arg)]
        elif op is _constants.SUBPATTERN:
            ways = _literals(arg[3])
        elif op is _constants.BRANCH:
            ways = [way for branch in arg[1] for way in _literals(branch)]
        elif op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and arg[0]:
            ways = [f"{way}." for way in _literals(arg[2])]
        elif op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and arg[1] == 1:
            ways = ["", *_literals(arg[2])]
        elif op in (_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT):
            continue
        elif op is _constants.IN and len(arg) < 4 and all(k is _constants.LITERAL for k, _ in arg):
            ways = [chr(code) for _, code in arg]
        found = [before + way for before in found for way in ways]
    return found


def test_the_words_of_a_pattern_are_in_every_line_that_it_matches() -> None:
    for rule in rules():
        texts = _literals(_parser.parse(rule.pattern.pattern))
        assert texts
        for text in texts:
            assert rule in candidates(text), f"{rule.words} are not in {text!r}"
            assert rule in candidates(text.upper())


def test_nearly_all_patterns_have_words_that_ordinary_lines_lack() -> None:
    """Otherwise every line is searched for them, which takes most of the time."""
    weak = []
    for rule in rules():
        if max((min(map(len, words)) for words in rule.words), default=0) < 3:
            weak.append(rule.pattern.pattern)
    assert weak == []


def test_the_rank_in_torchruns_summary_differs_from_later_lines() -> None:
    summary = "  host      : elm4\n  rank      : 6 (local_rank: 2)\n  exitcode  : -9 (pid: 1)\n"
    killed, hidden = causes(f"[0]:\n{summary}=====\nOSError: [Errno 28] No space left on device\n")[
        ::-1
    ]
    assert (killed.name, killed.culprit) == ("killed", "rank 6 on elm4")
    assert (hidden.name, hidden.culprit) == ("disk full", "")


def test_torchruns_first_failure_has_its_rank_and_later_ones_do_not_count() -> None:
    later = (
        "Failures:\n[1]:\n  host      : elm4\n  rank      : 6 (local_rank: 2)\n"
        "  exitcode  : -9 (pid: 1)\n  traceback : Signal 9 (SIGKILL) received by PID 1\n"
    )
    first = (
        "Root Cause (first observed failure):\n[0]:\n  host      : elm5\n"
        "  rank      : 7 (local_rank: 3)\n  exitcode  : 1 (pid: 2)\n"
        '  traceback : Traceback (most recent call last):\n    File "a.py", line 1, in f\n'
        "  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    found = causes(later + first)
    assert (found[0].name, found[0].culprit) == ("GPU out of memory", "rank 7 on elm5")
    assert "killed" not in {one.name for one in found}


def test_a_name_resolved_at_a_later_try_is_no_cause() -> None:
    warned = (
        "[W socket.cpp:764] [c10d] The IPv6 network addresses of (elm0, 29500) cannot be retrieved "
        "(gai error: -2 - Name or service not known).\n"
    )
    assert causes(warned) == []
    late = (
        "[E socket.cpp:1028] [c10d] The client socket has timed out after 4000ms while trying to "
        "connect to (elm0, 29500).\n"
    )
    assert causes(warned + late)[0].name == "host name not resolved"


@pytest.mark.parametrize("works", [((40, "SEND"), (40, "RECV")), ((40, "RECV"), (80, "COALESCED"))])
def test_point_to_point_calls_are_numbered_per_rank(works: tuple[tuple[int, str], ...]) -> None:
    lines = [
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        f"OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600004 milliseconds "
        f"before timing out.\n[PG ID 2 PG GUID 7(mesh_pp) Rank {rank}] Timeout at NCCL work: "
        f"{seq}, last enqueued NCCL work: {seq}, last completed NCCL work: {seq - 1}.\n"
        for rank, (seq, op) in enumerate(works)
    ]
    assert {one.name for one in causes("".join(lines))} == {"collective timed out"}


def test_equal_causes_of_several_ranks_are_one() -> None:
    oom = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    (one,) = causes("".join(oom.format(rank) for rank in (5, 1, 2, 5)))
    assert one.culprit == "ranks 1-2,5"
    assert "rank1" not in one.line


EVENTS = """\
  Warning  FailedScheduling  9m  default-scheduler  0/4 nodes are available: 4 Insufficient cpu.
  Normal   Scheduled         8m  default-scheduler  Successfully assigned ml/train-{0} to elm{0}
  Warning  FailedMount       8m  kubelet            MountVolume.SetUp failed for volume "data"
"""
START = "  Normal   Started           7m  kubelet            Started container main\n"


def test_events_name_the_node_of_a_pod_in_any_order() -> None:
    lost = "3m Warning NodeNotReady pod/train-5 Node is not ready\n"
    [one] = causes(
        lost + "4m Normal Scheduled pod/train-5 Successfully assigned ml/train-5 to elm9"
    )
    assert (one.name, one.culprit) == ("node lost", "elm9")


def test_a_started_pod_has_no_scheduling_cause() -> None:
    assert causes(EVENTS.format(4) + START) == []
    (kept,) = causes(EVENTS.format(4))
    assert (kept.name, kept.culprit) == ("volume not mounted", "elm4")
    described = "Name:   train-{0}\nEvents:\n" + EVENTS
    (kept,) = causes(described.format(3) + described.format(4) + START)
    assert (kept.name, kept.culprit) == ("volume not mounted", "elm3")
    listed = "8m  Warning  FailedMount  pod/train-{0}  MountVolume.SetUp failed\n"
    (kept,) = causes(
        listed.format(3)
        + listed.format(4)
        + "7m  Normal  Started  pod/train-4  Started container\n"
    )
    assert "train-3" in kept.line


@pytest.mark.parametrize(
    ("waits", "goes_on"),
    [
        ("resource in cluster is overused", "Normal  Scheduled  9s  volcano  pod group is ready"),
        (
            "couldn't assign flavors to pod set main: insufficient unused quota for cpu",
            "Normal  Admitted  9s  kueue-admission  Admitted by ClusterQueue gpus, waited 0s",
        ),
    ],
)
def test_a_group_that_was_admitted_later_has_no_scheduling_cause(waits: str, goes_on: str) -> None:
    assert [one.name for one in causes(waits)] == ["not scheduled"]
    assert causes(f"{waits}\n{goes_on}\n") == []
    assert [one.name for one in causes(f"{goes_on}\n{waits}\n")] == ["not scheduled"]


@pytest.mark.parametrize(
    "noise",
    [
        "bash: ifconfig: command not found",
        "wandb: ERROR HTTPSConnectionPool(host='a'): Max retries exceeded with url: /graphql",
        "step 7: loss is nan, batch skipped",
    ],
)
def test_an_exception_outweighs_other_output(noise: str) -> None:
    found = causes(f"{noise}\nValueError: no such layer: 7")
    assert found[0].name == "Python error"
    assert len(found) == 2


def test_the_rank_of_a_process_is_known_from_its_communicator() -> None:
    (one,) = causes(
        "elm4:771:802 [3] NCCL INFO ncclCommInitRank comm 0x1 rank 1 nranks 2 cudaDev 3 commId 0x2 "
        "- Init START\n"
        "elm4:771:802 [3] NCCL INFO ncclCommInitRank comm 0x5 rank 27 nranks 64 cudaDev 3 commId "
        "0x3 - Init START\n"
        "elm4:771:999 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
    )
    assert one.culprit == "rank 27 on elm4"


def test_the_rank_that_is_behind_in_a_collective() -> None:
    def watchdog(rank: int, seq: int, enqueued: int, group: str = "0 PG GUID 0(default_pg)") -> str:
        return (
            f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
            "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600004 "
            f"milliseconds before timing out.\n[PG ID {group} Rank {rank}] Timeout at NCCL work: "
            f"{seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {seq - 1}.\n"
        )

    first, second, *_ = causes(
        watchdog(0, 1580, 1582) + watchdog(1, 1580, 1581) + watchdog(2, 1579, 1579)
    )
    assert (first.name, first.culprit) == ("rank did not join", "rank 2")
    assert "enqueued no more than work 1579, while others wait in ALLREDUCE 1580" in first.text
    assert (second.name, second.culprit) == ("collective timed out", "ranks 0-1")
    assert "ALLREDUCE 1580 of 64 elements in group default_pg, limit 600 s" in second.text

    # A rank that waits in nothing does not time out: it only answers the others' signal.
    dump = (
        "[Rank 3] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a "
        "collective timeout from  rank 1. Last enqueued NCCL work: {0}, last completed NCCL work: "
        "{0}.\n"
    )
    waits = watchdog(0, 1580, 1582) + watchdog(1, 1580, 1581)
    assert causes(waits + dump.format(1579))[0].culprit == "rank 3"
    none = causes(dump.format(-1) + waits)[0]
    assert (none.culprit, str(none.detail)[:23]) == ("rank 3", "enqueued no work, while")
    assert causes(waits + dump.format(1580))[0].name == "collective timed out"
    [heard] = causes(dump.format(1579))
    assert (heard.name, heard.culprit) == ("collective timed out", "rank 1")
    restarted = waits + watchdog(3, 1580, 1580) + dump.format(12)
    assert causes(restarted)[0].name == "collective timed out"

    # Numbers of different groups are not compared.
    names = {one.name for one in causes(watchdog(0, 90, 90) + watchdog(1, 5, 5, "3 PG GUID 9"))}
    assert names == {"collective timed out"}

    # Nor of the groups of a mesh, which share their name and their number within a rank.
    mesh = [
        watchdog(0, 100, 100, "2 PG GUID 3(mesh_tp)"),
        watchdog(2, 90, 90, "2 PG GUID 4(mesh_tp)"),
    ]
    assert {one.name for one in causes("".join(mesh))} == {"collective timed out"}


def test_a_rank_whose_group_was_not_printed_is_compared() -> None:
    work = (
        "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType={1}, "
        "NumelIn=8, NumelOut=8, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n"
    )
    group = (
        "[PG ID 0 PG GUID {1} Rank {0}] Timeout at NCCL work: 6, last enqueued NCCL work: 6, last "
        "completed NCCL work: 5.\n"
    )
    named = [work.format(r, "ALLREDUCE") + group.format(r, "0(default_pg)") for r in (0, 1)]
    [cause] = causes("".join([*named, work.format(2, "BROADCAST")]))
    assert (cause.name, cause.culprit) == ("ranks' collectives differ", "rank 2")
    [cause] = causes("".join([*named, work.format(2, "ALLREDUCE")]))
    assert (cause.name, cause.culprit) == ("collective timed out", "ranks 0-2")
    # It may belong to either of two groups that wait in a collective of this number.
    other = [work.format(r, "BROADCAST") + group.format(r, "9(dp)") for r in (3, 4)]
    found = causes("".join([*named, *other, work.format(2, "BROADCAST")]))
    assert {one.name for one in found} == {"collective timed out"}


RAS = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

{0}
Warnings
========

{1}"""
UNEVEN = """\
#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation {}
  Rank 12 -- GPU 4 managed by process 32302 on node 10.0.0.4
  Rank 13 -- GPU 5 managed by process 32303 on node 10.0.0.4

"""


@pytest.mark.parametrize("prefix", ["", "7: ", "[1,11]<stdout>:"])
def test_ranks_that_are_behind_in_nccls_ras(prefix: str) -> None:
    def first_of(text: str) -> Cause:
        return causes("".join(f"{prefix}{line}\n" for line in text.splitlines()))[0]

    behind = first_of(RAS.format("", UNEVEN.format(639)))
    assert (behind.name, behind.culprit) == ("rank did not join", "ranks 12-13 on 10.0.0.4")
    assert behind.detail == "launched 639 AllGather, others 640"
    # Of the 30 that are behind, RAS names none.
    ahead = first_of(RAS.format("", UNEVEN.format(641)))
    assert (ahead.name, ahead.ranks) == ("ranks' collectives differ", ())
    one = (
        "#1-0 (fa93) MISMATCH\n  Communicator ranks have different Broadcast operation counts\n"
        "  7 ranks have launched up to operation 3\n"
        "  Rank 6 has not launched any operations -- GPU 2 managed by process 8 on node 10.0.0.6\n"
    )
    late = first_of(RAS.format("", one))
    assert (late.culprit, late.detail) == ("rank 6 on 10.0.0.6", "launched no Broadcast, others 3")


def test_ranks_that_nccls_ras_does_not_reach() -> None:
    errors = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 60004 on node 10.0.0.3 managing GPU 0

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 60009 on node 10.0.0.5 managing GPUs 0,1

#0-0 (b3398875b8b2a063) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 0 managed by process 60004 on node 10.0.0.3

#0-0 (b3398875b8b2a063) ERROR
  Asynchronous error on 1 rank
  Rank 5 reported Internal error -- GPU 1 managed by process 7 on node 10.0.0.6
"""
    found = {(one.name, one.culprit) for one in causes(RAS.format(errors, ""))}
    assert found == {
        ("rank lost", "rank 1 on 10.0.0.3"),
        ("rank lost", "10.0.0.3"),
        ("rank lost", "10.0.0.5"),
        ("NCCL failed", "rank 5 on 10.0.0.6"),
    }
    assert is_peer_lost(RAS.format(errors, ""))


def ras_json(counts: Sequence[int], missing: int | None = None, error: int = 0) -> str:
    def rank(number: int) -> dict[str, Any]:
        return {"rank": number, "host": f"elm{number}", "pid": 7, "cuda_dev": 0, "nvml_dev": 0}

    ranks = [
        rank(number)
        | {"status": {"init_state": 0, "async_error": error}, "collective_counts": {"Reduce": n}}
        for number, n in enumerate(counts)
    ]
    lost = {"status": {"unresponsive": True, "considered_dead": True}}
    comm = {
        "hash": "0x4e",
        "size": 4,
        "ranks": ranks,
        "missing_ranks": [] if missing is None else [rank(missing) | lost],
    }
    return json.dumps({"nccl_version": "2.28.9", "communicators": [comm]}, indent=2)


def test_nccls_ras_as_json() -> None:
    assert causes(ras_json([4, 4])) == []
    [behind] = causes(f"$ ncclras -f json\n{ras_json([4, 4, 3])}\nOK\n")
    assert (behind.name, behind.culprit) == ("rank did not join", "rank 2 on elm2")
    # NCCL 2.28 leaves out a comma before the state of a missing rank.
    lost = ras_json([4, 4], missing=2).replace('"nvml_dev": 0,', '"nvml_dev": 0')
    [gone] = causes(lost)
    assert (gone.name, gone.culprit) == ("rank lost", "rank 2 on elm2")
    failed = causes(ras_json([4, 4], error=6))
    assert {(one.name, one.detail) for one in failed} == {
        ("NCCL failed", "remote process exited or network error")
    }
    for text in (lost[:-90], '{"communicators": [{}], "missing_ranks": 1}'):
        assert causes(text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed: Bad address", "peermem"),
        ("ibv_reg_mr failed: Cannot allocate memory", "if it is unlimited"),
        ("libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.", "LimitMEMLOCK"),
        ("error obtaining device attributes for mlx5_1 errno says No space left", "in a version"),
        ("Call to ibv_open_device failed with error Operation not permitted", "/dev/infiniband"),
        ("mkdir(/sys/fs/cgroup/memory/job_12): No space left on device", "/proc/cgroups"),
        ("The server socket has failed to bind to [::]:23456 (errno: 98 - EADDRINUSE)", "23456"),
        ("Failed status 12: wr_id 0 syndrom 0x81", "acknowledged"),
    ],
)
def test_the_call_and_its_errno_decide_what_is_advised(text: str, words: str) -> None:
    assert words in causes(text)[0].text


RDMA = (
    *("ibv_create_qp", "ibv_create_cq", "ibv_create_srq", "ibv_alloc_pd", "ibv_open_device"),
    *("ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr", "ibv_modify_qp", "ibv_create_ah"),
    *("ibv_post_send", "ibv_query_device", "ibv_query_gid", "ibv_poll_cq", "ibv_destroy_qp"),
    *("rdma_create_qp", "rdma_resolve_addr", "rdma_connect", "mlx5dv_devx_obj_create"),
    *("fi_mr_reg", "fi_endpoint", "fi_domain", "fi_getinfo", "gdr_pin_buffer"),
)
OF_RDMA = {
    *("no RDMA resources", "memory could not be registered", "queue pair not connected"),
    *("wrong GID", "no route between RDMA ports", "RDMA failed", "network plugin failed"),
}
FILES = {errno.ENOSPC: "disk full", errno.EDQUOT: "disk full", errno.EIO: "file system failed"}
CALLED = (
    "elm4:771:802 [3] misc/ibvwrap.cc:280 NCCL WARN Call to {call} failed with error {text}",
    "elm4:771:802 [3] misc/ibvwrap.cc:280 NCCL WARN Call to {call} failed with {number} {text}",
    "[1.5] [elm4:77:0]  ib_iface.c:88  UCX  ERROR {call}(mlx5_0) failed: {text}",
    "{call}() failed: {text}",
    "{call} failed: {text} ({number})",
    "{call}: {text}",
    "{call} failed with errno={number}",
    "RuntimeError: {call} failed: {text}",
)


@pytest.mark.parametrize("call", RDMA)
def test_an_errno_of_an_rdma_call_is_a_cause_of_rdma(call: str) -> None:
    names = ("ENOSPC", "ENOMEM", "EPERM", "EACCES", "ENODEV", "EINVAL", "EAGAIN", "EIO", "EBUSY")
    for number in (getattr(errno, name) for name in (*names, "ETIMEDOUT", "ENETUNREACH", "EFAULT")):
        for form in CALLED:
            line = form.format(call=call, number=number, text=os.strerror(number))
            found = causes(line)
            assert found, line
            assert found[0].name in OF_RDMA, line


@pytest.mark.parametrize("call", ["open", "write", "mkdir", "ftruncate", "rename"])
def test_an_errno_of_a_files_call_is_a_cause_of_files(call: str) -> None:
    for number, name in FILES.items():
        line = f"OSError: {call}('/scratch/x') failed: {os.strerror(number)}"
        assert causes(line)[0].name == name


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("cudaIpcOpenMemHandle", "no GPU peer access"),
        ("cudaDeviceEnablePeerAccess", "no GPU peer access"),
        ("cuMemImportFromShareableHandle", "IMEX not ready"),
        ("cuMulticastCreate", "NVLS not set up"),
        ("cudaHostAlloc", "host memory not pinned"),
        ("cudaHostRegister", "host memory not pinned"),
        ("cudaStreamCreate", "CUDA error"),
    ],
)
def test_a_text_of_cuda_means_what_its_call_does(call: str, name: str) -> None:
    for text in ("invalid argument", "operation not permitted", "operation not supported"):
        for form in ("{} failed: {}", "CUDA error in {}: {}", "[rank3]: CUDA failure {}: '{}'"):
            line = form.format(call, text)
            assert [one.name for one in causes(line)] == [name], line


def test_the_node_that_failed_is_not_the_one_that_reports_it() -> None:
    job = "slurmstepd: error: *** JOB 42 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO "
    found = causes(f"{job}NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n")
    assert [(one.name, one.culprit) for one in found] == [("node lost", "")]
    first, _ = causes(
        f"{job}NODE FAILURE, SEE SLURMCTLD LOG ***\nsrun: error: Node failure on node3\n"
    )
    assert (first.name, first.culprit) == ("node lost", "node3")
    [late] = causes(f"{job}TIME LIMIT ***\n")
    assert late.culprit == "node1"


def test_a_text_truncated_anywhere_is_read() -> None:
    for text, _, _ in FAILING:
        for end in range(0, len(text), 31):
            assert isinstance(causes(text[:end]), list)
            assert isinstance(causes(text[end:].encode()), list)


def test_each_cause_has_a_meaning_and_a_remedy() -> None:
    for kind in TABLE:
        assert kind.meaning
        assert kind.remedy
        assert "\n" not in kind.meaning + kind.remedy
    assert len({kind.name for kind in TABLE}) == len(TABLE)
    roots = [kind.root for kind in TABLE]
    assert roots == sorted(roots, reverse=True)


def test_lost_peer() -> None:
    for text in (
        "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:9",
        "RuntimeError: [pair.cc:537] Read error [::1]:9: Connection reset by peer",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "DistBackendError: NCCL communicator was aborted on rank 1",
        "ncclRemoteError: A call failed possibly due to a network error",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: [tcp/pair.cc:538] Read error [10.0.0.2]:16616: Connection timed out",
        "RuntimeError: [tcp/pair.cc:575] writev [10.0.0.2]:3456: Connection timed out",
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
    ):
        assert is_peer_lost(text), text
    for text in (
        "AssertionError: assert 4 == 5",
        "RuntimeError: shape mismatch",
        "ValueError: connection",
        "subprocess.CalledProcessError: Command '['make']' returned non-zero exit status 2.",
        "",
    ):
        assert not is_peer_lost(text), text
