"""Reader of perftest's tables of bandwidth (ib_write_bw) and latency (ib_write_lat), and of what it
writes to a file (`--out_json`). Pure; never raises.

Until 4.5 keys and words of that file have no quotes, and a comma stands before each closing brace,
so that it is no JSON: pairs of keys and values are looked for instead. No key says the unit of a
rate; it follows from the rate of messages, whose size is known.

Source of the file: perftest 4.5 and 24.01, src/perftest_parameters.c and perftest_resources.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pytest_mnode.logs.lines import began_in_tmp, number, plain_lines, whole, without_prefix

_TITLE = re.compile(
    r"\w[\w ]*?\s+(?P<both>Bidirectional\s+)?(?:[A-Za-z]+\s+){0,2}?BW\s+(?:Multicast\s+)?Test\b.*",
    re.IGNORECASE,
)
_KIND = re.compile(r"(?:RDMA_)?(?P<verb>Write|Read|Send)\b.*\b(?P<what>BW|Latency)\b.* Test\b.*")
"""The title of a program whose results a spec may promise, after any prefix."""
_COMMAND = re.compile(r"\b(?P<program>ib_(?:write|read|send)_(?:bw|lat)) (?P<options>.*)")
_FLAGS, _WITH_VALUE = "aFegzRvhbNVCHUOZP", "wypdimsntuSxcqIoMrQAlDfBTLEJjKkXW"
"""Short options without and with a value, which ends a cluster such as -Fb. Source: perftest 24.01,
src/perftest_parameters.c, parser()."""
_END_OF_COMMAND = re.compile(r"\d?[|&;<>]")
_UNCLEAR = re.compile(r"[$`\\]")
"""Of a shell's variable, or of a command that goes on in the next line."""
_COLUMN = re.compile(
    r"#\w+(?!\S)|\biterations\b|(?:(?:BW|MsgRate|[\d.]+%) +)?[\w.%]+\s?\[[^\]]*\]|tps +average",
    re.IGNORECASE,
)
_ONE_SIDE = re.compile(r"(?:Local|Remote) results:")
"""Above the rates of one side, which --report-both prints after their sum."""
_DEVICE = re.compile(r"\bDevice\s+: (\S+)")
_RULE = re.compile(r"-{20,}")
_FAULT = re.compile(
    r".*(?:\b(?:couldn't|could not|can't|unable|failed|failure|not found|not supported|refused"
    r"|timed out|error|aborted|killed|mismatch|wrong|unexpected|terminated|invalid)\b"
    r"|state is (?:down|init|armed)|segmentation fault).*",
    re.IGNORECASE,
)
_STATUS = re.compile(r"Failed status\W{0,3}(?P<status>\d+|\w.{0,60}?)(?::| wr_id|,|$)")
_SYNDROME = re.compile(r"\bsyndrom\w*\W{0,3}(0x[0-9a-fA-F]+)")
_MEANINGS = {
    1: "local length error",
    2: "local QP operation error",
    4: "local protection error: the device may not access the buffer",
    5: "flushed after another error",
    8: "local access error",
    9: "remote invalid request",
    10: "remote access error: the peer's key or buffer is not valid",
    11: "remote operation error",
    12: "transport retry counter exceeded: the peer did not acknowledge",
    13: "RNR retry counter exceeded: the peer posted no buffer",
    20: "fatal error of the device",
    21: "response timeout",
    22: "general error",
}
"""Statuses of failed requests. Source: ibv_poll_cq(3), enum ibv_wc_status."""
_HARMLESS = re.compile(r"\W*(?:lib\w+: )?warning\b|# |--?\w", re.IGNORECASE)
"""Warnings, a shell's comments, and the lines of a help text."""
_ONLY_SIDES = re.compile(r'(?s)\A(?!.*\bresults"?\s*:).*\bresults_local\b')
_TEST = re.compile(r'\btest_info"?\s*:\s*\{')
_PAIR = re.compile(r'\b([A-Za-z][\w.]*)"?\s*:\s*(?:"([^"\n]*)"|([^\s",{}\[\]][^,{}\[\]\n]*))')
_TEST_KIND = re.compile(r"(?:RDMA_)?(?P<verb>Write|Read|Send|Atomic)\b.*\b(?P<what>BW|Latency)\b")
_FACTORS = (1.0, 8 * (1 << 20) / 1e9)
"""Of --report_gbits, and of MiB (2^20 bytes), which is the default."""
_SAME = 0.03
"""Part by which a printed rate may differ from that of its messages."""
_NO_ROW = "no row of results"
_GBITS_S = {"Gb/sec": 1.0, "MB/sec": 8 * (1 << 20) / 1e9, "MiB/sec": 8 * (1 << 20) / 1e9}


@dataclass(frozen=True, slots=True)
class Perftest:
    """Output of one side of a test.

    bidirectional: rates are sums of both directions; None if the title, which shows that, is
    missing. rates_gbits_s: average rate by size in bytes, in 10^9 bits per second; None if its
    unit is unknown. typical_us: median one-way latency by size in bytes, or the mean if no
    median is printed (-D); None if its unit is unknown, or it is 0. closed: the rule under the
    table was printed; without it the table may be cut off. damaged: a row has more or fewer cells
    than the heading. faults: lines that report an error. endless: the table has a row for each
    interval and no end, as with --run_infinitely. program: such as ib_write_bw, by its title; None
    if that is missing, or of another program. device: such as mlx5_0, by its settings.
    """

    bidirectional: bool | None = None
    rates_gbits_s: tuple[tuple[int, float | None], ...] = ()
    typical_us: tuple[tuple[int, float | None], ...] = ()
    closed: bool = False
    faults: tuple[str, ...] = ()
    damaged: bool = False
    endless: bool = False
    program: str | None = None
    device: str | None = None

    @property
    def why_incomplete(self) -> str | None:
        """Reason why the table must not be used; None if it can be used."""
        if self.faults:
            return self.faults[0]
        if self.damaged:
            return "a row of results is damaged"
        if not (self.rates_gbits_s or self.typical_us):
            return _NO_ROW
        if self.endless:
            idle = not all(rate for _, rate in self.rates_gbits_s)
            return "an endless run with an interval without traffic" if idle else None
        return None if self.closed else "cut off: the table has no closing line"

    @property
    def why_unusable(self) -> str | None:
        """The same for output that somebody kept: of one size no row is missing below."""
        sizes = {size for size, _ in (*self.rates_gbits_s, *self.typical_us)}
        whole_but_end = len(sizes) == 1 and not (self.faults or self.damaged or self.endless)
        return None if whole_but_end else self.why_incomplete


def read_perftest(output: str | bytes) -> Perftest:
    """The output of one side of a perftest program; empty for any other text.

    Rates printed as MB/sec are MiB (2^20 bytes) per second, as newer versions call them.

    Source: perftest, src/perftest_resources.h (heads of the tables) and its report format, in which
    MB is 0x100000 and Gb is 10^9 bits.
    """
    reader = _Reader()
    for line in _without_prefix(plain_lines(output)):
        reader.read(line.replace("**", "").strip())
    if reader.program is None and reader.columns and reader.commands:
        reader.program = reader.commands[-1]["program"]
        said = {_is_bidirectional(command["options"]) for command in reader.commands}
        reader.bidirectional = said.pop() if len(said) == 1 else None
    return Perftest(
        reader.bidirectional,
        tuple(reader.rates),
        tuple(reader.latencies),
        reader.closed,
        reader.all_faults(),
        reader.damaged,
        reader.endless and not reader.closed,
        reader.program,
        reader.device,
    )


def read_perftests(output: str | bytes) -> tuple[Perftest, ...]:
    """The runs in `output`, each from its title on, without those that say nothing.

    Those of `--out_json` are read where there is no table.
    """
    lines = plain_lines(output)
    # A rule stands above each title, and must not close the table before it.
    begins = [number - 1 for number, line in enumerate(lines) if _KIND.search(line)]
    edges = [0, *(begin for begin in begins if begin > 0), len(lines)]
    found = list[Perftest]()
    for begin, end in pairwise(edges):
        run = read_perftest("\n".join(lines[begin:end]))
        if run.program and begin and found and found[-1].why_incomplete == _NO_ROW:
            # Two that were started at once print into one another.
            at_once = read_perftest("\n".join(lines[edges[edges.index(begin) - 1] : end]))
            if at_once.closed:
                found[-1:], run = [], at_once
        found.append(run)
    if not any(one.rates_gbits_s or one.typical_us for one in found):
        written = "\n".join(_without_prefix(lines, "test_info"))
        found = [*_read_json(written)] or found
    return tuple(one for one in found if one.rates_gbits_s or one.typical_us or one.program)


def _without_prefix(lines: Sequence[str], first: str = "#bytes") -> list[str]:
    """Lines without what a launcher put before each, taken from the first line with this word."""
    head = next((line for line in lines if first in line), "")
    return without_prefix(lines, head.partition(first)[0].rstrip('{" '))


@dataclass(slots=True)
class _Reader:
    """columns: name and unit of each column of the current table."""

    bidirectional: bool | None = None
    closed: bool = False
    damaged: bool = False
    columns: tuple[tuple[str, str], ...] = ()
    rates: dict[tuple[int, float | None], None] = field(default_factory=dict)
    latencies: dict[tuple[int, float | None], None] = field(default_factory=dict)
    faults: dict[str, None] = field(default_factory=dict)
    statuses: dict[str, None] = field(default_factory=dict)
    # Rates by size in the current table.
    by_size: dict[int, set[float | None]] = field(default_factory=dict)
    endless: bool = False
    one_side: bool = False
    program: str | None = None
    device: str | None = None
    commands: list[re.Match[str]] = field(default_factory=list)
    # Titles above the current table, and its rows: of tests at once there are several.
    titles: int = 0
    rows: int = 0

    def read(self, line: str) -> None:
        if kind := _KIND.search(line):
            self.titles, self.rows = (self.titles if not self.rows else 0) + 1, 0
            what = "bw" if kind["what"].lower() == "bw" else "lat"
            self.program = f"ib_{kind['verb'].lower()}_{what}"
        if command := _COMMAND.search(line):
            self.commands.append(command)
        if named := _DEVICE.search(line):
            both = self.titles > 1 and self.device not in (None, named[1])
            self.device = f"{self.device}, {named[1]}" if both else named[1]
        if _ONE_SIDE.match(line):
            self.one_side, self.columns = True, ()
        elif line.startswith("#bytes") and not self.one_side:
            self.columns, self.closed = _columns(line), False
            self.by_size, self.endless = {}, False
        elif self.columns and not self.closed and re.match(r"\d+(\s|$)", line):
            self._row(line.split())
        elif _RULE.fullmatch(line):
            self.closed = self.rows >= max(1, self.titles)
        elif match := _TITLE.fullmatch(line):
            self.bidirectional, self.one_side = match["both"] is not None, False
        elif match := _STATUS.match(line):
            self.statuses[_status(match["status"], line)] = None
        elif _FAULT.fullmatch(line) and not (_HARMLESS.match(line) or began_in_tmp(line)):
            self.faults[line] = None

    def all_faults(self) -> tuple[str, ...]:
        """Lines that report an error; a failed request with its status."""
        statuses = ", ".join(self.statuses)
        if not statuses:
            return tuple(self.faults)
        joined = [
            f"{fault}: {statuses}" if fault.startswith("Completion with error") else fault
            for fault in self.faults
        ]
        return (
            tuple(joined) if joined != [*self.faults] else (f"failed request: {statuses}", *joined)
        )

    def _row(self, cells: list[str]) -> None:
        columns = self.columns
        if len(cells) == len(columns) + 1 and columns[-1][0] == "bw average":
            columns = (*columns, ("msgrate", "Mpps"))  # which a heading that was cut short lacks
        if len(cells) != len(columns):
            self.damaged = True
            return
        size = whole(cells[0])
        by_name = {name: (cell, unit) for (name, unit), cell in zip(columns, cells, strict=True)}
        if size is None:
            return
        self.rows += 1
        if "bw average" in by_name:
            rate = _gbits_s(*by_name["bw average"])
            self.rates[size, rate] = None
            self.by_size.setdefault(size, set()).add(rate)
            self.endless |= len(self.by_size[size]) > max(1, self.titles)
        elif typical := by_name.get("t_typical") or by_name.get("t_avg"):
            cell, unit = typical
            latency = _positive(cell) if unit == "usec" else None
            self.latencies[size, latency or None] = None


def _is_bidirectional(options: str) -> bool | None:
    """Whether a command's options ask for both directions; None if not all of them are known."""
    options = _END_OF_COMMAND.split(options)[0]
    if _UNCLEAR.search(options):
        return None
    both, words = False, (word.strip("\"',()[]") for word in options.split())
    for word in words:
        if word.startswith("--"):
            both |= word.startswith("--bi") and "--bidirectional".startswith(word)
        elif word.startswith("-"):
            for at, letter in enumerate(word[1:], 2):
                if letter in _WITH_VALUE:
                    if at == len(word):
                        next(words, None)
                    break
                if letter not in _FLAGS:
                    return None
                both |= letter == "b"
    return both


def _status(number: str, line: str) -> str:
    """What a failed request's line says: its status, in words too, and its syndrome."""
    words = _MEANINGS.get(int(number)) if number.isdecimal() else None
    syndrome = _SYNDROME.search(line)
    found = f"status {number} ({words})" if words else f"status {number}"
    return f"{found}, syndrome {syndrome[1]}" if syndrome else found


def _columns(line: str) -> tuple[tuple[str, str], ...]:
    found = []
    for column in _COLUMN.findall(line):
        name, _, unit = column.rstrip("]").partition("[")
        found.append((" ".join(name.lower().split()), unit))
    return tuple(found)


def _gbits_s(cell: str, unit: str) -> float | None:
    value, factor = _positive(cell), _GBITS_S.get(unit)
    return None if value is None or factor is None else value * factor


def _positive(cell: str) -> float | None:
    """A number of 0 or more: a clock that is set back causes negative numbers."""
    value = number(cell)
    return value if value is not None and value >= 0 else None


def _read_json(text: str) -> tuple[Perftest, ...]:
    """The runs in a text, each from its `test_info` on; empty for any other text."""
    edges = [*(match.start() for match in _TEST.finditer(text)), len(text)]
    return tuple(_run(text[begin:end]) for begin, end in pairwise(edges))


def _run(text: str) -> Perftest:
    rows = list(_rows(text))
    test = next((row["test"] for row in rows if "test" in row), "").replace("_", " ")
    device = next((row["device"] for row in rows if "device" in row), None)
    kind = _TEST_KIND.search(test.replace("RDMA ", ""))
    what = "bw" if kind and kind["what"] == "BW" else "lat"
    rates, latencies = dict[int, float | None](), dict[int, float | None]()
    both = "Bidirectional" in test and not _ONLY_SIDES.search(text)
    for row in rows:
        size = whole(row.get("msgsize", ""))
        if size is None or size in rates or size in latencies:
            continue  # the sum comes first, then the rates of each side (--report-both)
        if (rate := row.get("bw_average") or row.get("bw_avg")) is not None:
            rates[size] = _by_messages(rate, row.get("msgrate") or row.get("msgrate_avg", ""), size)
        else:
            typical = row.get("t_typical") or row.get("t_avg") or row.get("avg_lat", "")
            latencies[size] = number(typical) or None
    return Perftest(
        both,
        tuple(rates.items()),
        tuple(latencies.items()),
        closed=text.count("}") >= text.count("{"),
        program=f"ib_{kind['verb'].lower()}_{what}" if kind else None,
        device=device,
    )


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Pairs by key in lower case: those before the first size, then those of each size."""
    row = dict[str, str]()
    for key, quoted, plain in _PAIR.findall(text):
        if key.lower() == "msgsize":
            yield row
            row = {}
        row[key.lower()] = (quoted or plain).strip()
    yield row


def _by_messages(rate: str, messages: str, size_bytes: int) -> float | None:
    """A rate in Gbit/s; None if its messages, in millions per second, fit no unit."""
    value, of_messages = number(rate), (number(messages) or 0.0) * 8 * size_bytes / 1e3
    if value is None or not of_messages:
        return None
    found = [value * factor for factor in _FACTORS]
    return next((one for one in found if abs(one / of_messages - 1) <= _SAME), None)
