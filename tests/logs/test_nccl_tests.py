# ruff: noqa: E501  tables are as wide as they are printed
"""nccl-tests tables: versions, prefixes, aborts, and text that only resembles results."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.logs.nccl_tests import NcclTest, NcclTestsRow, Timing, read_nccl_tests

DEVICES = "\n".join(
    f"#  Rank {rank:2d} Group  0 Pid  {4100 + rank} on  hall3-{rank // 2} device  {rank % 2} [0x1b]"
    " NVIDIA H100 80GB HBM3"
    for rank in range(4)
)
CURRENT = f"""\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
{DEVICES}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    61.25   17.12   25.68      0    60.91   17.21   25.82      0
     8388608       2097152     float     sum      -1   141.70   59.20   88.80      0   140.02   59.91   89.86      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 57.5400
#
# Collective test concluded: all_reduce_perf
"""
OLDER = """\
# nThread 1 nGpus 2 minBytes 1024 maxBytes 2048 step: 1024(bytes) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   7001 on      build device  0 [0x04] Tesla V100-SXM2-16GB
#   Rank  1 Pid   7001 on      build device  1 [0x06] Tesla V100-SXM2-16GB
#
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum    12.10    0.08    0.08  2e-07    11.90    0.09    0.09  1e-07
        2048           512     float     sum    12.90    0.16    0.16  0e+00    12.50    0.16    0.16  0e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.1225
#
"""
GATHER = """\
#       size         count      type     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     4194304        131072     float    88.10   47.61   44.63      0    87.90   47.72   44.74    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 44.6850
"""


def one(text: str | bytes) -> NcclTest:
    [found] = read_nccl_tests(text)
    return found


def complete(test: NcclTest) -> bool:
    return test.why_incomplete is None


def test_a_current_table() -> None:
    found = one(CURRENT)
    assert complete(found)
    assert (found.program, found.ranks, found.groups) == ("all_reduce_perf", 4, 1)
    assert found.hosts == ("hall3-0", "hall3-1")
    assert (found.validated, found.out_of_bounds, found.wrong) == (True, 0, 0)
    assert found.rows[1] == NcclTestsRow(8388608, Timing(88.8, 0), Timing(89.86, 0))


def test_an_older_table_counts_errors_as_deviations() -> None:
    found = one(OLDER)
    assert complete(found)
    assert (found.ranks, found.hosts) == (2, ("build",))
    assert found.rows[0].out_of_place == Timing(0.08, None, 2e-07)
    assert (found.out_of_bounds, found.wrong) == (0, 0)
    unchecked = OLDER.replace("validation: 1", "validation: 0")
    assert one(unchecked).wrong is None


def test_missing_columns_and_cells_without_a_value() -> None:
    [row] = one(GATHER).rows
    assert row.in_place == Timing(44.74, None)
    assert one(GATHER).wrong == 0
    [row] = one(GATHER.replace("   44.63", "  -44.63")).rows
    assert row.out_of_place.busbw_gbytes_s is None


def test_wrong_values_are_counted() -> None:
    text = CURRENT.replace("88.80      0", "88.80     17").replace("0 OK", "17 FAILED")
    assert one(text).wrong == 17
    unchecked = CURRENT.replace(" 0   ", " N/A ").replace("  0\n", "  N/A\n")
    assert one(unchecked).wrong is None
    assert one(CURRENT.replace("validation: 1", "validation: 0")).wrong is None
    assert one(CURRENT.replace("0 OK", "0 FAILED")).wrong is None


@pytest.mark.parametrize(
    "prefix",
    [
        *("0: ", " 3: ", "[1,0]<stdout>:", "[1,0]<stdout>: ", "[rank0]: "),
        *("2026-11-21T03:00:00.123Z ", "2026-11-21 03:00:00,123 ", "worker-0: "),
        *("[pod/launcher-x7/main] ", "\x1b[36m", "2026-11-21T03:00:00.123456789Z stdout F "),
        *("Sat Nov 21 03:00:00 2026<stdout>:", "Sat Nov 21 03:00:00 2026[1,0]<stdout>:"),
        *("worker-0  | ", "launcher-x7 main ", "10.0.0.3: ", "[hall3-0:0] "),
        "0: 2026-01-01 00:00:00,000 INFO ",
    ],
)
def test_any_prefix_of_lines_is_ignored(prefix: str) -> None:
    found, expected = one("".join(f"{prefix}{x}\n" for x in CURRENT.splitlines())), one(CURRENT)
    assert (found.rows, found.ranks, found.hosts) == (expected.rows, expected.ranks, expected.hosts)
    assert (complete(found), found.wrong) == (True, 0)


def test_doubled_and_foreign_lines_change_nothing() -> None:
    doubled = "\n".join(f"{line}\n{line}" for line in CURRENT.splitlines())
    assert one(doubled) == one(CURRENT)
    noise = CURRENT.replace("#\n", "#\nhall3-0:4100:4100 [0] NCCL INFO Using network IB\n")
    assert one(noise) == one(CURRENT)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hall3-0: Test NCCL failure common.cu:1005 'unhandled system error'", "Test NCCL failure"),
        ("hall3-1: Test CUDA failure common.cu:730 'out of memory'", "Test CUDA failure"),
        ("srun: error: hall3-1: task 3: Segmentation fault", "Segmentation fault"),
        (
            "slurmstepd: error: *** STEP 7.0 ON hall3-0 CANCELLED AT 2026-11-21T03:00 ***",
            "CANCELLED",
        ),
        ("mpirun noticed that process rank 3 with PID 0 exited on signal 9 (Killed).", "mpirun"),
        ("all_reduce_perf: symbol lookup error: undefined symbol: ncclMemAlloc", "symbol lookup"),
    ],
)
def test_an_aborted_table_is_not_complete(line: str, why: str) -> None:
    found = one(CURRENT.partition("     8388608")[0] + line + "\n")
    assert not complete(found)
    assert why in str(found.why_incomplete)
    assert len(found.rows) == 1
    # Even with all of its closing lines.
    assert not complete(one(CURRENT.replace("# Out of", f"{line}\n# Out of")))


def test_a_table_that_was_cut_off_is_not_complete() -> None:
    last = CURRENT.index("# Out of")
    for end in range(0, last + len("# Out of bounds values : 0 O"), 11):
        for found in read_nccl_tests(CURRENT[:end]):
            assert not complete(found)
            assert set(found.rows) <= set(one(CURRENT).rows)
    assert "cut off after 8388608 bytes" in str(one(CURRENT[:last]).why_incomplete)
    assert one(CURRENT.partition("     1048576")[0]).why_incomplete == "no row of results"


_CLOSING = (
    "# Out of bounds values : 0 OK\n",
    "# Avg bus bandwidth    : 57.5400\n",
    "# Avg bus bandwidth    : 57.5400 FAILED\n",  # below a bound set in its environment
    "#\n# Collective test concluded: all_reduce_perf\n",
)


@pytest.mark.parametrize("table", [CURRENT, OLDER, GATHER])
def test_any_closing_line_closes_the_table(table: str) -> None:
    head = table.partition("# Out of")[0]
    assert not complete(one(head))
    for lines in (c for n in (1, 2, 3) for c in combinations(_CLOSING, n)):
        found = one(head + "".join(lines))
        assert (complete(found), found.rows) == (True, one(table).rows), lines
        assert len(read_nccl_tests(head + "".join(lines) + table)) == 2, lines


EXITS = (
    "srun: error: hall3-0: task 0: Exited with exit code 1",
    "mpirun detected that one or more processes exited with non-zero status",
    "prterun noticed that process rank 0 exited on signal 0",
    "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
)
WRONG = (
    CURRENT.replace("88.80      0", "88.80     17").replace("0 OK", "17 FAILED"),
    CURRENT.replace("89.86      0", "89.86     17").replace("0 OK", "17 FAILED"),
    CURRENT.replace("88.80      0", "88.80     17")
    .replace("0 OK", "17 FAILED")
    .partition("# Avg")[0],
)


@pytest.mark.parametrize(
    ("table", "ending"),
    [*((WRONG[0], ending) for ending in EXITS), *((t, EXITS[0]) for t in WRONG[1:])],
)
def test_an_exit_status_after_wrong_results_is_no_abort(table: str, ending: str) -> None:
    found = one(f"{table}\n{ending}\n")
    assert (complete(found), found.wrong, found.wrong_by_size) == (True, 17, {8388608: 17})
    # Before the closing lines, or after correct results, the same status is an abort.
    assert not complete(one(table.replace("# Out of", f"{ending}\n# Out of")))
    assert not complete(one(f"{CURRENT}\n{ending}\n"))
    # So is any other error, in any place.
    assert not complete(one(f"{table}\nhall3-1: Test NCCL failure common.cu:1\n{ending}\n"))


def test_wrong_values_before_an_abort_are_counted() -> None:
    cut = WRONG[0].partition("# Out of")[0] + "hall3-1: Test CUDA failure common.cu:730\n"
    found = one(cut)
    assert (complete(found), found.wrong, found.wrong_by_size) == (False, 17, {8388608: 17})
    assert one(CURRENT.replace("0 OK", "9 FAILED")).wrong_by_size == {}  # of no known size


def test_outputs_of_independent_runs_are_separate() -> None:
    alone = CURRENT.replace("Rank  1", "Rank  0").replace("Rank  3", "Rank  2")
    found = one(alone)
    assert found.separate_runs
    assert "without MPI" in str(found.why_incomplete)
    split = CURRENT.replace("Rank  2 Group  0", "Rank  0 Group  1").replace(
        "Rank  3 Group  0", "Rank  1 Group  1"
    )
    assert (one(split).ranks, one(split).groups, one(split).separate_runs) == (4, 2, False)


def test_several_tests_in_one_output() -> None:
    second = CURRENT.replace("all_reduce_perf", "all_gather_perf")
    assert [t.program for t in read_nccl_tests(CURRENT + second)] == [
        "all_reduce_perf",
        "all_gather_perf",
    ]
    assert [len(t.rows) for t in read_nccl_tests(OLDER + OLDER.replace("7001", "7002"))] == [2, 2]
    assert read_nccl_tests("nothing of the kind\n 1 2 3\n") == ()


def test_the_first_version_had_other_names() -> None:
    text = """\
nThread 1 nGpus 8 minBytes 1024 maxBytes 1024 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 1
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
        1024           256   float     sum    0.051   0.02   0.04    1e-07    0.052   0.02   0.04    1e-07
 Out of bounds values : 248 FAILED
 Avg bus bandwidth    : 0.04
"""
    found = one(text)
    assert found.rows[0].size_bytes == 1024
    assert (found.out_of_bounds, found.wrong) == (248, 248)


@given(st.one_of(st.text(), st.binary()))
def test_any_text_is_read(text: str | bytes) -> None:
    read_nccl_tests(text)


@given(st.data())
def test_damage_invents_no_rows(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(CURRENT)))
    length = data.draw(st.integers(1, 40))
    for found in read_nccl_tests(CURRENT[:at] + "\n" + CURRENT[at + length :]):
        assert len(found.rows) <= 2


def test_a_version_line_above_the_first_table_belongs_to_it() -> None:
    output = "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809\n" + CURRENT
    found = one(output)
    assert (found.version, found.program, complete(found)) == ("2.17.6", "all_reduce_perf", True)
    assert len(read_nccl_tests(output + output)) == 2


def test_rccl_tests_names_its_version_without_a_hash() -> None:
    assert one(CURRENT.replace("# Using", "rccl-tests: Version develop:64\n# Using")).version == (
        "develop:64"
    )


def test_columns_of_time_stamps_iterations_and_the_hosts_time() -> None:
    def with_last(heading: str, cell: str) -> str:
        lines = CURRENT.replace("busbw #wrong\n", f"busbw #wrong {heading}\n").split("\n")
        return "\n".join(f"{x}  {cell}" if x.strip()[:1].isdigit() else x for x in lines)

    plain = one(CURRENT).rows
    assert one(with_last("          timestamp", "2026-01-02 03:04:05")).rows == plain
    assert one(with_last("#iters", "20")).rows == plain
    host = CURRENT.replace("    time   algbw", " cputime   algbw")
    assert one(host).rows == plain


def test_an_error_after_its_host_name() -> None:
    cut = CURRENT.partition("     8388608")[0]
    found = one(f"{cut} .. hall3-1 pid 4102: Test failure common.cu:600\n")
    assert "Test failure" in str(found.why_incomplete)


def test_a_blank_operation() -> None:
    blank = CURRENT.replace("   float     sum ", "   float         ")
    assert one(blank).rows == one(CURRENT).rows


def test_a_rank_before_each_part_of_a_row() -> None:
    parts = CURRENT.replace("-1    61.25", "-1[0]    61.25").replace("0    60.91", "0[0]    60.91")
    found = one("".join(f"[0] {line}\n" for line in parts.splitlines()))
    assert found.rows == one(CURRENT).rows
    assert found.wrong == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("8388608       2097152", "88608       2097152"),  # the line was split
        ("float     sum      -1   141.70", "float  7  sum      -1   141.70"),
        ("140.02   59.91   89.86      0", "140.02   59.91   89.86   #  0"),
        ("141.70   59.20   88.80", "141.70   59,20   88,80"),
        ("59.91   89.86", "59.91   89. 86"),
        ("   89.86      0\n", "   89.86\n"),
    ],
)
def test_a_row_whose_cells_do_not_match_their_columns_is_ignored(before: str, after: str) -> None:
    assert before in CURRENT
    found = one(CURRENT.replace(before, after))
    assert found.rows == one(CURRENT).rows[:1]
    assert found.wrong == 0


def test_cells_of_a_truncated_row_are_not_mixed_up() -> None:
    row = next(line for line in CURRENT.splitlines() if line.strip().startswith("8388608"))
    cut = CURRENT.replace(row, f"worker 7 {row.rsplit(maxsplit=1)[0]}")
    assert one(cut).rows == one(CURRENT).rows[:1]


LOG = "hall3-0:4100:4171 [0] NCCL INFO Connected all trees\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("-1   141.70", f"-1{LOG}{LOG}   141.70"),
        ("-1   141.70", f"-1[2026-01-02 03:04:05] {LOG}   141.70"),
        ("-1   141.70", "-1\nhall3-0:4100:4171 [0] net.cc:7 NCCL WARN retrying\n   141.70"),
        ("0   140.02", f"0{LOG}   140.02"),
        ("-1   141.70   59.20   88.80      0", f"-1{LOG}  141.70   59.20   88.80      0{LOG}"),
        ("89.86      0\n", f"89.86      0{LOG}"),
    ],
)
def test_a_row_that_the_log_of_nccl_interrupts_is_read(before: str, after: str) -> None:
    """NCCL connects its ranks while the first sizes of an algorithm run."""
    assert before in CURRENT
    text = CURRENT.replace(before, after)
    for prefix in ("", "0: ", "[1,0]<stdout>:"):
        assert one("".join(f"{prefix}{x}\n" for x in text.splitlines())) == one(CURRENT), prefix
    assert one(text.replace("59.91", "")).rows == one(CURRENT).rows[:1]


@pytest.mark.parametrize(
    ("before", "after"),
    [("algbw   busbw #wrong     time", "algbw   #wrong     time"), ("   count      type", "")],
)
def test_a_damaged_heading_is_ignored(before: str, after: str) -> None:
    found = one(CURRENT.replace(before, after))
    assert found.why_incomplete == "no row of results"


def test_errors_with_asterisks() -> None:
    marked = CURRENT.replace("88.80      0", "88.80     4*").replace("0 OK", "4 FAILED")
    found = one(marked)
    assert (complete(found), found.wrong, found.wrong_by_size) == (True, 4, {8388608: 4})
    old = one(OLDER.replace("0.08  2e-07", "0.08 2e+00*").replace("0 OK", "1 FAILED"))
    assert (old.rows[0].out_of_place.deviation, old.wrong) == (2.0, 1)
    assert [row.size_bytes for row in old.rows] == [1024, 2048]


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: couldn't chdir to `/home/eve': No such file or directory: going to /tmp instead",
        "slurmstepd-elm4: error: Unable to create TMPDIR [/scratch/7]: Permission denied",
        "slurmstepd: error: TMPDIR [/local/tmp] is not writeable",
        "slurmstepd: error: Setting TMPDIR to /tmp",
    ],
)
def test_a_working_directory_warning_is_no_abort(line: str) -> None:
    for text in (f"{line}\n{CURRENT}", f"{CURRENT}\n{line}\n"):
        assert complete(one(text))


COMMAND = "$ mpirun -np 4 -x NCCL_ALGO=Ring ./build/all_gather_perf -b 4M -e 8G -f 2\n"
INIT = (
    "elm0:7:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 4 cudaDev 0 - Init COMPLETE\n"
    "elm0:7:9 [0] NCCL INFO comm 0x6 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
)


def test_facts_of_the_lines_around_a_table() -> None:
    first, second = read_nccl_tests(f"{COMMAND}{INIT}{GATHER}\n$ all_reduce_perf -g 8\n{OLDER}")
    assert (first.program, first.ranks, first.nodes) == ("all_gather_perf", 4, 0)
    assert (second.program, second.ranks, second.nodes) == ("all_reduce_perf", 2, 1)
    assert (first.settings, second.settings) == ({"NCCL_ALGO": "Ring"}, {})
    assert (first.pins_ring, second.pins_ring) == (True, False)
    assert [one.nvls(across=False).used for one in (first, second)] == [False, None]
    assert second.rows[1].out_of_place.algbw_gbytes_s == 0.16
    assert second.rows[1].dtype == "float"
    assert one(CURRENT.replace(" float ", " f8e4m3 ")).nvls(across=True).used is False
    assert complete(first)
    logged = INIT.replace("nRanks 2 nNodes 1", "nRanks 16 nNodes 2")
    assert (one(f"{logged}{GATHER}").ranks, one(f"{logged}{GATHER}").nodes) == (16, 2)
