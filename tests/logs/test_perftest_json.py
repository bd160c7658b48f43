"""perftest's --out_json: the older form without quotes, and JSON, in either unit of rates."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.logs.perftest import read_perftests

INFO = {"test": "RDMA_Write BW Test", "Dual_port": "OFF", "Device": "mlx5_0", "Mtu": 4096}
RATE = {"MsgSize": 1 << 20, "n_iterations": 5000, "BW_peak": 0.0, "BW_average": 392.6}
RATE |= {"MsgRate": 0.046802}
MIB = RATE | {"BW_average": 46801.7}
LATENCY = {"MsgSize": 2, "n_iterations": 1000, "t_min": 1.9, "t_max": 9.1, "t_typical": 2.05}
LATENCY |= {"t_avg": 2.1, "t_stdev": 0.1, "percentile_99": 2.4, "percentile_99.9": 3.1}


def new(results: object, test: str = "RDMA_Write BW Test", indent: int | None = None) -> str:
    return json.dumps({"test_info": INFO | {"test": test}, "results": results}, indent=indent)


def old(*results: dict[str, float], test: str = "RDMA_Write_BW_Test") -> str:
    def lines(pairs: dict[str, object]) -> str:
        return "".join(f"{key}: {value},\n" for key, value in pairs.items())

    info = lines({"test": test, "Device": '"mlx5_0"', "TX_depth ": 128, "Mtu": "4096"})
    rows = "".join(lines({**one}) for one in results)
    return f"{{\ntest_info: {{\n{info}}},\nresults: {{\n{rows}}}\n}}\n"


@pytest.mark.parametrize(
    ("text", "program", "rates", "latencies"),
    [
        (new(RATE), "ib_write_bw", {1 << 20: 392.6}, {}),
        (new(RATE, indent=4), "ib_write_bw", {1 << 20: 392.6}, {}),
        (new(MIB), "ib_write_bw", {1 << 20: 392.6}, {}),
        (old(RATE), "ib_write_bw", {1 << 20: 392.6}, {}),
        (old(MIB), "ib_write_bw", {1 << 20: 392.6}, {}),
        (new([RATE, RATE | {"MsgSize": 1 << 21, "MsgRate": 0.023401}]), "ib_write_bw", None, {}),
        (old(RATE, RATE | {"MsgSize": 1 << 21, "MsgRate": 0.023401}), "ib_write_bw", None, {}),
        (new(RATE | {"MsgRate": 0.0}), "ib_write_bw", {1 << 20: None}, {}),  # of which unit?
        (new(RATE, "Send BW Test"), "ib_send_bw", {1 << 20: 392.6}, {}),
        (new(LATENCY, "RDMA_Write Latency Test"), "ib_write_lat", {}, {2: 2.05}),
        (old(LATENCY, test="RDMA_Write_Latency_Test"), "ib_write_lat", {}, {2: 2.05}),
        (new({"MsgSize": 2, "avg_lat": 2.2}, "Send Latency Test"), "ib_send_lat", {}, {2: 2.2}),
    ],
)
def test_results(
    text: str,
    program: str,
    rates: dict[int, float | None] | None,
    latencies: dict[int, float | None],
) -> None:
    for prefix in ("", "n0: ", "[1,0]<stdout>:", "\x1b[32m"):
        [found] = read_perftests("".join(f"{prefix}{line}\r\n" for line in text.splitlines()))
        measured = {
            size: rate and pytest.approx(rate, rel=1e-3) for size, rate in (rates or {}).items()
        }
        assert (found.program, found.bidirectional, found.why_incomplete) == (program, False, None)
        assert dict(found.rates_gbits_s) == (
            measured
            if rates is not None
            else {1 << 20: pytest.approx(392.6, rel=1e-3), 1 << 21: pytest.approx(392.6, rel=1e-3)}
        )
        assert dict(found.typical_us) == latencies


def test_both_directions_and_several_runs() -> None:
    both = RATE | {"BW_average": 780.0, "MsgRate": 0.092983}
    text = new(both, "RDMA_Write Bidirectional BW Test") + old(RATE)
    assert [one.bidirectional for one in read_perftests(text)] == [True, False]


@pytest.mark.parametrize("text", [new(RATE)[:-2], old(RATE)[:-4], new(RATE)[:60]])
def test_a_file_that_is_cut_off(text: str) -> None:
    assert all(one.why_incomplete for one in read_perftests(text))


@given(st.text(max_size=80))
def test_any_text_is_read(text: str) -> None:
    read_perftests(f"{{test_info: {{ {text} results: {{ MsgSize: {text}")
