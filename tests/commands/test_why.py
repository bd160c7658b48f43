"""`python -m pytest_mnode why`: culprit and cause of a job that has failed, from what it left."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.commands import main
from tests.logs.test_flight_recorder import AT_2, DONE, WORLD
from tests.logs.test_stacks import PY_SPY

WATCHDOG = (
    "[rank{rank}]:[E1121 02:00:00 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, "
    "Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)
GROUP = (
    "[rank{rank}]:[E] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Timeout at NCCL work: 2, last "
    "enqueued NCCL work: {last}, last completed NCCL work: 1.\n"
)
FELL_OFF = "[81.2] NVRM: Xid (PCI:0000:9b:00): 79, pid=17, GPU has fallen off the bus.\n"


def dump(*calls: dict[str, Any]) -> bytes:
    return pickle.dumps({"version": "2.10", "pg_config": WORLD, "entries": list(calls)}, 2)


def left(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def why(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, Any]:
    status = main(["why", "--format=json", *map(str, arguments)])
    return status, json.loads(capsys.readouterr().out)


LATE: dict[str, str | bytes] = {
    "dumps/nccl_trace_rank_0": dump(DONE, AT_2),
    "dumps/nccl_trace_rank_1": dump(DONE, AT_2),
    "dumps/nccl_trace_rank_2": dump(DONE),
    "dumps/nccl_trace_rank_3": dump(DONE, AT_2),
    "logs/rank_0.log": WATCHDOG.format(rank=0),
    "logs/rank_3.log": WATCHDOG.format(rank=3),
}


def test_dumps_say_who_did_not_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = why(capsys, left(tmp_path, LATE))
    assert (status, found["cause"]["cause"]) == (0, "rank did not join")
    assert found["cause"]["ranks"] == [2]
    assert {one["cause"] for one in found["followed_by"]} == {"collective timed out"}
    assert any("no log of ranks 2" in line for line in found["missing"])
    assert found["files"] == 6
    assert any("py-spy" in line for line in found["missing"])


def test_a_stack_says_where_the_culprit_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = why(capsys, left(tmp_path, LATE | {"py-spy_rank_2.txt": PY_SPY}))
    assert found["cause"]["detail"].endswith("rank 2 is at train.py:23 in load")
    assert not any("py-spy" in line for line in found["missing"])


def test_what_broke_comes_before_who_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = gzip.compress(FELL_OFF.encode())
    status, found = why(capsys, left(tmp_path, {**LATE, "node1/dmesg.gz": packed}))
    assert (status, found["cause"]["device"]) == (0, "0000:9b:00")
    assert found["cause"]["file"] == "node1/dmesg.gz"
    assert [one["ranks"] for one in found["others"]] == [[2]]
    assert found["missing"] == []


def watchdogs(*ranks: int, last: int = 2) -> dict[str, str | bytes]:
    """Logs of ranks that wait, one file each."""
    texts = dict.fromkeys(ranks, WATCHDOG + GROUP)
    return {f"rank_{r}.log": text.format(rank=r, last=last) for r, text in texts.items()}


def test_watchdogs_of_all_files_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (WATCHDOG + GROUP).format(rank=2, last=2).replace("ALLREDUCE", "BROADCAST")
    found = why(capsys, left(tmp_path / "a", {**watchdogs(0, 1, 3), "rank_2.log": other}))[1]
    assert (found["cause"]["cause"], found["cause"]["ranks"]) == ("ranks' collectives differ", [2])
    assert found["cause"]["file"] == "rank_2.log"
    late = GROUP.format(rank=3, last=1).replace("Timeout at NCCL work: 2, l", "L")
    found = why(capsys, left(tmp_path / "b", {**watchdogs(0, 1, 2), "rank_3.log": late}))[1]
    assert (found["cause"]["cause"], found["cause"]["ranks"]) == ("rank did not join", [3])


def gathered(of: int) -> str:
    """Watchdogs of all but rank 0, in an all-gather that tells the size of its group."""
    every = "".join((WATCHDOG + GROUP).format(rank=rank, last=2) for rank in range(of - 1))
    return every.replace("ALLREDUCE", "_ALLGATHER_BASE").replace("NumelOut=4", f"NumelOut={4 * of}")


@pytest.mark.parametrize(
    ("files", "ranks", "suspects"),
    [
        (watchdogs(1, 2, 3), [1, 2, 3], [0]),
        ({"job.log": gathered(4)}, [0, 1, 2], [3]),
        (watchdogs(0, 1, 2, 3), [0, 1, 2, 3], []),
        (watchdogs(0), [0], []),
        (watchdogs(0, 5), [0, 5], []),  # more are silent than are heard
        # Ray left out lines of other ranks.
        ({"job.log": gathered(4).strip() + " [repeated 2x across cluster]\n"}, [0, 1, 2], []),
    ],
)
def test_who_waits_is_no_culprit(
    files: dict[str, str | bytes],
    ranks: list[int],
    suspects: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = left(tmp_path, files)
    found = why(capsys, folder)[1]
    assert found["cause"]["seen_by_victims"] is True
    assert (found["cause"]["ranks"], found["suspects"]) == (ranks, suspects)
    assert main(["why", str(folder)]) == 0
    said = f"perhaps rank {suspects[0]}" if suspects else "not named"
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert (first, second[:8]) == (f"culprit: {said}", "seen by:")


def attempt(folder: str, ranks: Iterable[int], at: int, hour: str = "") -> dict[str, str | bytes]:
    """Logs of ranks that wait in this work, their last one."""
    text = WATCHDOG.replace("SeqNum=2,", f"SeqNum={at},") + GROUP.replace(
        "work: 2,", f"work: {at},"
    )
    text = (
        text.replace("02:00:00", f"{hour}:00:00") if hour else text.replace("E1121 02:00:00 ", "")
    )
    return {f"{folder}/rank_{r}.log": text.format(rank=r, last=at) for r in ranks}


def without(rank: int, of: int) -> list[int]:
    return [one for one in range(of) if one != rank]


@pytest.mark.parametrize("hours", [("", ""), ("08", "10")])
@pytest.mark.parametrize(
    "jobs",
    [
        ((without(3, 8), 500), (without(5, 8), 100), 5),
        ((range(8), 500), (without(5, 16), 100), 5),
        ((range(8), 100), (without(2, 16), 55), 2),
        ((without(3, 8), 100), (without(5, 8), 500), 5),
    ],
)
def test_attempts_and_jobs_are_not_compared_with_each_other(
    hours: tuple[str, str],
    jobs: tuple[tuple[Sequence[int], int], tuple[Sequence[int], int], int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, suspect = jobs
    files = attempt("a", *first, hours[0]) | attempt("b", *second, hours[1])
    found = why(capsys, left(tmp_path, files))[1]
    assert (found["cause"]["cause"], found["suspects"]) == ("collective timed out", [suspect])
    assert found["cause"]["ranks"] == list(second[0])
    assert [one["ranks"] for one in found["others"]] == [list(first[0])]


def test_attempts_in_one_file_and_on_a_replaced_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [attempt("n0", range(4), *one) for one in ((500, "08"), (100, "10"))]
    files: dict[str, str | bytes] = {
        name: f"{both[0][name]!s}{both[1][name]!s}" for name in both[0]
    }
    files |= attempt("n1", (4, 5, 6), 500, "08") | attempt("n9", (5, 6, 7), 100, "10")
    found = why(capsys, left(tmp_path, files))[1]
    assert (found["cause"]["ranks"], found["suspects"]) == ([0, 1, 2, 3, 5, 6, 7], [4])
    assert [one["ranks"] for one in found["others"]] == [[0, 1, 2, 3, 4, 5, 6]]


def test_logs_that_are_kept_twice_are_of_one_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = attempt("logs", without(3, 8), 500, "08")
    files["job.out"] = "".join(map(str, files.values()))
    found = why(capsys, left(tmp_path, files))[1]
    assert (found["suspects"], found["others"]) == ([3], [])


@pytest.mark.parametrize(("numels", "lasts"), [((4, 4), (300, 290)), ((4, 8), (300, 300))])
def test_groups_without_a_guid_share_their_number(
    numels: tuple[int, int],
    lasts: tuple[int, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ranks 0-1 and 2-3 are two groups, which torch before 2.5 calls PG 1."""
    files: dict[str, str | bytes] = {}
    for rank in range(4):
        last, numel = lasts[rank // 2], numels[rank // 2]
        files[f"rank_{rank}.log"] = (
            WATCHDOG.replace("SeqNum=2,", f"SeqNum={last},").replace("=4,", f"={numel},")
            + GROUP.replace(
                "PG ID 0 PG GUID 0(default_pg) Rank {rank}", f"PG 1 Rank {rank % 2}"
            ).replace("work: 2,", f"work: {last},")
        ).format(rank=rank, last=last)
    found = why(capsys, left(tmp_path, files))[1]
    every = [found["cause"], *found["others"], *found["followed_by"]]
    assert {one["cause"] for one in every} == {"collective timed out"}
    assert found["suspects"] == []


@pytest.mark.parametrize(
    ("more", "suspects"),
    [(("rank_7.log",), [7]), (("rank_7.log", "elsewhere/rank_8.log"), [7]), ((), [3])],
)
def test_a_suspect_with_a_log_comes_first(
    more: Sequence[str],
    suspects: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs = watchdogs(0, 1, 2, 4, 5, 6) | dict.fromkeys(more, "step 1\n")
    assert why(capsys, left(tmp_path, logs))[1]["suspects"] == suspects


KILLED = "  host      : elm5\n  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 1)\n"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("rank_2.log", "KeyError: 'labels'\n", ("Python error", [2], None)),
        ("rank_2/stderr.log", "torch.OutOfMemoryError: no\n", ("GPU out of memory", [2], None)),
        ("a_rank2.err", "OSError: [Errno 5] Input/output error", ("file system failed", [2], None)),
        ("globalrank-2_localrank-0.txt", "KeyError: 'labels'\n", ("Python error", [2], None)),
        ("torchrun.log", KILLED, ("killed", [2], "elm5")),
        ("rank_1.log", "ValueError: no such comment\n", ("rank did not join", [2], None)),
        ("local_rank_2.log", "ValueError: no such comment\n", ("rank did not join", [2], None)),
    ],
)
def test_what_befell_a_rank_that_others_wait_for(
    file: str,
    text: str,
    expected: tuple[str, list[int], str | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = why(capsys, left(tmp_path, {**LATE, file: text}))[1]["cause"]
    assert (found["cause"], found["ranks"], found["host"]) == expected


def test_a_rank_that_waits_in_vain_for_others_is_not_accused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "DistStoreError: Timed out after 901 seconds waiting for clients. 3/4 clients joined.\n"
    found = why(capsys, left(tmp_path, {"rank_0.log": text}))[1]["cause"]
    assert (found["cause"], found["ranks"]) == ("rank did not join", [])


@pytest.mark.parametrize(
    ("file", "host"),
    [
        *(("gpu4/dmesg", "gpu4"), ("dmesg-gpu4.txt", "gpu4"), ("gpu4.dmesg.log", "gpu4")),
        *(("gpu4/kern.log.1", "gpu4"), ("logs/dmesg.txt", None), ("gpu4/train.log", None)),
        *(("dmesg/gpu4.log", "gpu4"), ("dmesg/gpu4", "gpu4"), ("gpu4-nvidia-smi.txt", "gpu4")),
    ],
)
def test_the_node_of_a_kernel_log_is_known_by_its_name(
    file: str, host: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = why(capsys, left(tmp_path, {file: FELL_OFF}))[1]["cause"]
    assert (found["device"], found["host"]) == ("0000:9b:00", host)


def test_the_node_of_a_rank_is_known_by_nccls_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init = "gpu5:7:8 [1] NCCL INFO ncclCommInitRank comm 0x5 rank 2 nranks 4 cudaDev 1 - START\n"
    found = why(capsys, left(tmp_path, {**LATE, "nccl.log": init}))[1]["cause"]
    assert (found["cause"], found["ranks"], found["host"]) == ("rank did not join", [2], "gpu5")


@pytest.mark.parametrize(
    "line",
    [
        "  host      : elm3\n  rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 101)\n",
        "ERROR:rerun_state_machine:Rank 3, node elm3, device 1, iteration #13: First rerun\n",
        "srun: error: elm3: task 3: Exited with exit code 1\n",
        "elm3: [default1]:[rank3]: DistBackendError: NCCL communicator was aborted\n",
    ],
)
def test_the_node_of_a_rank_is_known_by_other_lines(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = why(capsys, left(tmp_path, {"job.log": f"[rank3]: KeyError: 'labels'\n{line}"}))[1]
    assert (found["cause"]["ranks"], found["cause"]["host"]) == ([3], "elm3")


COMPLETION = (
    "{0}:7:9 [0] NCCL WARN NET/IB : Got completion from peer {1}<48> with error 12, opcode 0\n"
)
CLOSED = "[rank{0}]: RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.{1}]:41100\n"
NO_ROUTE = (
    "{0}:7:9 [0] NCCL WARN socketPollConnect: Connect to 10.0.0.10<38> failed : No route to host\n"
)
USING = "{0}:7:8 [0] NCCL INFO Bootstrap : Using {1}:10.0.0.{2}<0>\n"
LACKS = "n{}: bash: python: command not found\n"
LONG_AGO = "[Tue Jun  9 11:00:12 2026] LustreError: 167-0: osc: client was evicted by OST12\n"
EVICTED = "LustreError: 167-0: osc: This client was evicted by OST12\n"
STEPS = "".join(f"step: {n}  loss:  2.1  tps: 4\n" for n in range(8))


NO_ANSWER = "RDMA peer did not answer"
RETRIED = (
    "[n3:55:0:55] ib_mlx5_log.c:177  RC QP 0x5 wqe[3]: RDMA_READ --- [rqpn 0x9 dlid=412 sl=0]\n"
)
BY_DEVICE = RETRIED.replace("[rqpn", "on mlx5_{}:1 [rqpn")
IBSTAT = "".join(
    f"n{n}: CA 'mlx5_{n}'\nn{n}: \tPort 1:\nn{n}: \t\tPhysical state: Polling\n"
    f"n{n}: \t\tBase lid: {lid}\n"
    for n, lid in ((3, 411), (4, 412))
)
OF_N4 = IBSTAT[len(IBSTAT) // 2 :]
REFUSED = "[W socket] connect: SO_ERROR: Connection refused, remote=[127.0.1.1]:40913\n"
NOT_MET = f"RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error\n{REFUSED}"
OWN_NAMES = "n4: 127.0.0.1 localhost\nn4: 127.0.1.1  n4\nn4: 10.0.0.3 n3\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {f"{a}.log": COMPLETION.format(a, "10.0.0.9") for a in "ab"},
            ("RDMA peer did not answer", "a", "10.0.0.9"),
        ),
        (
            {"x": COMPLETION.format("a", "b") + COMPLETION.format("b", "a")},
            ("RDMA peer did not answer", "a", None),
        ),
        (
            {"x": "".join(CLOSED.format(n, (n + 1) % 3) for n in range(3))},
            ("connection closed by peer", None, None),
        ),
        (
            {f"{a}.log": NO_ROUTE.format(a) for a in "ab"},
            ("host unreachable", None, "10.0.0.10"),
        ),
        *(
            (
                {
                    "a.log": USING.format("a", "ens1", 1) + NO_ROUTE.format(by),
                    "b.log": USING.format("b", "ens1", b),
                    "c.log": USING.format("c", nic, c),
                },
                ("host unreachable", host, peer),
            )
            for nic, b, c, by, host, peer in (
                ("virbr0", 2, 10, "a", None, "c"),
                ("ens1", 2, 10, "a", "a", "c"),
                ("virbr0", 10, 3, "c", "c", "b"),
                ("ens1", 2, 3, "a", "a", "10.0.0.10"),
            )
        ),
        # An interface in another network than that of all others is why they do not reach it.
        *(
            (
                {
                    "a.log": USING.format("a", "ens1", 1),
                    "b.log": USING.format("b", "ens1", 2) + NO_ROUTE.format("b"),
                    "c.log": USING.format("c", nic, 10).replace("10.0.0", network),
                    "d.log": NO_ROUTE.format("a").replace("10.0.0", network),
                },
                expected,
            )
            for nic, network, expected in (
                ("docker0", "172.17.0", ("interface differs", "c", None)),
                ("docker0", "10.0.0", ("host unreachable", None, "c")),
                ("ens1", "172.17.0", ("host unreachable", None, None)),
            )
        ),
        (
            {
                "a.log": USING.format("a", "virbr0", 1) + NO_ROUTE.format("a"),
                "b.log": USING.format("b", "ens1", 10),
                "c.log": USING.format("c", "ens1", 3) + NO_ROUTE.format("c"),
            },
            ("host unreachable", None, "b"),
        ),
        (
            {"n3.log": "ImportError: libx.so: cannot open shared object file", "n4.log": ""},
            ("library or module missing", "n3", None),
        ),
        (
            {"rank_9.log": "OSError: [Errno 108] x", "gpu5/dmesg": EVICTED},
            ("file system failed", "gpu5", None),
        ),
        (
            {"rank_9.log": "2026-06-12 03:40:04 OSError: [Errno 108] x", "gpu5/dmesg": LONG_AGO},
            ("file system failed", None, None),
        ),
        ({f"gpu{n}/dmesg": EVICTED for n in (5, 6)}, ("file system failed", None, None)),
        ({"x": LACKS.format(2) + LACKS.format(5)}, ("program not found", None, None)),
        ({"x": LACKS.format(2) + LACKS.format(5) + "n3: 1"}, ("program not found", "n2", None)),
        (
            {**{f"gpu{n}/dmesg": EVICTED for n in (5, 6)}, "gpu7/dmesg": "eth0: up"},
            ("file system failed", "gpu5", None),
        ),
        ({"attempt_0/e": FELL_OFF, "attempt_1/e": STEPS + "Training completed\n"}, None),
        # A port without a link is unused, unless others do not reach its node by it.
        ({"x": RETRIED + IBSTAT}, ("port went down", "n4", None)),
        ({"x": RETRIED + IBSTAT.replace("2", "3")}, (NO_ANSWER, "n3", "lid=412")),
        ({"x": IBSTAT}, None),
        ({"x": RETRIED + IBSTAT.replace("x5_3", "x5_4")}, (NO_ANSWER, "n3", "n4")),
        ({"x": BY_DEVICE.format(0) + IBSTAT}, (NO_ANSWER, "n3", "n4")),
        ({"x": BY_DEVICE.format(4) + OF_N4}, ("port went down", "n4", None)),
        ({"x": RETRIED + OF_N4}, (NO_ANSWER, "n3", "n4")),
        # /etc/hosts counts for the address that others were told, if gloo did not reach it.
        ({"x": NOT_MET + OWN_NAMES}, ("loopback address announced", "n4", None)),
        (
            {"x": NOT_MET, "hosts-n4.txt": OWN_NAMES.replace("n4: ", "")},
            ("loopback address announced", "n4", None),
        ),
        ({"x": NOT_MET + OWN_NAMES.replace("1.1", "1.2")}, ("gloo not connected", None, None)),
        ({"x": NOT_MET + OWN_NAMES.replace(" n4", " a.local")}, ("gloo not connected", None, None)),
        ({"x": REFUSED + OWN_NAMES}, ("connection closed by peer", None, "127.0.1.1")),
    ],
)
def test_the_node_that_is_meant(
    files: dict[str, str | bytes],
    expected: tuple[str | None, ...] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cause = why(capsys, left(tmp_path, files))[1]["cause"]
    assert expected == (cause and (cause["cause"], cause["host"], cause["peer"]))


HELD = (
    "[rank6]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has a "
    "total capacity of 93.00 GiB of which 1.20 GiB is free. Process 7788 has 21.50 GiB memory in "
    "use. Including non-PyTorch memory, this process has 70.30 GiB memory in use.\n"
)
ROW = "|    2   N/A  N/A      {}      C   /opt/x/python      22016MiB |\n"
SMIS: dict[str, str | bytes] = {
    f"smi-elm{n}.txt": ROW.format(pid) for n, pid in ((3, 7), (4, 7788))
}


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        (HELD, SMIS, ("elm4", "7788 has 21.50 GiB")),
        (HELD, {}, (None, "7788 has 21.50 GiB")),
        (HELD, SMIS | {"smi-elm5.txt": ROW.format(7788)}, (None, "7788 has 21.50 GiB")),
        (HELD, SMIS | {"ps-elm5.txt": " 7788 root kworker\n"}, ("elm4", "7788 has 21.50 GiB")),
        # A rank of the job, too.
        (HELD, {"ps-elm5.txt": " 7788 python train.py --local-rank 2\n"}, (None, None)),
        # A monitor, and a container, where a rank's own number is another one.
        (HELD.replace("21.50 G", "410.00 M"), SMIS, (None, None)),
        (HELD.partition("Including")[0], SMIS, (None, None)),
    ],
)
def test_the_process_that_holds_the_memory_of_a_gpu(
    text: str,
    files: dict[str, str | bytes],
    expected: tuple[str | None, str | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cause = why(capsys, left(tmp_path, {"job.log": text, **files}))[1]["cause"]
    assert (cause["ranks"], cause["host"], cause["detail"]) == ([6], *expected)


def test_a_pod_of_another_job_that_was_preempted_explains_no_wait_for_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = (
        "9m  Normal  Preempted  pod/w-{}  Preempted by pod 11-22 on node elm7\n"
        "8m  Warning  FailedScheduling  pod/w-3  0/9 nodes are available: 9 Insufficient cpu.\n"
    )
    for pod, cause in ((3, "preempted"), (8, "not scheduled")):
        found = why(capsys, left(tmp_path, {"events": events.format(pod)}))[1]["cause"]
        assert (found["cause"], found["seen_by_victims"]) == (cause, pod == 3)


def test_of_equal_causes_the_earlier_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "[Thu Sep 10 08:08:{} 2026] NVRM: Xid (PCI:0000:{}:00): 149, NETIR_LINK_DOWN Fatal\n"
    files = {"a/dmesg": line.format(47, "1a"), "b/dmesg": line.format(46, "9b")}
    found = why(capsys, left(tmp_path, {**files}))[1]
    assert (found["cause"]["host"], [one["host"] for one in found["others"]]) == ("b", ["a"])


def test_without_a_cause_it_says_what_would_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = why(capsys, left(tmp_path, {"a.log": "step 1\nstep 2\n"}))
    assert (status, found["cause"]) == (1, None)
    assert any("TORCH_NCCL_DUMP_ON_TIMEOUT" in line for line in found["missing"])


def test_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(left(tmp_path, LATE))]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == "culprit: rank 2"
    assert second.startswith("cause: rank did not join (")
    assert "followed by: collective timed out (ranks 0,3)" in rest


def test_an_unreadable_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(capsys, left(tmp_path, {**LATE, "cut.log.gz": gzip.compress(b"x" * 99)[:-9]}))[1]
    assert found["cause"]["ranks"] == [2]
    assert any("cut.log.gz" in line for line in found["missing"])


FELL = "[rank1]: KeyError: 'labels'\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.log", b"\0" * 5000 + FELL.encode() + b"\0" * 5000),  # a node died while it wrote
        ("a.log", FELL.encode("utf-16")),
        ("a.log.xz", lzma.compress(FELL.encode())),
        (
            "a.log.gz",
            gzip.compress(FELL.encode() + random.Random(1).randbytes(9000).hex().encode())[:-9],
        ),
    ],
)
def test_what_is_packed_cut_or_has_zero_bytes_is_read(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: content, "weights.bin": random.Random(2).randbytes(9000)}
    found = why(capsys, left(tmp_path, {**files}))[1]
    assert (found["cause"]["cause"], found["cause"]["ranks"]) == ("Python error", [1])
    assert found["files"] == 1


def test_records_of_collectors_name_hosts_and_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = {"_HOSTNAME": "elm4", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": FELL_OFF[7:].strip()}
    pod = {"pod_name": "nemo-2", "container_name": "main"}
    files = {
        "j.json": json.dumps(journal),
        "f.jsonl": json.dumps({"time": "2026", "log": FELL, "kubernetes": pod}),
    }
    found = why(capsys, left(tmp_path, {**files}))[1]
    assert (found["cause"]["cause"], found["cause"]["host"]) == ("GPU lost", "elm4")
    assert [(one["ranks"], one["host"]) for one in found["others"]] == [([1], "nemo-2")]
    logged = {"event": "crash", "rank": 4, "exception": "Traceback:\n  x\nKeyError: 'mask'"}
    found = why(capsys, left(tmp_path / "b", {"app.jsonl": json.dumps(logged)}))[1]["cause"]
    assert (found["cause"], found["ranks"]) == ("Python error", [4])


def test_blocks_of_dshbak_name_their_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = "-" * 16
    text = f"{rule}\nelm[1,3]\n{rule}\nall well\n{rule}\nelm2\n{rule}\n{FELL_OFF}"
    found = why(capsys, left(tmp_path, {"dmesg.txt": text}))[1]["cause"]
    assert (found["cause"], found["host"]) == ("GPU lost", "elm2")


def test_folders_with_equal_names_are_all_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for node, text in (("n0", "step 1\n"), ("n1", "KeyError: 'labels'\n"), ("n2", "step 1\n")):
        left(tmp_path, {f"{node}/rank_0.log": text})
    found = why(capsys, *(tmp_path / node for node in ("n0", "n1", "n2")))[1]
    assert (found["files"], found["cause"]["cause"]) == (3, "Python error")


LATE_START = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
NO_MODULE = "ModuleNotFoundError: No module named 'flash_attn'\n"
ALL_FAILED = (
    "Root Cause (first observed failure):\n[0]:\n  host      : elm3\n  rank      : 24 "
    "(local_rank: 0)\n  exitcode  : 1 (pid: 1)\n====\n"
)
NOT_ACCEPTED = (
    "[E socket.cpp:1019] [c10d] The client socket has timed out after 600000ms while trying to "
    "connect to (elm0, 29500).\n"
)


@pytest.mark.parametrize(
    ("files", "cause", "host"),
    [
        (
            {"a.log": LATE_START, "b.log": NO_MODULE + ALL_FAILED},
            *("library or module missing", "elm3"),
        ),
        (
            {"a.log": LATE_START, "b.log": "Failed to pull image\n"},
            *("image not pulled", None),
        ),
        ({"a.log": NOT_ACCEPTED, "elm0.log": "KeyError: 'x'\n"}, "Python error", "elm0"),
        # One file tells of both: the exception may be of who waited.
        ({"a.log": LATE_START + NO_MODULE}, "rendezvous failed", None),
    ],
)
def test_who_did_not_start_comes_before_who_waited(
    files: dict[str, str | bytes],
    cause: str,
    host: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = why(capsys, left(tmp_path, files))[1]["cause"]
    assert (found["cause"], found["host"]) == (cause, host)


def test_different_versions_of_nccl_explain_a_misread_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    misread = "elm1:7:9 [0] NCCL WARN Message truncated : received 1024 bytes instead of 256\n"
    files = {"a.log": f"NCCL version 2.18.1+cuda12.1\n{misread}", "b.log": "NCCL version 2.21.5\n"}
    found = why(capsys, left(tmp_path / "a", {**files}))[1]["cause"]
    assert found["cause"] == "ranks run different versions"
    assert found["detail"] == "2.18.1 in a.log, 2.21.5 in b.log"
    files["b.log"] = "NCCL version 2.18.1\n"
    found = why(capsys, left(tmp_path / "b", {**files}))[1]["cause"]
    assert (found["cause"], found["seen_by_victims"]) == ("ranks' collectives differ", True)


def test_the_node_with_another_version_of_nccl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warns = "NCCL WARN Mismatched NCCL version detected : rank 0 version 22809 rank 4 version 22503"
    for number, host in ((2, None), (3, "elm5")):
        files: dict[str, str | bytes] = {
            f"elm{n}.log": f"NCCL version 2.28.9+cuda13.0\nelm{n}:7:8 [0] init.cc:88 {warns}\n"
            for n in range(3, 2 + number)
        }
        files["elm5.log"] = "NCCL version 2.25.3+cuda12.8\n"
        found = why(capsys, left(tmp_path / str(number), files))[1]["cause"]
        assert (found["cause"], found["host"]) == ("ranks run different versions", host)


def test_files_of_nodes_tell_where_ranks_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def logs(*every: tuple[int, ...]) -> dict[str, str | bytes]:
        """Of nodes, whose ranks wait, and of rank 2 that does not."""
        waits = WATCHDOG + GROUP
        late = GROUP.replace("Timeout at NCCL work: 2, l", "L")
        return {
            f"elm{n}.log": "".join(
                late.format(rank=r, last=1) if r == 2 else waits.format(rank=r, last=2)
                for r in ranks
            )
            for n, ranks in enumerate(every, 3)
        }

    for every, host in (([(0, 1), (2, 3)], "elm4"), ([(0, 1, 2), (2, 3)], None)):
        found = why(capsys, left(tmp_path / str(host), logs(*every)))[1]["cause"]
        assert (found["cause"], found["ranks"], found["host"]) == ("rank did not join", [2], host)


def test_an_exception_has_the_rank_in_its_group_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks 4 to 7 are a group, of which rank 5 is late."""
    files: dict[str, str | bytes] = {}
    for rank in (4, 5, 6, 7):
        own, last = rank - 4, 2 - (rank == 5)
        waits = "" if rank == 5 else WATCHDOG.replace("[Rank {rank}]", f"[Rank {own}]")
        group = GROUP.replace(
            "PG ID 0 PG GUID 0(default_pg) Rank {rank}", f"PG ID 3 PG GUID 9(tp) Rank {own}"
        )
        repeated = (
            waits.partition("] ")[2]
            and f"  what():  [PG ID 3 PG GUID 9(tp) Rank {own}] " + waits.partition("616] ")[2]
        )
        if rank == 5:
            group = group.replace("Timeout at NCCL work: 2, l", "L")
        files[f"out/rank{rank}/stderr.log"] = (waits + group + repeated).format(
            rank=rank, last=last
        )
    found = why(capsys, left(tmp_path, files))[1]["cause"]
    assert (found["cause"], found["ranks"]) == ("rank did not join", [5])


def steps(*numbers: int) -> str:
    return "".join(f"INFO train: step {number} loss 2.1\n" for number in numbers)


OUT = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"


NO_PLUGIN = "elm1:7:9 [0] plugin/net.cc:99 NCCL WARN Failed to initialize NET plugin IBext_v11\n"
NO_APEX = "ModuleNotFoundError: No module named 'apex' - using torch's optimizers\n"
INITED = "elm1:{}:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 - Init COMPLETE\n"


@pytest.mark.parametrize(
    ("text", "cause", "survived"),
    [
        (steps(0) + OUT + steps(1, 2, 3, 4) + FELL, "Python error", ["GPU out of memory"]),
        (steps(0) + OUT + steps(1, 2, 2, 2) + FELL, "GPU out of memory", []),  # of several ranks
        # The output of another rank stands below.
        (steps(1, 2, 3, 4) + OUT + steps(1, 2, 3, 4, 5) + FELL, "GPU out of memory", []),
        (OUT + steps(1, 2, 3, 4, 5) + FELL, "GPU out of memory", []),
        (steps(0) + OUT + steps(1, 2, 3, 4) + OUT + FELL, "GPU out of memory", []),
        (steps(0) + OUT + steps(1, 2, 3, 4), None, ["GPU out of memory"]),
        # NCCL did without, as its later lines or the steps tell.
        (NO_PLUGIN, "network plugin failed", []),
        (NO_PLUGIN + INITED.format(7), None, ["network plugin failed"]),
        (NO_PLUGIN + INITED.format(8), "network plugin failed", []),
        (INITED.format(7) + NO_PLUGIN, "network plugin failed", []),
        (NO_PLUGIN + steps(1, 2, 3, 4), None, ["network plugin failed"]),
        # So did a program.
        (NO_APEX + steps(1, 2, 3), "library or module missing", []),
        (NO_APEX + steps(1, 2, 3, 4), None, ["library or module missing"]),
        ("CommandNotFoundError: no conda\n" + steps(1, 2, 3, 4), None, []),
    ],
)
def test_what_a_job_survived_is_no_cause(
    text: str,
    cause: str | None,
    survived: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = why(capsys, left(tmp_path, {"job.log": text}))[1]
    assert (found["cause"] and found["cause"]["cause"]) == cause
    others = [one["cause"] for one in found["others"]]
    assert [name for name in others if name != "Python error"] == survived


@pytest.mark.parametrize("name", ["attempt_{}/rank_1.err", "slurm-{}.out", "logs/attempt_{}/0/out"])
def test_the_last_attempt_has_the_cause(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name.format(9): OUT, name.format(10): FELL, "torchrun.log": "step 1\n"}
    found = why(capsys, left(tmp_path, {**files}))[1]
    assert found["cause"]["cause"] == "Python error"
    assert [one["cause"] for one in found["others"]] == ["GPU out of memory"]


def test_ranks_with_one_cause_are_named_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"rank_{rank}.log": OUT.replace("rank3", f"rank{rank}") for rank in (3, 9)}
    found = why(capsys, left(tmp_path / "a", {**files, "rank_1.log": FELL}))[1]
    assert (found["cause"]["cause"], found["cause"]["ranks"]) == ("GPU out of memory", [3, 9])
    files = {f"rank_{rank}.log": FELL.replace("rank1", f"rank{rank}") for rank in (3, 9)}
    found = why(capsys, left(tmp_path / "b", {**files}))[1]
    assert (found["cause"]["ranks"], found["alike"]) == ([3, 9], [])
    # Of all ranks, none is the culprit; a file that does not show it may be of one more.
    files = {f"n{rank}.log": FELL.replace("rank1", f"rank{rank}") for rank in range(2)}
    on = "  host      : elm{0}\n  rank      : {0} (local_rank: 0)\n"
    placed = {"nodes.log": "".join(map(on.format, range(2)))}
    one_more = {"n2.log": "step 3\n"}
    for more, culprits in (({}, ([], [0, 1])), (placed, ([], [0, 1])), (one_more, ([0, 1], []))):
        found = why(capsys, left(tmp_path / "_".join(["c", *more]), {**files, **more}))[1]
        assert (found["cause"]["ranks"], found["alike"]) == culprits
    files = {"a.log": "0: KeyError: 'x'\n1: KeyError: 'x'\n2: step 3\n"}
    assert why(capsys, left(tmp_path / "f", {**files}))[1]["cause"]["ranks"] == [0, 1]
    # Nor of several that tell only that others broke.
    failed = "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: x.cpp:7\n"
    files = {f"n{rank}.log": failed.format(rank) for rank in (1, 2)} | {"n3.log": "step 3\n"}
    assert why(capsys, left(tmp_path / "g", {**files}))[1]["alike"] == [1, 2]
    # Nor of those that fill nodes, of which alone logs were kept.
    files = {f"n{rank}.log": FELL.replace("rank1", f"rank{rank}") for rank in range(8, 12)}
    assert why(capsys, left(tmp_path / "e", {**files}))[1]["alike"] == [8, 9, 10, 11]
    # It is the culprit where a line of another node stands beside those of its ranks.
    lines = "".join(f"n2: {text}" for text in files.values())
    found = why(capsys, left(tmp_path / "h", {"a.log": f"{lines}n1: step 3\n"}))[1]
    assert (found["cause"]["host"], found["alike"]) == ("n2", [])
    # Interfaces that `ip addr` numbers are no ranks.
    lines = "".join(FELL.replace("rank1", f"rank{rank}") for rank in range(2))
    files = {"a.log": f"1: lo: <UP>\n2: eth0: <UP>\n{lines}"}
    assert why(capsys, left(tmp_path / "i", {**files}))[1]["alike"] == [0, 1]
    # All report a failure of one of them, which raised something else.
    files = {f"rank_{rank}.log": "RuntimeError: a rank failed to save\n" for rank in range(4)}
    files["rank_2.log"] = FELL.replace("rank1", "rank2") + files["rank_2.log"]
    found = why(capsys, left(tmp_path / "d", {**files}))[1]
    assert (found["cause"]["ranks"], found["others"][0]["ranks"]) == ([2], [0, 1, 2, 3])


ACCOUNTS = "JobID|State|ExitCode\n9|COMPLETED|0:0\n9.0|{}|0:0\n"
IN_JSON = '{{"state": {{"current": ["COMPLETED"]}}, "steps": [{{"state": ["{}"]}}]}}'


@pytest.mark.parametrize("accounts", [ACCOUNTS, IN_JSON])
@pytest.mark.parametrize(("state", "cause"), [("COMPLETED", None), ("FAILED", "Python error")])
def test_a_job_that_completed_has_no_cause(
    state: str,
    cause: str | None,
    accounts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"rank_1.log": "IndexError: in an answer of the model\n"}
    files["sacct"] = accounts.format(state)
    status, found = why(capsys, left(tmp_path, {**files}))
    assert (status, found["cause"] and found["cause"]["cause"]) == (int(cause is None), cause)
    if cause is None:
        assert found["missing"] == [
            "nothing failed: Slurm's accounting says that all steps completed"
        ]
        assert [one["ranks"] for one in found["others"]] == [[1]]


NOT_GIVEN = "Name:    w-1\nNode:    pool-b3/\nReason:  UnexpectedAdmissionError\n"
SRUN = "srun: error: elm{}: task 3: Exited with exit code {}\n"
FAILED = "KeyError: 'labels'\nRuntimeError: NCCL error: remote process exited or network error\n"
ENDED = "JOB 7 ON elm4 CANCELLED AT 2026-11-21T02:01:00 DUE TO TIME LIMIT\n"
PORT_DOWN = "elm3:7:9 [2] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # The only node on which a task ended by itself is that of what nobody named.
        (
            {"a": "OCI runtime create failed\n" + SRUN.format(3, 1)},
            ("container not created", "elm3"),
        ),
        (
            {"a": "OCI runtime create failed\n" + SRUN.format(3, 1) + SRUN.format(4, 2)},
            ("container not created", None),
        ),
        (
            {"a": "OCI runtime create failed\n" + SRUN.format(3, 143)},
            ("container not created", None),
        ),
        # A rank that raised may hang at its end; then the task that ended by itself only followed.
        (
            {"a": FAILED + SRUN.format(3, 1) + "srun: error: elm4: task 0: Killed\n"},
            ("Python error", None),
        ),
        # One file tells of who waited and of who did not start, and names the nodes of both.
        (
            {"a": f"elm4: {NO_MODULE}elm3: {NOT_ACCEPTED}"},
            ("library or module missing", "elm4"),
        ),
        # A file may have the end of a node's name only.
        (
            {"plugin-b3.log": 'err="GPU is lost"\n', "w-1.txt": NOT_GIVEN},
            ("GPU lost", "pool-b3"),
        ),
        (
            {"plugin-b4.log": 'err="GPU is lost"\n', "w-1.txt": NOT_GIVEN},
            ("GPU lost", None),
        ),
        # Of ranks too, if they wrote it themselves.
        ({"elm3.log": FELL, "elm4.log": "step 3\n"}, ("Python error", "elm3")),
        ({"elm3.log": FELL, "job.log": "step 3\n"}, ("Python error", None)),
        *(
            ({f"{what}3.log": FELL, f"{what}4.log": "[rank0]: step 3\n"}, ("Python error", None))
            for what in ("seed", "llama", "torch2")
        ),
        # What hung until the scheduler ended it.
        ({"a": PORT_DOWN + ENDED}, ("port went down", "elm3")),
        ({"a": ENDED + PORT_DOWN}, ("time limit", None)),
        ({"a": ENDED, "b": PORT_DOWN}, ("time limit", None)),
    ],
)
def test_which_node_and_what_came_first(
    files: dict[str, str | bytes],
    expected: tuple[str, str | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = why(capsys, left(tmp_path, files))[1]["cause"]
    assert (found["cause"], found["host"]) == expected


def test_ranks_that_crash_after_they_gave_up_a_wait_only_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gave_up = (
        "DeepEP dispatch timeout, channel: 3\nCUDA error x.cu:7 'unspecified launch failure'\n"
    )
    files = {f"rank_{rank}.log": gave_up for rank in range(3)}
    found = why(capsys, left(tmp_path, {**files}))[1]
    assert found["cause"]["cause"] == "rank waited in vain"
    assert [one["cause"] for one in found["others"]] == ["GPU crashed"]


def test_an_exception_that_a_rank_survived_until_another_was_killed_explains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "Root Cause (first observed failure):\n[0]:\n  rank      : {} (local_rank: 0)\n"
    killed = "  exitcode  : -9 (pid: 77)\n"
    for rank, culprit in ((5, ("killed", [5])), (1, ("Python error", [1]))):
        found = why(capsys, left(tmp_path, {"a": FELL, "b": first.format(rank) + killed}))[1]
        assert (found["cause"]["cause"], found["cause"]["ranks"]) == culprit


GONE = "[rank1]:[W1021 11:30:44 TCPStore.cpp:125] recvValue failed on SocketImpl(fd=81)\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"Training completed\n{GONE}", None),
        ("Training completed\nBrokenPipeError: [Errno 32] Broken pipe\n", None),
        ("BrokenPipeError: [Errno 32]\nTraining completed\n", "connection closed by peer"),
        (f"{PORT_DOWN}Training completed\n{GONE}", None),
        (f"Training completed\n{WATCHDOG.format(rank=0)}", "collective timed out"),
        (GONE, "store connection lost"),
        (f"Training completed\n{GONE}{GONE.replace('[W', '[E')}{FELL}", "Python error"),
    ],
)
def test_ranks_that_end_after_the_training_are_no_failure(
    text: str, cause: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = why(capsys, left(tmp_path, {"job.log": text}))[1]
    assert (found["cause"] and found["cause"]["cause"]) == cause
    assert cause or found["missing"][0].startswith("nothing failed: training ended")


def test_what_a_kernel_wrote_of_others_is_no_failure_of_a_training_that_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"job.log": "Training completed\n", "n1/dmesg": FELL_OFF}
    found = why(capsys, left(tmp_path, {**files}))[1]
    assert (found["cause"], found["others"][0]["cause"]) == (None, "GPU lost")
    found = why(capsys, left(tmp_path, {**files, "job.log": "Training began\n"}))[1]
    assert found["cause"]["cause"] == "GPU lost"
    lost = "9m  Normal  NodeNotReady  pod/w-1  Node is not ready\n"
    for text, cause in (("Training completed\n", None), ("Training began\n", "node lost")):
        found = why(capsys, left(tmp_path, {"n1/dmesg": "", "job.log": text, "events": lost}))[1]
        assert (found["cause"] and found["cause"]["cause"]) == cause


def test_ranks_that_lose_others_once_their_launchers_were_ended_suspect_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = "[rank1]: socketProgress: Connection closed by remote peer elm2<7>\n"
    told = "Received Signals.SIGTERM death signal, shutting down workers\n"
    for text, cause in (
        (told + gone, "ended by the launcher"),
        (gone + told, "connection closed by peer"),
    ):
        found = why(capsys, left(tmp_path, {"a.log": text}))[1]["cause"]
        assert (found["cause"], found["peer"] is None) == (cause, text.startswith(told))


ALONE = "Failures:\n  <NO_OTHER_FAILURES>\n" + ALL_FAILED


def test_the_only_rank_that_failed_is_known_by_torchruns_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = "Memory access fault by GPU node-5 on address 0x7f0000. Reason: Unknown.\n"
    aborted = ALONE.replace(": 1 (pid", ": -6 (pid")
    found = why(capsys, left(tmp_path / "a", {"a.log": fault + aborted}))[1]["cause"]
    assert (found["cause"], found["ranks"], found["host"]) == ("GPU crashed", [24], "elm3")
    both = aborted + aborted.replace("elm3", "elm4").replace("24", "25")
    found = why(capsys, left(tmp_path / "f", {"a.log": fault + both}))[1]["cause"]
    assert (found["cause"], found["ranks"], found["host"]) == ("GPU crashed", [], None)
    exited = ALONE.replace(": 1 (pid", ": 3 (pid")
    closing = "api.py:900] Sending process 2 closing signal SIGTERM\n"
    found = why(capsys, left(tmp_path / "b", {"a.log": closing + exited}))[1]
    assert (found["cause"]["cause"], found["suspects"]) == ("ended by the launcher", [24])
    child = "[rank: 7] Child process with PID 37032 terminated with code 1. Forcefully\n"
    found = why(capsys, left(tmp_path / "c", {"a.log": GONE + child}))[1]
    assert (found["cause"]["cause"], found["suspects"]) == ("store connection lost", [7])
    ended = SRUN.format(3, 1) + "srun: Job step aborted\nsrun: error: elm4: tasks 4-7: Killed\n"
    found = why(capsys, left(tmp_path / "e", {"a.log": ended}))[1]
    assert (found["cause"]["cause"], found["suspects"]) == ("ended by the launcher", [3])
    found = why(capsys, left(tmp_path / "d", {"a.log": GONE + child.replace("7]", "1]")}))[1]
    assert found["suspects"] == []  # it only lost the others


def test_a_time_zone_may_hide_a_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = FELL_OFF.replace("[81.2]", "[Sat Nov 21 04:00:00 2026]")
    found = why(capsys, left(tmp_path, {**watchdogs(0, 1, 2), "dmesg-elm4": later}))[1]
    assert found["cause"]["cause"] == "collective timed out"
    assert any("time zone of dmesg-elm4: GPU lost" in line for line in found["missing"])


def test_a_folder_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "/no/such"]) == 2
    assert "/no/such: no such file or folder" in capsys.readouterr().err


NO_ANSWER = (
    "elm{node}:7:9 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer "
    "10.9.0.2<5000> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0\n"
)
LINK_DOWN = "[Sat Nov 21 {time} 2026] mlx5_core 0000:5e:00.0 eth1: Link down\n"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("rank_5.log", "KeyError: 'labels'\n", ("Python error", [5], [])),
        ("job.out", "srun: error: elm1: task 5: Killed\n", ("killed", [5], [])),
        ("job.out", "srun: error: elm1: task 5: Segmentation fault\n", ("crashed", [5], [])),
        (
            "job.out",
            "srun: error: elm1: task 5: Exited with exit code 1\n",
            ("RDMA peer did not answer", [0], [5]),
        ),
        ("elm1/dmesg", LINK_DOWN.format(time="01:58:00"), ("port went down", [], [])),
        ("rank_1.log", "KeyError: 'labels'\n", ("RDMA peer did not answer", [0], [])),
    ],
)
def test_who_ended_comes_before_who_misses_an_answer(
    file: str,
    text: str,
    expected: tuple[str, list[int], list[int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files: dict[str, str | bytes] = {f"rank_{r}.log": NO_ANSWER.format(node=r) for r in range(4)}
    files[file] = f"{files.get(file, '')!s}{text}"
    found = why(capsys, left(tmp_path, files))[1]
    cause = found["cause"]
    assert (cause["cause"], cause["ranks"], found["suspects"]) == expected


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        (
            "job.out",
            "JOB 7 ON elm4 CANCELLED AT 2026-11-21T02:01:00 DUE TO TIME LIMIT\n",
            "time limit",
        ),
        (
            "job.out",
            "JOB 7 ON elm4 CANCELLED AT 2026-11-21T02:01:00 DUE TO PREEMPTION",
            "preempted",
        ),
        ("rank_1.log", "torch.OutOfMemoryError: one retry\n", "GPU out of memory"),
        ("rank_0.log", "OSError: [Errno 28] No space left on device\n", "disk full"),
        ("elm1/dmesg", LINK_DOWN.format(time="02:30:00"), "port went down"),
        ("elm1/dmesg", LINK_DOWN.format(time="01:00:00").replace("21", "3"), "port went down"),
        ("elm1/kern.log", f"Nov 19 01:00:00 elm1 kernel: {FELL_OFF[7:]}", "GPU lost"),
        ("job.out", "srun: error: elm1: task 1: Segmentation fault\n", "crashed"),
        ("elm1/kern.log", "Nov 21 02:00:09 elm1 kernel: py[7]: segfault at 18 ip 0", "crashed"),
    ],
)
def test_what_explains_no_wait_is_listed_beside_it(
    file: str, text: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = watchdogs(0, 1, 2, 4)
    logs = {one: f"2026-11-21 01:00:00 start\n{log!s}" for one, log in waits.items()}
    files: dict[str, str | bytes] = {**logs, "rank_3.log": "step 1\n"}
    files[file] = f"{text}{files.get(file, '')!s}"
    found = why(capsys, left(tmp_path, files))[1]
    assert (found["cause"]["cause"], found["suspects"]) == ("collective timed out", [3])
    assert [one["cause"] for one in found["others"]] == [name]


@pytest.mark.parametrize(("day", "cause"), [(18, None), (21, "port went down"), (24, None)])
@pytest.mark.parametrize("name", ["rank_1.log", "job.log"])
def test_what_a_node_had_before_or_after_the_job_is_no_cause(
    name: str, day: int, cause: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = "[rank1]:[W1121 02:00:00 init.cpp] slow\n2026-11-21 02:00:00 step 1\n"
    down = LINK_DOWN.format(time="02:00:00").replace("21", str(day))
    found = why(capsys, left(tmp_path, {name: job, "elm1/dmesg": down}))[1]
    assert (found["cause"] and found["cause"]["cause"]) == cause


@pytest.mark.parametrize(
    ("hosts", "lost", "is_elsewhere"),
    [
        (("elm1", "elm2"), "elm7", True),
        (("elm1.site", "elm2.site"), "elm2", False),
        (("elm1", None), "elm7", False),  # it may be the other rank's
        (("worker-0", "worker-1"), "elm7", False),  # pods
    ],
)
def test_what_befell_a_node_of_another_job_is_no_cause(
    hosts: tuple[str | None, ...],
    lost: str,
    is_elsewhere: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    init = "{}:7:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {} nranks 2 - Init COMPLETE\n"
    files: dict[str, str | bytes] = {
        f"rank_{rank}.log": init.format(host, rank) for rank, host in enumerate(hosts) if host
    }
    files["slurmctld.log"] = f"error: Nodes {lost} not responding\n"
    found = why(capsys, left(tmp_path, files))[1]
    assert (found["cause"] is None) is is_elsewhere
    assert [one["cause"] for one in found["others"]] == ["node lost"] * is_elsewhere


def test_a_cause_that_comes_again_within_the_job_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = LINK_DOWN.format(time="01:00:00").replace("21", "3") + LINK_DOWN.format(time="01:58:00")
    logs = {one: f"2026-11-21 01:00:00 start\n{log!s}" for one, log in watchdogs(0, 1).items()}
    found = why(capsys, left(tmp_path, {**logs, "elm1/dmesg": lines}))[1]
    assert (found["cause"]["cause"], found["cause"]["host"]) == ("port went down", "elm1")


def test_tasks_of_srun_that_are_agents_are_no_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = "srun: error: elm1: task 1: Killed\n"
    agent = "E1121 02:00:00 torch/distributed/elastic/multiprocessing/api.py:874] failed\n"
    for more, ranks in (("", [1]), (agent, [])):
        files: dict[str, str | bytes] = {"job.out": killed, "node0.log": more}
        found = why(capsys, left(tmp_path, files))[1]["cause"]
        assert (found["cause"], found["host"], found["ranks"]) == ("killed", "elm1", ranks)
    ended = f"1: KeyError: 'labels'\n{SRUN.format(1, 1)}{agent}"
    found = why(capsys, left(tmp_path, {"job.out": ended}))[1]
    assert (found["cause"]["ranks"], found["suspects"]) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "JOB 7 ON elm4 CANCELLED AT 2026-11-21T02:01:00 DUE TO TIME LIMIT\n",
        "JOB 7 ON elm4 CANCELLED AT 2026-11-21T02:01:00\n",
        "  host      : elm4\n  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 101)\n",
    ],
)
def test_whom_a_scheduler_or_a_watchdog_ended_is_no_culprit(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", str(left(tmp_path, {"job.out": text}))]) == 0
    assert capsys.readouterr().out.startswith("culprit: not named\n")


def test_source_and_notes_are_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files: dict[str, str | bytes] = {"README.md": FELL_OFF, "train.py": FELL_OFF}
    folder = left(tmp_path, files)
    assert (why(capsys, folder)[0], why(capsys, folder / "README.md")[0]) == (1, 0)


def test_what_kept_one_node_from_starting_comes_before_another_that_waited_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "elm4: ImportError: libx.so: version `GLIBCXX_3.4.30' not found (required by y.so)\n"
        "elm3: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
        "1/2 clients joined.\n"
    )
    found = why(capsys, left(tmp_path, {"pdsh.log": text}))[1]
    assert (found["cause"]["cause"], found["cause"]["host"]) == (
        "library versions do not fit",
        "elm4",
    )


def test_a_rank_whose_watchdog_alone_hung_is_suspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = "[rank4]:[E] [Rank 4] ProcessGroupNCCL's watchdog got stuck for 480 seconds\n"
    failed = "Root Cause (first observed failure):\n[0]:\n  rank      : 4 (local_rank: 4)\n"
    files = {"a.log": f"{stuck}{failed}  exitcode  : -6 (pid: 77)\n"}
    assert why(capsys, left(tmp_path, {**files}))[1]["suspects"] == [4]
    files = {"a.log": stuck}
    assert why(capsys, left(tmp_path, {**files}))[1]["suspects"] == []


def test_stacks_alone_tell_who_did_not_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = PY_SPY.replace(
        "    load (", "    barrier (torch/distributed/distributed_c10d.py:9)\n    load ("
    )
    files = {"stack_rank_0.txt": waits, "stack_rank_1.txt": waits, "stack_rank_2.txt": PY_SPY}
    limit = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-10-03T12:00:00 DUE TO TIME LIMIT"
    found = why(capsys, left(tmp_path, {**files, "slurm-9.out": limit}))[1]
    assert (found["cause"]["cause"], found["cause"]["ranks"]) == ("rank did not join", [2])
    assert found["cause"]["detail"].endswith("rank 2 is at train.py:23 in load")
    assert [one["cause"] for one in found["others"]] == ["time limit"]


def test_events_of_kubernetes_in_json_name_node_and_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "data":\nOutput: mount.nfs: timed out',
        "involvedObject": {"kind": "Pod", "name": "w-2"},
        "source": {"component": "kubelet", "host": "elm4"},
    }
    lost = {
        "type": "Normal",
        "reason": "NodeNotReady",
        "message": "Node elm5 status is now: NodeNotReady",
        "involvedObject": {"kind": "Node", "name": "elm5"},
        "lastTimestamp": None,
    }
    for one, culprit in ((event, ("volume not mounted", "elm4")), (lost, ("node lost", "elm5"))):
        text = json.dumps({"items": [one]}, indent=1)
        found = why(capsys, left(tmp_path, {"events.json": text}))[1]["cause"]
        assert (found["cause"], found["host"]) == culprit


def test_output_that_composer_keeps_is_of_the_rank_of_its_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = "----------{} global rank {} STDERR----------\n"
    text = block.format("Begin", 3) + block.format("End", 3)
    assert why(capsys, left(tmp_path, {"a.log": text}))[1]["cause"] is None
    raised = 'Traceback (most recent call last):\n  File "t.py", line 1\nRuntimeError: no shard\n'
    text += f"{block.format('Begin', 12)}a warning\n{raised}{block.format('End', 12)}"
    found = why(capsys, left(tmp_path, {"a.log": text}))[1]["cause"]
    assert (found["cause"], found["ranks"]) == ("Python error", [12])


def test_that_srun_ended_a_step_hides_no_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        f"{NO_MODULE}srun: error: elm3: tasks 8-15: Exited with exit code 1\n"
        "srun: Terminating StepId=3.0\n"
    )
    found = why(capsys, left(tmp_path, {"slurm-3.out": text}))[1]["cause"]
    assert (found["cause"], found["host"]) == ("library or module missing", "elm3")


@pytest.mark.parametrize(
    ("pods", "cause"),
    [
        ("w-0   0/1   Error   0   1h   10.0.0.1   elm1\n", "Python error"),
        ("w-0   0/1   Error   0   1h   10.0.0.1   elm9\n", "node lost"),
        ("", "node lost"),
    ],
)
def test_a_table_of_all_nodes_counts_for_those_that_other_files_name(
    pods: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = "elm1    Ready      <none>  9d   v1.30.1\nelm9    NotReady   <none>  9d   v1.30.1\n"
    files = {"nodes.txt": nodes, "pods.txt": pods, "w-0.log": FELL}
    found = why(capsys, left(tmp_path, {**files}))[1]
    assert found["cause"]["cause"] == cause
    assert {"Python error", "node lost"} == {
        found["cause"]["cause"],
        *(one["cause"] for one in found["others"]),
    }


def test_the_only_rank_of_a_mesh_that_reports_nothing_is_suspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_pair = (WATCHDOG + GROUP.replace("PG GUID 0(default_pg)", "PG GUID {guid}(tp)")).replace(
        "[Rank {rank}] Watch", "[Rank {own}] Watch"
    )
    every = {r: of_pair.format(rank=r, own=r % 2, guid=5 + r // 2, last=2) for r in range(8)}
    for silent, suspects in (([], []), ([3], [3]), ([2, 3], [])):
        text = "".join(line for rank, line in every.items() if rank not in silent)
        found = why(capsys, left(tmp_path, {"job.log": text}))[1]
        assert (found["cause"]["cause"], found["suspects"]) == ("collective timed out", suspects)


def test_a_described_node_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "Name:               elm5\nRoles:              <none>\nConditions:\n"
        "  Ready   Unknown   x   x   NodeStatusUnknown   Kubelet stopped posting node status.\n"
    )
    found = why(capsys, left(tmp_path, {"node.txt": text}))[1]["cause"]
    assert (found["cause"], found["host"]) == ("node lost", "elm5")


@pytest.mark.parametrize(
    ("lost", "cause"),
    [
        ("Remote daemon: [[41,0],3] on node w-2", "disk full"),
        ("Node with address: 10.8.0.12 has been marked dead", "disk full"),
        ("Remote daemon: [[41,0],3] on node w-1", "node lost"),
    ],
)
def test_why_a_pod_was_ended_explains_that_its_launcher_lost_it(
    lost: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = (
        "Name:      w-2\nNode:      elm5/10.0.31.15\nReason:    Evicted\nMessage:   Pod ephemeral "
        "local storage usage exceeds the total limit of containers 40Gi.\nIP:        10.8.0.12\n"
    )
    assert why(capsys, left(tmp_path, {"a": pod, "b": lost}))[1]["cause"]["cause"] == cause


def test_of_two_exceptions_that_of_the_rank_that_failed_first_is_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "Root Cause (first observed failure):\n[0]:\n  rank      : {} (local_rank: 0)\n"
    ended = "  exitcode  : 1 (pid: 77)\n"
    for rank in (1, 2):
        text = f"{FELL}[rank2]: ValueError: no data\n{first.format(rank)}{ended}"
        assert why(capsys, left(tmp_path, {"a.log": text}))[1]["cause"]["ranks"] == [rank]


def test_a_peer_is_named_by_the_node_that_has_its_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    using = "elm{}:7:8 [0] NCCL INFO Bootstrap : Using ens1:10.0.0.{}<0>\n"
    gone = (
        "elm1:7:9 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer "
        "10.0.0.2<4011> with status=12 opcode=0 len=0 vendor err 129\n"
    )
    for others, peer in ((using.format(2, 2), "elm2"), ("", "10.0.0.2")):
        text = using.format(1, 1) + others + gone
        assert why(capsys, left(tmp_path, {"a.log": text}))[1]["cause"]["peer"] == peer
    text = using.format(2, 2) + using.format(3, 2) + gone
    assert why(capsys, left(tmp_path, {"a.log": text}))[1]["cause"]["peer"] == "10.0.0.2"


def test_a_fault_of_a_named_node_comes_before_that_some_node_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = "9m  Normal  NodeNotReady  pod/w-1  Node is not ready\n"
    for on, cause in (("", "GPU lost"), ("9m Normal Scheduled pod/w-1 {}", "node lost")):
        event = on.format("Successfully assigned train/w-1 to elm4\n")
        files = {"events": event + lost, "elm7/dmesg": FELL_OFF}
        found = why(capsys, left(tmp_path, {**files}))[1]["cause"]
        assert (found["cause"], found["host"]) == (cause, "elm4" if on else "elm7")
