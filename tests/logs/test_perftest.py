"""perftest's output: recorded, of newer versions, and text that is no table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.logs.perftest import read_perftest

RECORDED = Path(__file__).parents[2] / "fixtures/recordings/perftest"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def rates(text: str | bytes) -> dict[int, float | None]:
    found = read_perftest(text)
    assert found.why_incomplete is None
    return dict(found.rates_gbits_s)


@pytest.mark.parametrize(
    ("name", "average_gbits_s"),
    [
        # MB/sec is MiB per second: 37.81 × 8 × 2^20 / 10^9
        ("write_bw.client", 0.3172),
        ("write_bw-gbits.client", 0.48),
        ("write_bw-bidir-duration.client", 0.4817),
        ("send_bw.server", 0.2048),
        ("read_bw.client", 0.2944),
    ],
)
def test_rates_are_bits_per_second_in_any_unit(name: str, average_gbits_s: float) -> None:
    assert rates(recorded(name)) == {65536: pytest.approx(average_gbits_s, rel=1e-3)}
    bidirectional = "bidir" in name
    assert read_perftest(recorded(name)).bidirectional is bidirectional


def test_all_sizes() -> None:
    assert list(rates(recorded("write_bw-all-sizes.client"))) == [2**n for n in range(1, 24)]


def test_latencies_are_no_rates() -> None:
    found = read_perftest(recorded("write_lat.client"))
    assert (found.rates_gbits_s, found.typical_us) == ((), ((2, 12.38),))
    assert found.why_incomplete is None


def test_a_latency_by_duration_is_the_mean() -> None:
    """Newer versions print no median here; warnings may come between the heading and its row."""
    heading = " #bytes        #iterations       t_avg[usec]    tps average\n"
    warning = (
        "Conflicting CPU frequency values detected: 917.2 != 2153.7. CPU Frequency is not max.\n"
    )
    row = " 2             62078352            2.42           413812.77\n"
    rule = "-" * 87
    assert read_perftest(heading + warning + row + rule).typical_us == ((2, 2.42),)
    assert read_perftest(heading + row).why_incomplete == "cut off: the table has no closing line"
    other = heading.replace("usec", "cycles")
    assert read_perftest(other + row + rule).typical_us == ((2, None),)


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
        ("roce-6.06/err-completion.client", "Completion with error at client"),
        ("roce-6.06/err-completion.server", "Couldn't read remote address"),
        ("roce-6.06/err-no-device.client", "IB device mlx5_9 not found"),
        ("roce-6.06/err-port-down.client", "Port number 1 state is Down"),
        ("roce-6.06/err-refused.client", "Couldn't connect to 10.78.0.2:18515"),
        ("iwarp-6.06/err-no-rdma_cm.client", "Failed to modify QP to RTS"),
        ("iwarp-6.06/err-no-rdma_cm.server", "Couldn't read remote address"),
        ("iwarp-6.06/err-server-killed.client", "Completion with error at client"),
        ("iwarp-6.06/err-server-killed.server", "no row of results"),
    ],
)
def test_a_failed_run_is_never_complete(name: str, why: str) -> None:
    assert why in str(read_perftest(recorded(name)).why_incomplete)


@pytest.mark.parametrize(
    ("name", "gbits_s"),
    [
        ("roce-6.06/write_bw", 0.03941),
        ("roce-6.06/write_bw-bidir", 0.030393),
        ("roce-6.06/write_bw-rdma_cm", 0.036874),
        ("roce-6.06/read_bw", 0.030528),
        ("iwarp-6.06/write_bw", 0.017184),
        ("iwarp-6.06/read_bw", 0.032943),
    ],
)
def test_both_sides_print_the_same_rate(name: str, gbits_s: float) -> None:
    for side in ("client", "server"):
        text = recorded(f"{name}.{side}")
        assert rates(text) == {65536: gbits_s}
        assert read_perftest(text).bidirectional is ("bidir" in name)


@pytest.mark.parametrize(("link", "us"), [("roce", 11596.65), ("iwarp", 13716.15)])
def test_latencies_of_a_newer_version(link: str, us: float) -> None:
    found = read_perftest(recorded(f"{link}-6.06/write_lat.client"))
    assert (found.typical_us, found.why_incomplete) == (((2, us),), None)


def test_a_newer_server_takes_the_size_of_its_client() -> None:
    for side in ("client", "server"):
        assert list(rates(recorded(f"roce-6.06/write_bw-other-size.{side}"))) == [32768]


def test_the_intervals_of_an_endless_run_are_results_of_their_own() -> None:
    text = recorded("roce-6.06/write_bw-intervals.client")
    found = read_perftest(text)
    assert [rate for _, rate in found.rates_gbits_s] == [0.038346, 0.039004, 0.021982, 0.0]
    # Its peer was ended.
    assert found.why_incomplete == "an endless run with an interval without traffic"
    lines = text.splitlines()
    rows = [i for i, line in enumerate(lines) if line.split()[:1] == ["65536"]]
    alive = read_perftest("\n".join(lines[: rows[1] + 1]))
    assert (alive.endless, alive.why_incomplete) == (True, None)
    assert [rate for _, rate in alive.rates_gbits_s] == [0.038346, 0.039004]
    one = read_perftest("\n".join(lines[: rows[0] + 1]))
    assert (one.endless, one.why_incomplete) == (False, "cut off: the table has no closing line")


def test_two_tables_of_one_size_are_no_endless_run() -> None:
    text = recorded("write_bw.client").partition("# exit")[0]
    cut = text.rstrip().rpartition("\n")[0]
    found = read_perftest(f"{text}\n{cut.replace('37.81', '36.81')}")
    assert (found.endless, found.closed) == (False, False)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (12, "did not acknowledge), syndrome 0x81"),
        (4, "local protection error"),
        (13, "RNR retry"),
        (10, "remote access error"),
        (77, "status 77, syndrome"),
    ],
)
def test_the_status_of_a_failed_request(status: int, words: str) -> None:
    head = NEWER.partition(" 1048576")[0]
    failed = f"  Failed status {status}: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n"
    end = "  Failed to complete run_iter_bw function successfully\n"
    for first in (" Completion with error at client\n", ""):
        why = read_perftest(head + first + failed + end).why_incomplete
        assert f"status {status}" in str(why)
        assert words in str(why)


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
    assert rates(NEWER) == {1048576: pytest.approx(386.66, rel=1e-4)}


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
NAMES = tuple(
    sorted(
        path.stem
        for path in RECORDED.glob("*.txt")
        if not {"help", "lat"} & set(re.split(r"[_.-]", path.stem))
    )
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_reads_like_the_original(layout: str) -> None:
    for name in [*NAMES, "newer"]:
        text = NEWER if name == "newer" else recorded(name)
        expected = read_perftest(text)
        assert read_perftest(LAYOUTS[layout](text)) == expected, name
        assert name.startswith("err") is (expected.why_incomplete is not None), name


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, "as printed") for name in NAMES if not name.startswith("err")),
        *(("write_bw.client", layout) for layout in LAYOUTS),
    ],
)
def test_cut_output_is_not_complete(name: str, layout: str) -> None:
    """Truncated at the end, or within rows, as a narrow terminal does."""
    text = recorded(name).partition("# exit")[0].rstrip()
    text = text if layout.startswith("doubled") else LAYOUTS.get(layout, str)(text)
    whole = read_perftest(text)
    head = re.search(r"#bytes.*", text)
    assert head
    table = text[head.start() :].rstrip()
    end = text.rstrip().rindex("\n")  # of the line under the table
    for cut in range(0, end, 41):
        found = read_perftest(text[:cut])
        assert found.why_incomplete
        assert {size for size, _ in found.rates_gbits_s} <= dict(whole.rates_gbits_s).keys()
    last_row = table.rstrip().splitlines()[-2]
    fewer = last_row.rstrip().rsplit(maxsplit=1)[0]
    for row in (fewer, f"{last_row}  7", fewer.split()[0]):
        found = read_perftest(text.replace(last_row, row))
        assert found.why_incomplete == "a row of results is damaged"


@pytest.mark.parametrize(
    ("unit", "cell", "average_gbits_s"),
    [
        ("Gb/sec", "96.50", 96.5),
        ("MB/sec", "96.50", 0.8095),
        ("MiB/sec", "96.50", 0.8095),
        *((unit, "96.50", None) for unit in ("GB/sec", "")),
        *(("MiB/sec", cell, None) for cell in ("-46093.75", "inf", "-nan", "46093,75")),
    ],
)
def test_a_rate_without_a_known_unit_or_a_number_is_ignored(
    unit: str, cell: str, average_gbits_s: float | None
) -> None:
    text = NEWER.replace("MiB/sec", unit).replace("46093.75", cell)
    expected = average_gbits_s and pytest.approx(average_gbits_s, rel=1e-3)
    assert rates(text) == {1048576: expected}


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
        assert rates(layout(text)) == rates(NEWER)


PREFIXES = (
    *("0: ", "[1,0]<stdout>:", "\x1b[32m", "[rank0]: ", "node-3: ", "worker-0  | "),
    "Sat Nov 21 03:00:0{} 2026<stdout>: ",
)


@given(st.one_of(st.text(), st.binary()))
def test_any_text_is_read(text: str | bytes) -> None:
    read_perftest(text)


@given(st.data())
def test_a_damaged_table_is_read(data: st.DataObject) -> None:
    text = recorded("write_bw.client")
    at = data.draw(st.integers(0, len(text)))
    read_perftest(text[:at] + data.draw(st.text(max_size=20)) + text[at + 3 :])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_any_prefix_of_lines_is_ignored(prefix: str) -> None:
    for text in (NEWER, recorded("write_bw.client")):
        printed = [line for line in text.splitlines() if not line.startswith("# ")]
        lines = [f"{prefix.format(i % 10)}{line}" for i, line in enumerate(printed)]
        assert rates("\r\n".join(lines)) == rates(text)


@pytest.mark.parametrize("words", ["Post List ", "Bidirectional Post List "])
def test_titles_with_more_words(words: str) -> None:
    found = read_perftest(NEWER.replace("RDMA_Write BW", f"RDMA_Write {words}BW"))
    assert found.why_incomplete is None
    assert found.bidirectional is words.startswith("Bidirectional")


def test_without_its_title_a_table_may_be_of_both_directions() -> None:
    title = "                    RDMA_Write BW Test\n"
    assert read_perftest(NEWER).bidirectional is False
    assert read_perftest(NEWER.replace(title, "")).bidirectional is None


@pytest.mark.parametrize("cell", ["0.00", "-12.38", "nan"])
def test_invalid_latencies_are_ignored(cell: str) -> None:
    text = recorded("write_lat.client").replace(" 12.38", f" {cell}")
    assert read_perftest(text).typical_us == ((2, None),)


@pytest.mark.parametrize(
    "warning",
    [
        "slurmstepd: error: Unable to create TMPDIR [/scratch/7]: Permission denied\n",
        "libibverbs: Warning: couldn't load driver 'libother-rdmav34.so': no such file\n",
    ],
)
def test_a_warning_is_no_error(warning: str) -> None:
    assert read_perftest(warning).faults == ()
    assert rates(warning + NEWER)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-d mlx5_3 --report_gbits 10.9.0.2", False),
        ("-d mlx5_3 -b 10.9.0.2", True),
        ("-Fb -d mlx5_3 10.9.0.2", True),
        ("-abF -d mlx5_3", True),
        ("-aFdb 10.9.0.2", False),  # of a device that is called b
        ("-d -b", False),
        ("--bidir -D 9", True),
        ('--bidirectional"', True),
        ("-F 10.9.0.2 | tee -b out", False),
        ("-F -b; sleep 1", True),
        ("-F $OPTIONS 10.9.0.2", None),
        ("-d mlx5_3 \\", None),
        ("-Yb 10.9.0.2", None),
        ("-d mlx5_3\n$ ib_write_bw -b -d mlx5_3 10.9.0.2", None),
    ],
)
def test_a_commands_options_say_whether_rates_are_sums(options: str, expected: bool | None) -> None:
    head = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]"
    text = f"$ ib_write_bw {options}\n{head}\n65536 5000 391.4 391.1 0.7\n{'-' * 40}\n"
    assert read_perftest(text).bidirectional is expected
