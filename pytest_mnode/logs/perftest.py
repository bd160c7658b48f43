"""Reads what perftest (ib_write_bw, ib_send_lat and their like) print. Pure and total."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.logs.lines import number, plain_lines, unprefixed, whole

_TITLE = re.compile(
    r"(RDMA_Write(?:_[Ww]ith_[Ii]mm)?|RDMA_Read|Send|Atomic(?:\s+\w+)?|Raw\s*Ethernet|\w+)"
    r"\s+(Bidirectional\s+)?(?:[A-Za-z]+\s+){0,2}?(BW|Latency)\s+(?:Multicast\s+)?Test(?:\s*:.*)?",
    re.IGNORECASE,
)
_NAME = r"([A-Z][\w.*/ -]*?)\s*:\s*"
_SETTINGS = re.compile(rf"{_NAME}(\S+)\s+{_NAME}([^\s:][^:]*)|{_NAME}([^\s:][^:]*)")
"""One to a line, or two of which the first has a value without blanks."""
_COLUMN = re.compile(
    r"#\w+(?!\S)|(?:(?:BW|MsgRate|[\d.]+%) +)?[\w.%]+\s?\[[^\]]*\]|tps +average", re.IGNORECASE
)
_RULE = re.compile(r"-{20,}")
_FAULT = re.compile(
    r".*(?:\b(?:couldn't|could not|can't|unable|failed|failure|not found|not supported|refused"
    r"|timed out|error|aborted|killed|mismatch|wrong|unexpected|terminated|invalid)\b"
    r"|state is (?:down|init|armed)|segmentation fault).*",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"\W*(?:lib\w+: )?warning\b|# |--?\w", re.IGNORECASE)
"""Warnings, a shell's comments, and the lines of a help text."""
_DIGITS = re.compile(r"\d+", re.ASCII)
_GBITS_S = {"Gb/sec": 1.0, "MB/sec": 8 * (1 << 20) / 1e9, "MiB/sec": 8 * (1 << 20) / 1e9}


@dataclass(frozen=True, slots=True)
class BwRow:
    """Rates of one size, in Gbit/s of 10^9 bits. peak: None where it was not measured."""

    size_bytes: int
    iterations: int | None
    average_gbits_s: float | None
    peak_gbits_s: float | None
    message_rate_mpps: float | None


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Times of one size in microseconds: half a round trip for write and send."""

    size_bytes: int
    iterations: int | None
    typical_us: float | None
    average_us: float | None
    min_us: float | None
    max_us: float | None
    stdev_us: float | None
    p99_us: float | None
    p999_us: float | None


@dataclass(frozen=True, slots=True)
class Perftest:
    """One side's output.

    test: its title, such as "RDMA_Write BW Test". settings: what is printed above the table, by
    name as printed (Device, Link type, GID index, …). closed: the rule under the table was printed,
    without which it may be cut off. damaged: a row has more or fewer cells than the table. faults:
    lines that tell of one.
    """

    test: str | None = None
    bidirectional: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    bandwidths: tuple[BwRow, ...] = ()
    latencies: tuple[LatencyRow, ...] = ()
    closed: bool = False
    faults: tuple[str, ...] = ()
    damaged: bool = False

    @property
    def device(self) -> str | None:
        """The RDMA device as the test names it."""
        return self.settings.get("Device")

    @property
    def link_type(self) -> str | None:
        """IB or Ethernet."""
        return self.settings.get("Link type")

    @property
    def gid_index(self) -> int | None:
        """Index of the GID it ran on; None on InfiniBand without one."""
        return whole(self.settings.get("GID index", ""))

    @property
    def mtu_bytes(self) -> int | None:
        """Path MTU of the queue pairs."""
        return whole(self.settings.get("Mtu", "").partition("[")[0])

    @property
    def complete(self) -> bool:
        """Whether a table stands there, whole and without a fault."""
        return self.why_incomplete is None

    @property
    def why_incomplete(self) -> str | None:
        """What stands against using the table, in words; None where nothing does."""
        if self.faults:
            return self.faults[0]
        if self.damaged:
            return "a row of results is damaged"
        if not self.bandwidths and not self.latencies:
            return "no row of results"
        return None if self.closed else "cut off: nothing closes the table"


def read_perftest(output: str | bytes) -> Perftest:
    """What one side of a perftest program printed; empty for text that holds nothing of it.

    Rates printed as MB/sec are MiB (2^20 bytes) per second, as newer versions call them.

    Source: perftest, src/perftest_resources.h (heads of the tables) and its report format, in which
    MB is 0x100000 and Gb is 10^9 bits.
    """
    reader = _Reader()
    for line in _without_prefix(plain_lines(output)):
        reader.read(unprefixed(line).strip())
    return reader.found()


def _without_prefix(lines: Sequence[str]) -> list[str]:
    """Lines without the words that a launcher put before each, as the table's head shows them.

    Words that differ only in their digits are the same: names of ranks, times.
    """
    head = next((line for line in lines if "#bytes" in line), "")
    words = [_DIGITS.sub("0", word) for word in head.partition("#bytes")[0].split()]
    if not words:
        return list(lines)
    first = re.compile(rf"\s*(?:\S+(?:\s+|$)){{{len(words)}}}")
    return [
        first.sub("", line, count=1)
        if [_DIGITS.sub("0", word) for word in line.split()[: len(words)]] == words
        else line
        for line in lines
    ]


@dataclass(slots=True)
class _Reader:
    test: str | None = None
    bidirectional: bool = False
    closed: bool = False
    damaged: bool = False
    columns: tuple[tuple[str, str], ...] = ()
    """Name and unit of each column of the table being read."""
    settings: dict[str, str] = field(default_factory=dict)
    bandwidths: dict[BwRow, None] = field(default_factory=dict)
    latencies: dict[LatencyRow, None] = field(default_factory=dict)
    faults: dict[str, None] = field(default_factory=dict)

    def read(self, line: str) -> None:
        if line.startswith("#bytes"):
            self.columns, self.closed = _columns(line), False
        elif self.columns and not self.closed and re.match(r"\d+(\s|$)", line):
            self._row(line.split())
        elif _RULE.fullmatch(line):
            self.closed = bool(self.bandwidths or self.latencies)
        elif match := _TITLE.fullmatch(line):
            self.test, self.bidirectional = " ".join(line.split()), match[2] is not None
        elif _FAULT.fullmatch(line):
            if not _HARMLESS.match(line):
                self.faults[line] = None
        else:
            self._settings(line)

    def _settings(self, line: str) -> None:
        if match := _SETTINGS.fullmatch(line):
            found = [group for group in match.groups() if group is not None]
            self.settings |= dict(zip(found[::2], found[1::2], strict=True))

    def _row(self, cells: list[str]) -> None:
        if len(cells) != len(self.columns):
            self.damaged = True
            return
        row = {name: cell for (name, _), cell in zip(self.columns, cells, strict=True)}
        size, iterations = whole(row["#bytes"]), whole(row.get("#iterations", ""))
        if size is None:
            return
        if "bw average" in row:
            units = dict(self.columns)
            self.bandwidths[
                BwRow(
                    size,
                    iterations,
                    _gbits_s(row["bw average"], units["bw average"]),
                    # 0 where it was not measured, as with a duration or on the receiving side
                    _gbits_s(row.get("bw peak", ""), units.get("bw peak", "")) or None,
                    number(row.get("msgrate", "")),
                )
            ] = None
        elif any(name.startswith("t_") for name in row):
            names = ("t_typical", "t_avg", "t_min", "t_max", "t_stdev")
            tails = ("99% percentile", "99.9% percentile")
            times = (number(row.get(name, "")) for name in (*names, *tails))
            self.latencies[LatencyRow(size, iterations, *times)] = None

    def found(self) -> Perftest:
        return Perftest(
            self.test,
            self.bidirectional,
            self.settings,
            tuple(self.bandwidths),
            tuple(self.latencies),
            self.closed,
            tuple(self.faults),
            self.damaged,
        )


def _columns(line: str) -> tuple[tuple[str, str], ...]:
    found = []
    for column in _COLUMN.findall(line):
        name, _, unit = column.rstrip("]").partition("[")
        found.append((" ".join(name.lower().split()), unit))
    return tuple(found)


def _gbits_s(cell: str, unit: str) -> float | None:
    value, factor = number(cell), _GBITS_S.get(unit)
    return None if value is None or factor is None else value * factor
