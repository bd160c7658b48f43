"""Causes in the output of failed ranks and jobs: named with the culprit, never invented."""

from __future__ import annotations

import random
from itertools import cycle
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
import yaml

from pytest_mnode.logs.causes import causes, first_cause, is_peer_lost
from pytest_mnode.logs.causes.find import is_worth_reading
from pytest_mnode.logs.causes.table import KnownCause, known_causes

TABLE = known_causes()

COMPOSED = yaml.safe_load(
    (Path(__file__).parents[2] / "fixtures" / "logs" / "causes.yaml").read_text()
)
FAILING = [(one["text"], one["cause"], one.get("culprit", "")) for one in COMPOSED["failing"]]
HEALTHY = COMPOSED["healthy"]


@pytest.mark.parametrize(("text", "name", "culprit"), FAILING)
def test_the_cause_of_a_failing_text(text: str, name: str, culprit: str) -> None:
    found = causes(text)
    assert [one.name for one in found][:1] == [name]
    assert found[0].culprit == culprit
    assert found[0].line.strip() in text


def test_every_cause_of_the_table_has_a_test() -> None:
    assert {kind.name for kind in TABLE} == {name for _, name, _ in FAILING}
    assert len(FAILING) >= 80


@pytest.mark.parametrize("text", HEALTHY)
def test_a_healthy_text_has_no_cause(text: str) -> None:
    assert causes(text) == []


ROOTS = [one for one in FAILING if next(kind.root for kind in TABLE if kind.name == one[1])]
LOST = [one for one in FAILING if one not in ROOTS]

PREFIXES = [
    "",
    "11: ",
    "[1,11]<stderr>:",
    "[prterun-elm3-91@1,11]<stderr>: ",
    "[prterun-elm3-91@1,11][elm4:77]<stderr>: ",
    "[1,mpirank:11,algo-2]<stderr>:",
    "Sat Nov 21 08:11:12 2026<stderr>: ",
    "[trainer3]:",
    "2026-11-21T08:11:12.123456Z ",
    "2026-11-21T08:11:12.123456789Z stderr F ",
    "[2026-11-21 08:11:12] ",
    "[default3]:",
    "[rank11]: ",
    "(RayWorkerWrapper pid=7712, ip=10.9.0.7) ",
    "[pod/nccl-worker-3/main] ",
    "worker-3  | ",
    "\x1b[36m",
]
NOISE = ["epoch 3:  12%|#  | 3/25 [00:01, loss=0.7, timeout=600]", "", "    x = f(y)", *HEALTHY]


@pytest.mark.parametrize(("prefix", "end"), [*zip(PREFIXES, cycle(["\n", "\r\n"]), strict=False)])
def test_prefixes_and_noise_hide_no_cause(prefix: str, end: str) -> None:
    noise = random.Random(prefix)
    for text, name, _ in FAILING:
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
    for root, cause, culprit in random.Random(lost).sample(ROOTS, 12):
        found = causes(f"{lost}\n{root}")
        assert (found[0].name, found[0].root) == (cause, True), root
        assert name in [one.name for one in found]
        first = first_cause({"elm1": lost, "elm2": root, "elm3": lost})
        assert first is not None
        assert first.name == cause
        assert first.host == "elm2" or str(first.host) in culprit
    assert is_peer_lost(lost) is (name not in ("aborted", "ended by the launcher"))


def test_causes_without_a_text() -> None:
    assert first_cause({"elm1": "", "elm2": "all well"}) is None
    assert first_cause({}) is None
    assert not is_peer_lost("")


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


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.name)
def test_the_prefilter_skips_no_matching_line(kind: KnownCause) -> None:
    for pattern in kind.patterns:
        for text in _literals(_parser.parse(pattern.pattern)):
            assert is_worth_reading(text), f"{text!r} needs a word in find.py's list"


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
def test_point_to_point_calls_are_numbered_per_rank(
    works: tuple[tuple[int, str], ...],
) -> None:
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
    assert causes(dump.format(1579)) == []
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


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_lost_peer(text: str) -> None:
    assert is_peer_lost(text)


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: assert 4 == 5",
        "RuntimeError: shape mismatch",
        "ValueError: connection",
        "subprocess.CalledProcessError: Command '['make']' returned non-zero exit status 2.",
        "",
    ],
)
def test_no_lost_peer(text: str) -> None:
    assert not is_peer_lost(text)
