"""Results of nccl-tests and rccl-tests as JSON, composed after their writers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.logs.nccl_tests import NcclTest, read_nccl_tests


def block(busbw: float, wrong: float | None) -> dict[str, Any]:
    return {"time": 100.5, "alg_bw": busbw / 1.75, "bus_bw": busbw, "nwrong": wrong}


def file(*rows: dict[str, Any], okay: str = "true", count: int = 0, **more: Any) -> dict[str, Any]:
    """The file that `all_reduce_perf -J` writes on two nodes with four GPUs in each process."""
    devices = [
        {"rank": 4 * i, "group": 0, "pid": 7 + i, "hostname": f"elm{i}", "device": 0}
        for i in range(2)
    ]
    config = {"nthreads": 1, "ngpus": 4, "validation": 1, "devices": devices}
    return {
        "version": 1,
        "args": ["./build/all_reduce_perf", "-g", "4"],
        "nccl_version": 22809,
        "config": config,
        "results": list(rows),
        "out_of_bounds": {"count": count, "okay": okay},
        "average_bus_bandwidth": {"bandwidth": 18.3, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-11-28 03:04:05",
    } | more


def row(size: int, **blocks: Any) -> dict[str, Any]:
    return {
        "size": size,
        "count": size // 4,
        "type": "float",
        "redop": "sum",
        "root": "-1",
    } | blocks


ROWS = (
    row(1 << 20, out_of_place=block(18.2, 0.0), in_place=block(18.4, 0.0)),
    row(1 << 21, out_of_place=block(19.2, 0.0), in_place=block(19.4, 0.0)),
)


def rates(test: NcclTest) -> list[tuple[int, float | None, float | None]]:
    return [
        (
            one.size_bytes,
            one.out_of_place.busbw_gbytes_s,
            one.in_place.busbw_gbytes_s if one.in_place else None,
        )
        for one in test.rows
    ]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "around", ["{}", "# Writing JSON output to a.json\n{}\nelm0: done\n", "0: {}"]
)
def test_the_file_of_nccl_tests(indent: int | None, around: str) -> None:
    [test] = read_nccl_tests(around.replace("{}", json.dumps(file(*ROWS), indent=indent)))
    assert rates(test) == [(1 << 20, 18.2, 18.4), (1 << 21, 19.2, 19.4)]
    assert (test.program, test.ranks, test.hosts) == ("all_reduce_perf", 8, ("elm0", "elm1"))
    assert (test.validated, test.wrong, test.why_incomplete) == (True, 0, None)


def test_wrong_values_in_a_file() -> None:
    bad = row(1 << 20, out_of_place=block(18.2, 3.0), in_place=block(18.4, 0.0))
    [test] = read_nccl_tests(json.dumps(file(bad, ROWS[1], okay="false", count=3)))
    assert (test.wrong, test.wrong_by_size, test.failed) == (3, {1 << 20: 3}, True)
    unchecked = row(8, out_of_place=block(1.0, None), in_place=block(1.0, None))
    [test] = read_nccl_tests(json.dumps(file(unchecked)))
    assert test.wrong is None


def test_a_file_without_results_out_of_place() -> None:
    [test] = read_nccl_tests(json.dumps(file(row(8, out_of_place=None, in_place=block(1.5, 0.0)))))
    assert rates(test) == [(8, None, 1.5)]


def test_a_run_that_failed_has_no_rate() -> None:
    [test] = read_nccl_tests(json.dumps(file(errors=["unhandled system error"], okay="true")))
    assert test.why_incomplete == "aborted: unhandled system error"


def test_a_file_that_is_cut_off_is_incomplete() -> None:
    text = json.dumps(file(*ROWS))
    for end in (len(text) - 1, len(text) // 2):
        [test] = read_nccl_tests(text[:end])
        assert test.why_incomplete == "aborted: its JSON has no end"
    # Ended before the table was closed, by a writer that closes the braces.
    whole = file(*ROWS)
    del whole["average_bus_bandwidth"]
    [test] = read_nccl_tests(json.dumps(whole))
    assert str(test.why_incomplete).startswith("cut off after 2097152 bytes")


@pytest.mark.parametrize("key", ["errors", "error"])
def test_the_structured_output_of_forks(key: str) -> None:
    one = {
        "count": 262144,
        **{"redop": "sum", "root": "-1"},
        "oop_busbw": 18.2,
        f"oop_{key}": 3,
        "ip_busbw": 18.4,
        f"ip_{key}": "N/A",
    }
    output = {
        "identifier": "nccl-tests structured output",
        "version": "2.27.0",
        "benchmark": [{"1048576": one, "2097152": one | {f"oop_{key}": 0.0}}],
    }
    [test] = read_nccl_tests(f"NCCL version 2.27.0+cuda12.9\n{json.dumps(output)}\n")
    assert rates(test) == [(1 << 20, 18.2, 18.4), (1 << 21, 18.2, 18.4)]
    assert (test.wrong, test.wrong_by_size) == (3, {1 << 20: 3})
    assert {(one.reduces, one.root) for one in test.rows} == {(True, -1)}


@given(st.text(max_size=60), st.integers(0, 900), st.integers(0, 900))
def test_any_damage_is_read(noise: str, start: int, end: int) -> None:
    text = json.dumps(file(*ROWS))
    for test in read_nccl_tests(text[:start] + noise + text[end:]):
        assert all(one.size_bytes >= 0 for one in test.rows)


@pytest.mark.parametrize(
    "text",
    [
        '{"busBw": 1, "size": "x", "inPlace": []}',
        '[{"out_of_place": 1}]',
        '{"results": [{"size": 1}]}',
        '{"results": [], "config": {"devices": 8}, "errors": 2, "average_bus_bandwidth": 1}',
        '{"results": [], "config": {"devices": [{"rank": []}]}, "average_bus_bandwidth": 1}',
        '{"results": [], "args": [[]], "config": {"nthreads": {}}, "average_bus_bandwidth": 1}',
    ],
)
def test_other_json_has_no_rows(text: str) -> None:
    assert all(test.rows == () for test in read_nccl_tests(text))
