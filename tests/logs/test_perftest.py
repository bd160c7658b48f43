"""perftest's output: what was recorded, what newer versions print, and what is no table at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.logs.perftest import BwRow, read_perftest

RECORDED = Path(__file__).parents[2] / "fixtures/recordings/perftest"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "average_gbits_s", "peak_gbits_s"),
    [
        # MB/sec is MiB per second: 37.81 × 8 × 2^20 / 10^9
        ("write_bw.client", 0.3172, 0.4948),
        ("write_bw-gbits.client", 0.48, 0.51),
        ("write_bw-bidir-duration.client", 0.4817, None),  # no peak in duration mode
        ("send_bw.server", 0.2048, None),  # nor on the receiving side
        ("read_bw.client", 0.2944, 0.5069),
    ],
)
def test_rates_are_bits_per_second_whatever_the_unit(
    name: str, average_gbits_s: float, peak_gbits_s: float | None
) -> None:
    found = read_perftest(recorded(name))
    assert found.complete
    [row] = found.bandwidths
    assert row.size_bytes == 65536
    assert row.average_gbits_s == pytest.approx(average_gbits_s, rel=1e-3)
    assert row.peak_gbits_s == (peak_gbits_s and pytest.approx(peak_gbits_s, rel=1e-3))
    # An independent check of the unit: messages × bytes.
    assert row.message_rate_mpps is not None
    assert row.message_rate_mpps * 65536 * 8 / 1000 == pytest.approx(average_gbits_s, rel=0.01)


def test_what_the_test_ran_on_is_read() -> None:
    found = read_perftest(recorded("write_bw-bidir-duration.client"))
    assert (found.test, found.bidirectional) == ("RDMA_Write Bidirectional BW Test", True)
    assert (found.device, found.link_type, found.gid_index) == ("rxe0", "Ethernet", 1)
    assert found.mtu_bytes == 1024
    assert found.settings["Transport type"] == "IB"


def test_all_sizes_and_latencies() -> None:
    sizes = [
        row.size_bytes for row in read_perftest(recorded("write_bw-all-sizes.client")).bandwidths
    ]
    assert sizes == [2**power for power in range(1, 24)]
    [row] = read_perftest(recorded("write_lat.client")).latencies
    assert (row.size_bytes, row.iterations) == (2, 100)
    assert (row.min_us, row.typical_us, row.average_us) == (12.06, 12.38, 907.02)
    assert (row.max_us, row.stdev_us, row.p99_us, row.p999_us) == (
        4058.35,
        1605.45,
        4058.35,
        4058.35,
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("err-port-down.client", "Port number 1 state is Down"),
        ("err-no-device.client", "IB device mlx5_9 not found"),
        ("err-no-server.client", "Couldn't connect to"),
        ("err-server-killed.client", "Couldn't read reports"),
        ("err-server-killed.server", "no row of results"),
        ("err-mismatch-size.client", "Completion with error"),
        ("err-version-help.server", "no row of results"),
    ],
)
def test_a_failed_run_is_never_complete(name: str, why: str) -> None:
    found = read_perftest(recorded(name))
    assert not found.complete
    assert why in str(found.why_incomplete)


NEWER = """\
 WARNING: BW peak won't be measured in this run.
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_4
 Number of qps   : 4\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : IB
---------------------------------------------------------------------------------------
 local address: LID 0x2a QPN 0x0081 PSN 0x11ab07
 remote address: LID 0x31 QPN 0x0081 PSN 0x9d02f4
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 1048576    220431           0.00               46093.75             0.046094
---------------------------------------------------------------------------------------
"""


def test_newer_heads_and_warnings() -> None:
    found = read_perftest(NEWER)
    assert found.complete
    assert (found.device, found.link_type, found.gid_index) == ("mlx5_4", "IB", None)
    [row] = found.bandwidths
    assert row == BwRow(1048576, 220431, row.average_gbits_s, None, 0.046094)
    assert row.average_gbits_s == pytest.approx(386.66, rel=1e-4)


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "\x1b[32m", "[rank0]: ", "node-3: "])
def test_a_schedulers_prefix_changes_nothing(prefix: str) -> None:
    text = recorded("write_bw.client")
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    put = (prefix + line for line in lines)
    assert read_perftest("\r\n".join(put)).bandwidths == read_perftest(text).bandwidths


def test_a_table_that_was_cut_off_is_not_complete() -> None:
    whole = recorded("write_bw-all-sizes.client").partition("# exit")[0].rstrip()
    for end in range(0, len(whole) - 90, 37):
        cut = read_perftest(whole[:end])
        assert not cut.complete
        assert all(row.size_bytes in {2**p for p in range(1, 24)} for row in cut.bandwidths)
    assert re.search("-{20}$", whole)


LAYOUTS: dict[str, Callable[[str], str]] = {
    "tabs as blanks": lambda text: text.expandtabs(8),
    "a tab as a blank": lambda text: text.replace("\t", " "),
    "one blank": lambda text: re.sub(r"[ \t]+", " ", text),
    "tabs lost": lambda text: re.sub(r"\t+", "  ", text),
    "no indent": lambda text: re.sub(r"(?m)^[ \t]+|[ \t]+$", "", text),
    "indented": lambda text: re.sub(r"(?m)^", "\t    ", text),
    "blanks of a browser": lambda text: text.replace(" ", "\u00a0"),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "doubled lines": lambda text: re.sub(r"(?m)^(.*\n)", r"\1\1", text),
    "doubled": lambda text: f"{text}\n{text}",
}
NAMES = tuple(sorted(path.stem for path in RECORDED.glob("*.txt") if "help" not in path.stem))
LATENCY_OF_A_DURATION = """\
                    RDMA_Write Latency Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
---------------------------------------------------------------------------------------
 #bytes        #iterations       t_avg[usec]    tps average
 64            912345          1.64   \t\t       304115.00
---------------------------------------------------------------------------------------
"""


@pytest.mark.parametrize("name", [*NAMES, "newer", "duration"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_reads_like_the_original(name: str, layout: str) -> None:
    text = {"newer": NEWER, "duration": LATENCY_OF_A_DURATION}.get(name) or recorded(name)
    expected = read_perftest(text)
    assert read_perftest(LAYOUTS[layout](text)) == expected
    if not name.startswith("err"):
        assert expected.complete
        assert expected.device in ("rxe0", "mlx5_4", "mlx5_0")
        assert expected.settings["Number of qps"] in ("1", "4")
        assert expected.settings["Transport type"] == "IB"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("err")])
@pytest.mark.parametrize("layout", ["as printed", *LAYOUTS])
def test_cut_output_is_not_complete(name: str, layout: str) -> None:
    """At the end, or through a row, as a narrow terminal does."""
    text = recorded(name).partition("# exit")[0].rstrip()
    text = text if layout.startswith("doubled") else LAYOUTS.get(layout, str)(text)
    whole = read_perftest(text)
    head = re.search(r"#bytes.*", text)
    assert head
    table = text[head.start() :].rstrip()
    end = text.rstrip().rindex("\n")  # of the rule under the table
    for cut in range(0, end, 41):
        found = read_perftest(text[:cut])
        assert not found.complete
        assert {row.size_bytes for row in found.bandwidths} <= {
            row.size_bytes for row in whole.bandwidths
        }
    last_row = table.rstrip().splitlines()[-2]
    fewer = last_row.rstrip().rsplit(maxsplit=1)[0]
    for row in (fewer, f"{last_row}  7", fewer.split()[0]):
        found = read_perftest(text.replace(last_row, row))
        assert found.why_incomplete == "a row of results is damaged"


@pytest.mark.parametrize(
    ("unit", "average_gbits_s"),
    [("Gb/sec", 96.5), ("MB/sec", 0.8095), ("MiB/sec", 0.8095), ("GB/sec", None), ("", None)],
)
def test_a_rate_of_an_unknown_unit_is_none(unit: str, average_gbits_s: float | None) -> None:
    text = NEWER.replace("MiB/sec", unit).replace("46093.75", "96.50")
    [row] = read_perftest(text).bandwidths
    assert row.average_gbits_s == (average_gbits_s and pytest.approx(average_gbits_s, rel=1e-3))


@pytest.mark.parametrize(
    "more",
    [
        "   CPU_Util[%]",
        "   BW Port1[Gb/sec]   MsgRate Port1[Mpps]   BW Port2[Gb/sec]   MsgRate Port2[Mpps]",
    ],
)
def test_more_columns(more: str) -> None:
    cells = "   1.5" * more.count("[")
    text = NEWER.replace("MsgRate[Mpps]", f"MsgRate[Mpps]{more}").replace(
        "0.046094", f"0.046094{cells}"
    )
    for layout in LAYOUTS.values():
        assert read_perftest(layout(text)).bandwidths == read_perftest(NEWER).bandwidths


@given(st.one_of(st.text(), st.binary()))
def test_any_text_is_read(text: str | bytes) -> None:
    read_perftest(text)


@given(st.data())
def test_a_damaged_table_is_read(data: st.DataObject) -> None:
    text = recorded("write_bw.client")
    at = data.draw(st.integers(0, len(text)))
    read_perftest(text[:at] + data.draw(st.text(max_size=20)) + text[at + 3 :])


@pytest.mark.parametrize(
    "prefix", ["hall1: ", "[1,0]<stdout>:", "worker-0  | ", "Sat Nov 21 03:00:0{} 2026<stdout>: "]
)
def test_whatever_words_stand_before_each_line(prefix: str) -> None:
    lines = [f"{prefix.format(i % 10)}{line}" for i, line in enumerate(NEWER.splitlines())]
    found, plain = read_perftest("\n".join(lines)), read_perftest(NEWER)
    assert found.complete
    assert (found.test, found.bandwidths) == (plain.test, plain.bandwidths)
    assert found.device == "mlx5_4"


@pytest.mark.parametrize("words", ["Post List ", "Bidirectional Post List "])
def test_titles_with_more_words(words: str) -> None:
    found = read_perftest(NEWER.replace("RDMA_Write BW", f"RDMA_Write {words}BW"))
    assert found.test == f"RDMA_Write {words}BW Test"
    assert found.bidirectional is words.startswith("Bidirectional")


def test_a_librarys_warning_is_no_fault() -> None:
    told = "libibverbs: Warning: couldn't load driver 'libother-rdmav34.so': no such file\n"
    assert read_perftest(told + NEWER).complete
