# ruff: noqa: E501  tables are as wide as they are printed
"""ib_write_bw and nccl-tests as the nodes run them: real processes, with programs of ours in place."""

from __future__ import annotations

import os
import stat
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.logs.nccl_tests import NcclTest, NcclTestsRow, Timing, read_nccl_tests
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.tools import missing_on, nccl_tests, perftest
from pytest_mnode.measuring.tools.nccl_tests import NcclRun
from pytest_mnode.spec import default_spec_path, load_spec
from pytest_mnode.spec.fabric import BusbwPromise, NcclTestsPromise, WriteBandwidthPromise
from pytest_mnode.spec.inventory import Fabric

# Stands for ib_write_bw: the server makes a file for its port, the client needs it there.
WRITE_BW = """\
    #!/bin/sh
    node=$NODE; port=; device=; last=
    while [ $# -gt 0 ]; do
      case $1 in
        -d) device=$2; shift ;;
        -p) port=$2; shift ;;
        -s|-D) shift ;;
        -*) ;;
        *) last=$1 ;;
      esac
      shift
    done
    if [ -z "$last" ]; then
      sleep 0.2; touch "$DIR/listens-$last$port"; exec sleep 30
    fi
    if [ ! -e "$DIR/listens-$port" ]; then
      echo "Couldn't connect to $last:$port" >&2; exit 1
    fi
    rate=$(cat "$DIR/rate-$node-$device" 2>/dev/null || echo 387.42)
    if [ "$rate" = hangs ]; then exec sleep 60; fi
    sleep 0.3
    if [ "$rate" = down ]; then echo " Port number 1 state is Down"; exit 1; fi
    echo "                    RDMA_Write $WAYS BW Test"
    echo " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
    echo " 1048576    92000            0.00               $rate             0.046"
    echo "---------------------------------------------------------------------------------------"
"""


def _no_launcher(request: object) -> None:
    raise AssertionError(f"the launcher is not asked for {request}")


class Local(Nodes):
    """Nodes that are this machine; what they see differs by NODE in the environment."""

    def __init__(self, directory: Path) -> None:
        super().__init__(_no_launcher, ("n0", "n1", "n2"))
        self.directory = directory

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]:
        if argv[0] == "ls":
            argv = ["printf", "mlx5_10\\nmlx5_9\\nmlx5_bond0\\n"]
        path = f"PATH={self.directory}:{os.environ['PATH']}"
        return [
            ["env", path, f"DIR={self.directory}", f"NODE={name}", *argv]
            for name in self._names(nodes)
        ]

    def address(self, node: str) -> str:
        return "127.0.0.1"

    @property
    def run_id(self) -> str:
        return str(self.directory)

    @property
    def scratch(self) -> Path:
        return self.directory


@pytest.fixture
def nodes(tmp_path: Path) -> Local:
    program(tmp_path, "ib_write_bw", WRITE_BW)
    return Local(tmp_path)


@pytest.fixture
def fabric() -> Fabric:
    rack = load_spec(default_spec_path()).fabric
    return rack.model_copy(
        update={"interfaces": ("mlx5_?", "mlx5_10"), "line_rate_bits_s": 400 * 10**9}
    )


def program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_program_is_looked_for_on_every_node(nodes: Local) -> None:
    assert missing_on(nodes, "ib_write_bw") == ()
    assert missing_on(nodes, "no_such_program; true") == ("n0", "n1", "n2")


def test_devices_are_those_of_the_fabric_in_their_order(nodes: Local, fabric: Fabric) -> None:
    assert perftest.devices_of(nodes, fabric)["n1"] == ("mlx5_9", "mlx5_10")


def test_each_pair_and_rail_is_judged_and_named(nodes: Local, fabric: Fabric) -> None:
    (nodes.directory / "rate-n1-mlx5_9").write_text("211.07")
    (nodes.directory / "rate-n2-mlx5_10").write_text("down")
    devices = {**perftest.devices_of(nodes, fabric), "n0": ("mlx5_9",)}
    promise = WriteBandwidthPromise.model_validate({})
    found = perftest.judge_devices(devices, fabric.model_copy(update={"nics_per_node": 2}))
    assert [(m.culprit, m.verdict) for m in found][:2] == [
        ("n0 has mlx5_9", Verdict.FAIL),
        (None, Verdict.PASS),
    ]
    kept = perftest.judge(perftest.write_bandwidths(nodes, devices, promise), fabric, promise)
    assert {m.name.removeprefix("ib_write_bw "): (m.value, m.verdict) for m in kept} == {
        "n0→n1 mlx5_9": (387.42, Verdict.PASS),
        "n1→n2 mlx5_9": (211.07, Verdict.FAIL),
        "n2→n0 mlx5_9": (387.42, Verdict.PASS),
        "n0→n1 mlx5_10": (None, Verdict.INCONCLUSIVE),
        "n1→n2 mlx5_10": (387.42, Verdict.PASS),
        "n2→n0 mlx5_10": (None, Verdict.INCONCLUSIVE),
    }
    slow = next(m for m in kept if m.verdict is Verdict.FAIL)
    assert slow.culprit == "n1→n2 mlx5_9"
    assert slow.source == "fabric.line_rate 400 Gbit/s × at_least_fraction 0.96"
    assert [m.note for m in kept if m.value is None] == [
        "no device for this rail on n0",
        "no device for this rail on n0",
    ]
    # The same with the device there: what the program says of itself is the reason.
    whole = perftest.devices_of(nodes, fabric)
    [down] = [p for p in perftest.write_bandwidths(nodes, whole, promise) if p.gbits_s is None]
    assert (down.path, down.why) == ("n2→n0 mlx5_10", "Port number 1 state is Down")


def test_a_pair_that_hangs_does_not_cost_the_others_their_time(
    nodes: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nodes.directory / "rate-n0-mlx5_9").write_text("hangs")
    promise = WriteBandwidthPromise.model_validate({"duration": "1 s"})
    monkeypatch.setattr(perftest, "_SPARE_S", 3.0)
    pairs = perftest.write_bandwidths(nodes, dict.fromkeys(nodes.nodes, ("mlx5_9",)), promise)
    assert [(pair.sender, pair.gbits_s, pair.why) for pair in pairs] == [
        ("n0", None, "ib_write_bw did not end within its time"),
        ("n1", 387.42, ""),
        ("n2", 387.42, ""),
    ]


def test_of_both_directions_one_is_judged(
    nodes: Local, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """387 Gbit/s to and fro together are half a port's rate."""
    monkeypatch.setenv("WAYS", "Bidirectional")
    promise = WriteBandwidthPromise.model_validate({"arguments": ["-b"]})
    devices: dict[str, tuple[str, ...]] = dict.fromkeys(nodes.nodes, ("mlx5_9",))
    kept = perftest.judge(perftest.write_bandwidths(nodes, devices, promise), fabric, promise)
    assert {(m.value, m.verdict) for m in kept} == {(193.71, Verdict.FAIL)}


TABLE = """\
    #!/bin/sh
    echo "# Collective test starting: $(basename $0)"
    echo "# nThread 1 nGpus 1 minBytes $4 maxBytes $6 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
    for rank in 0 1 2; do
      echo "#  Rank  $rank Group  0 Pid 9$rank on n$(( rank * SPREAD )) device  0 [0x1b] NVIDIA H100"
    done
    echo "#       size  count  type redop root time algbw busbw #wrong time algbw busbw #wrong"
    echo " 1073741820 1 float sum -1 4000.1 268.4 357.9 $WRONG 4000.2 268.4 357.9 0"
    echo " 4294967292 1 float sum -1 15000.1 286.3 381.7 0 15000.2 286.3 381.7 0"
    [ "$CUT" ] && { echo "Test NCCL failure common.cu:1 'unhandled system error'"; exit 3; }
    [ "$WRONG" = 0 ] && end=OK || end=FAILED
    echo "# Out of bounds values : $WRONG $end"
    [ "$SHORT" ] || echo "# Avg bus bandwidth    : 369.8"
    [ "$STATUS" ] && { echo "srun: error: n1: task 3: Exited with exit code $STATUS" >&2; exit $STATUS; }
    exit 0
"""
BUSBW = BusbwPromise.model_validate(
    {"at_least_fraction": 0.92, "sizes": ["1 GiB", "4 GiB"], "plateau_from": "4 GiB"}
)


@pytest.mark.parametrize(
    "case",
    [
        ({}, Verdict.PASS, "of the line; all_reduce_perf"),
        ({"SHORT": "1"}, Verdict.PASS, "of the line; all_reduce_perf"),
        ({"WRONG": "5"}, Verdict.FAIL, ""),
        ({"WRONG": "5", "SHORT": "1"}, Verdict.FAIL, ""),
        ({"WRONG": "5", "STATUS": "1"}, Verdict.FAIL, ""),
        ({"STATUS": "1"}, Verdict.INCONCLUSIVE, "aborted: srun: error: n1: task 3: Exited"),
        ({"CUT": "1"}, Verdict.INCONCLUSIVE, "aborted: Test NCCL failure"),
        ({"SPREAD": "0"}, Verdict.INCONCLUSIVE, "ran on 1 of 3 nodes (n0)"),
        (
            {"COMMAND": "sh -c 'exec sleep 9' {program}"},
            Verdict.INCONCLUSIVE,
            "not over after 0.5 s",
        ),
        ({"COMMAND": "echo {program}"}, Verdict.INCONCLUSIVE, "all_reduce_perf"),
    ],
)
def test_nccl_tests_are_run_and_read(
    nodes: Local,
    fabric: Fabric,
    case: tuple[dict[str, str], Verdict, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, verdict, words = case
    program(nodes.directory, "all_reduce_perf", TABLE)
    for name, value in (
        {"WRONG": "0", "SPREAD": "1", "CUT": "", "SHORT": "", "STATUS": ""} | env
    ).items():
        monkeypatch.setenv(name, value)
    promise = NcclTestsPromise.model_validate(
        {
            "command": env.get("COMMAND", "{program} -np {ranks} -b {from} -e {to} --host {hosts}"),
            "directory": str(nodes.directory),
            "limit": "500 ms" if "COMMAND" in env else "20 s",
        }
    )
    line = fabric.model_copy(update={"nics_per_node": 8})
    run = nccl_tests.run(nodes, "all_reduce", promise, BUSBW, 8)
    if "COMMAND" not in env:
        assert run.argv[1:] == (
            *("-np", "24", "-b", str(1 << 30), "-e", str(4 << 30)),
            *("--host", "n0:8,n1:8,n2:8"),
        )
    busbw, wrong = nccl_tests.judge(run, line, BUSBW)
    assert busbw.name == "nccl-tests all_reduce 4 GiB busbw"
    assert {busbw.verdict, wrong.verdict} == (
        {Verdict.PASS, Verdict.FAIL} if verdict is Verdict.FAIL else {verdict}
    )
    assert words in busbw.note
    if verdict is Verdict.FAIL:
        assert (wrong.value, wrong.culprit) == (5, "wrong values: 5 of 1073741820 B")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("mpirun {program} {colour}", "{colour}"),
        ("mpirun {program} {0}", "accepted: {program}, {ranks}"),
        ("mpirun -np {ranks}", "does not start {program}"),
        ("mpirun '{program}", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_be_filled_in_is_refused(command: str, why: str) -> None:
    with pytest.raises(ValueError, match="command") as error:
        NcclTestsPromise.model_validate({"command": command})
    assert why in str(error.value)


def test_of_several_cycles_the_middle_row_counts() -> None:
    def row(busbw: float) -> NcclTestsRow:
        return NcclTestsRow(1 << 20, Timing(busbw, 0))

    test = NcclTest(rows=tuple(row(busbw) for busbw in (90.0, 10.0, 50.0)))
    run = NcclRun("all_reduce", 2, 8, ("x",), "", test, "")
    found = run.row(1 << 20)
    assert found is not None
    assert found.out_of_place.busbw_gbytes_s == 50.0
    assert run.row(1 << 21) is None


@pytest.mark.parametrize(
    ("there", "asked", "found"),
    [
        (1 << 30, 1 << 30, True),
        ((1 << 30) - 4, 1 << 30, True),  # rounded down for 24 ranks
        ((1 << 30) - 2047, 1 << 30, True),
        (int(0.9 * (1 << 30)), 1 << 30, False),  # the command steps by other sizes
        ((1 << 29) + 1, 1 << 30, False),
        ((1 << 30) + 1, 1 << 30, False),
    ],
)
def test_a_row_of_another_size_is_none(there: int, asked: int, found: bool) -> None:
    test = NcclTest(rows=(NcclTestsRow(there, Timing(1.0, 0)),))
    run = NcclRun("all_gather", 3, 8, ("x",), "", test, "")
    assert (run.row(asked) is not None) is found


_ROW = " 4294967296 1 float sum -1 15000.1 286.3 381.7 {} 15000.2 286.3 381.7 {}\n"
_HEAD = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"


@pytest.mark.parametrize(
    ("output", "verdict", "words"),
    [
        (_ROW.format(0, 0) + "# Out of bounds values : 0 OK\n", Verdict.PASS, ""),
        (_ROW.format(0, "N/A") + "# Out of bounds values : 0 OK\n", Verdict.PASS, ""),
        (_ROW.format(3, 2), Verdict.FAIL, "cut off after 4294967296 bytes"),
        (_ROW.format(3, 2) + "Test NCCL failure common.cu:1\n", Verdict.FAIL, "aborted"),
        (_ROW.format("N/A", "N/A") + "# Out of bounds values : 0 OK\n", None, "not checked (-c 0)"),
        (_ROW.format(0, 0), None, "cut off"),
    ],
)
def test_wrong_values_fail_however_the_program_ended(
    fabric: Fabric, output: str, verdict: Verdict | None, words: str
) -> None:
    [test] = read_nccl_tests(_HEAD + output)
    run = NcclRun("all_reduce", 2, 8, ("x",), output, test, test.why_incomplete or "")
    _, wrong = nccl_tests.judge(run, fabric, BUSBW)
    assert wrong.verdict is (verdict or Verdict.INCONCLUSIVE)
    assert words in wrong.note
    assert verdict is not Verdict.FAIL or wrong.culprit == "wrong values: 5 of 4 GiB"
