# ruff: noqa: E501  tables are as wide as they are printed
"""nccl-tests as nodes run it: real processes, with our program in its place."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from pytest_mnode.logs.nccl_tests import NcclTest, NcclTestsRow, Timing, read_nccl_tests
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.tools import missing_on, nccl_tests
from pytest_mnode.measuring.tools.nccl_tests import NcclRun
from pytest_mnode.spec.alpha_beta import Platform
from pytest_mnode.spec.fabric import BusbwPromise, NcclTestsPromise
from pytest_mnode.spec.inventory import Fabric
from tests.measuring.tools.local import Local, fabric_of, program

TABLE = """\
    #!/bin/sh
    echo "# Collective test starting: $(basename $0)"
    echo "# nThread 1 nGpus 1 minBytes $4 maxBytes $6 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
    for rank in $(seq 0 $LAST); do
      echo "#  Rank  $rank Group  0 Pid 9$rank on n$(( rank / 8 * SPREAD )) device  0 [0x1b] NVIDIA H100"
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


@pytest.fixture
def nodes(tmp_path: Path) -> Local:
    program(tmp_path, "all_reduce_perf", TABLE)
    return Local(tmp_path)


@pytest.fixture
def fabric() -> Fabric:
    return fabric_of()


def test_the_program_is_searched_on_every_node(nodes: Local) -> None:
    assert missing_on(nodes, "all_reduce_perf") == ()
    assert missing_on(nodes, "no_such_program; true") == ("n0", "n1", "n2")


def test_missing_programs_are_inconclusive_with_the_remedy(fabric: Fabric) -> None:
    platform = Platform(fabric.kind, fabric.line_rate_bits_s, 8, 8)
    asked = ("all_reduce", "all_reduce_perf", ("n1", "n2"), platform, BUSBW, (3, 8))
    found = nccl_tests.missing(*asked)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "not on the PATH of n1, n2" in found.note
    assert "not_promised" in found.note
    assert found.expected is not None


@pytest.mark.parametrize(
    ("starters", "job", "first"),
    [
        (("srun", "mpirun"), "7", "srun --overlap --nodes=3 --ntasks=24 --ntasks-per-node=8"),
        (("srun", "mpirun"), "", "mpirun -np 24 --host n0:8,n1:8,n2:8"),
        (("mpirun",), "7", "mpirun -np 24"),
        ((), "", ""),
    ],
)
def test_ranks_are_started_by_what_the_first_node_has(
    nodes: Local,
    starters: tuple[str, ...],
    job: str,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = nodes.directory / "bin"
    programs.mkdir()
    for name in ("sh", "env"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    for name, value in (("SLURM_JOB_ID", job), ("PATH", str(programs))):
        monkeypatch.setenv(name, value)
    for starter in starters:
        program(nodes.directory, starter, "#!/bin/sh\necho $0 no table\n")
    run = nccl_tests.run(nodes, "all_reduce", nccl_tests.DEFAULT, BUSBW, 8)
    assert " ".join(run.argv).startswith(first)
    assert run.why
    assert ("mpirun is on the PATH of n0: install" in run.why) == (not starters)


@pytest.mark.parametrize(
    "case",
    [
        ({}, Verdict.PASS, "each the median of 1 cycle,"),
        ({"SHORT": "1"}, Verdict.PASS, "each the median of 1 cycle,"),
        ({"WRONG": "5"}, Verdict.FAIL, ""),
        ({"WRONG": "5", "SHORT": "1"}, Verdict.FAIL, ""),
        ({"WRONG": "5", "STATUS": "1"}, Verdict.FAIL, ""),
        ({"STATUS": "1"}, Verdict.INCONCLUSIVE, "aborted: srun: error: n1: task 3: Exited"),
        ({"CUT": "1"}, Verdict.INCONCLUSIVE, "aborted: Test NCCL failure"),
        ({"LAST": "22"}, Verdict.INCONCLUSIVE, "ran over 23 of 24 ranks"),
        ({"SPREAD": "0"}, Verdict.INCONCLUSIVE, "ran on 1 of 3 nodes (n0)"),
        (
            {"COMMAND": "sh -c 'exec sleep 9' {program}"},
            Verdict.INCONCLUSIVE,
            "did not end within 0.5 s",
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
    for name, value in (
        {"WRONG": "0", "LAST": "23", "SPREAD": "1", "CUT": "", "SHORT": "", "STATUS": ""} | env
    ).items():
        monkeypatch.setenv(name, value)
    promise = NcclTestsPromise.model_validate(
        {
            "command": env.get("COMMAND", "{program} -np {ranks} -b {from} -e {to} --host {hosts}"),
            "directory": str(nodes.directory),
            "limit": "500 ms" if "COMMAND" in env else "20 s",
        }
    )
    line = Platform(fabric.kind, fabric.line_rate_bits_s, 8, 8)
    runs = nccl_tests.run_until_decided(nodes, "all_reduce", promise, BUSBW, 8, line)
    assert len(runs) == (1 if runs[-1].why else 3)
    if "COMMAND" not in env:
        assert runs[-1].argv[1:] == (
            *("-np", "24", "-b", str(1 << 30), "-e", str(4 << 30)),
            *("--host", "n0:8,n1:8,n2:8"),
        )
    busbw, wrong = nccl_tests.judge(runs, line, BUSBW)
    assert busbw.name == "nccl-tests all_reduce 4 GiB busbw"
    assert {busbw.verdict, wrong.verdict} == (
        {Verdict.PASS, Verdict.FAIL} if verdict is Verdict.FAIL else {verdict}
    )
    assert words in busbw.note
    if verdict is Verdict.INCONCLUSIVE:
        assert wrong.culprit is None
    if verdict is Verdict.FAIL:
        assert (wrong.value, wrong.culprit) == (5 * len(runs), None)  # a value is no culprit
        assert wrong.note.startswith(f"{5 * len(runs)} of 1073741820 B")


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


def cycles_of(*busbw: float | None) -> NcclRun:
    rows = tuple(NcclTestsRow(4 << 30, Timing(one, 0)) for one in busbw)
    return NcclRun("all_reduce", 2, 8, ("x",), "", NcclTest(rows=rows), "")


@pytest.mark.parametrize(
    ("runs", "value", "verdict", "words"),
    [
        ([(390.0,), (310.0,), (380.0,)], 358.2, Verdict.INCONCLUSIVE, "undecided: the bound is"),
        (
            [(390.0, 10.0, 390.1), (389.0,), (390.5,)],
            389.8,
            Verdict.PASS,
            "detection limit 8.15 % less",
        ),
        ([(300.0, 301.0), (300.0,), (301.0,)], 300.5, Verdict.FAIL, "mean of 3 runs"),
        ([(390.0, 390.0, 390.0)], 390.0, Verdict.PASS, "one run, so ± 5%"),
        ([(360.0,)], 360.0, Verdict.INCONCLUSIVE, "undecided: the bound is"),
        ([(330.0,)], 330.0, Verdict.FAIL, "one run, so ± 5%"),
        ([(390.0,), (390.0, None)], None, Verdict.INCONCLUSIVE, "a cycle without a rate"),
        ([(390.0,), ()], None, Verdict.INCONCLUSIVE, "no row of that size"),
    ],
)
def test_each_run_counts_by_the_median_of_its_cycles(
    fabric: Fabric,
    runs: list[tuple[float | None, ...]],
    value: float | None,
    verdict: Verdict,
    words: str,
) -> None:
    line = Platform(fabric.kind, fabric.line_rate_bits_s, 8, 8)
    [busbw, _] = nccl_tests.judge([cycles_of(*cycles) for cycles in runs], line, BUSBW)
    assert busbw.verdict is verdict, str(busbw)
    assert busbw.value == (value and pytest.approx(value, abs=0.1))
    assert words in str(busbw)


@pytest.mark.parametrize(
    ("rates", "runs"), [([390.0], 3), ([380.0, 384.0, 379.0, 384.0], 4), ([340.0, 400.0], 12)]
)
def test_a_program_is_run_until_its_busbw_is_decided(
    nodes: Local, fabric: Fabric, rates: list[float], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is 364 GB/s; the rates come in turn."""
    made = (cycles_of(rate) for rate in cycle(rates))
    monkeypatch.setattr(nccl_tests, "run", lambda *_: next(made))
    line = Platform(fabric.kind, fabric.line_rate_bits_s, 8, 8)
    found = nccl_tests.run_until_decided(nodes, "all_reduce", nccl_tests.DEFAULT, BUSBW, 8, line)
    assert len(found) == runs


def test_a_run_that_cannot_be_used_is_the_last(
    nodes: Local, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter((cycles_of(390.0), replace(cycles_of(390.0), why="it hung")))
    monkeypatch.setattr(nccl_tests, "run", lambda *_: next(made))
    line = Platform(fabric.kind, fabric.line_rate_bits_s, 8, 8)
    found = nccl_tests.run_until_decided(nodes, "all_reduce", nccl_tests.DEFAULT, BUSBW, 8, line)
    assert [one.why for one in found] == ["", "it hung"]


def test_cycles_with_equal_rates_are_separate() -> None:
    """A line that a scheduler printed twice counts once; separate cycles differ in their times."""
    row = " 4294967296 1 float sum -1 15000.{} 286.3 381.7 0 15000.2 286.3 381.7 0\n"
    text = _HEAD + row.format(1) + f"[1,0]<stdout>:{row.format(1)}" + row.format(2)
    [test] = read_nccl_tests(text)
    assert [found.out_of_place.busbw_gbytes_s for found in test.rows] == [381.7, 381.7]


@pytest.mark.parametrize(
    ("there", "asked", "found"),
    [
        (1 << 30, 1 << 30, True),
        ((1 << 30) - 4, 1 << 30, True),  # rounded down for 24 ranks
        ((1 << 30) - 2047, 1 << 30, True),
        (int(0.9 * (1 << 30)), 1 << 30, False),  # the command uses other steps
        ((1 << 29) + 1, 1 << 30, False),
        ((1 << 30) + 1, 1 << 30, False),
    ],
)
def test_a_row_of_another_size_is_none(there: int, asked: int, found: bool) -> None:
    test = NcclTest(rows=(NcclTestsRow(there, Timing(1.0, 0)),))
    run = NcclRun("all_gather", 3, 8, ("x",), "", test, "")
    assert run.cycles(asked) == ((1.0,) if found else ())


_ROW = " 4294967296 1 float sum -1 15000.1 286.3 381.7 {} 15000.2 286.3 381.7 {}\n"
_HEAD = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"


@pytest.mark.parametrize(
    ("output", "verdict", "words"),
    [
        (_ROW.format(0, 0) + "# Out of bounds values : 0 OK\n", Verdict.PASS, ""),
        (_ROW.format(0, "N/A") + "# Out of bounds values : 0 OK\n", Verdict.PASS, ""),
        (_ROW.format(3, 2), Verdict.FAIL, "cut off after 4294967296 bytes"),
        (_ROW.format(3, 2) + "Test NCCL failure common.cu:1\n", Verdict.FAIL, "aborted"),
        (_ROW.format("N/A", "N/A") + "# Out of bounds values : 0 OK\n", None, "not checked"),
        (_ROW.format(0, 0), None, "cut off"),
    ],
)
def test_wrong_values_fail_however_the_program_ended(
    fabric: Fabric, output: str, verdict: Verdict | None, words: str
) -> None:
    [test] = read_nccl_tests(_HEAD + output)
    run = NcclRun("all_reduce", 2, 8, ("x",), output, test, test.why_incomplete or "")
    _, wrong = nccl_tests.judge([run], Platform(fabric.kind, 400 * 10**9, 8, 8), BUSBW)
    assert wrong.verdict is (verdict or Verdict.INCONCLUSIVE)
    assert words in wrong.note
    assert verdict is not Verdict.FAIL or "5 of 4 GiB" in wrong.note
