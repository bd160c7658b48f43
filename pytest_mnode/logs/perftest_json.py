"""Results of perftest as it writes them to a file (`--out_json`). Pure; never raises.

Until 4.5 keys and words have no quotes, and a comma stands before each closing brace, so that it is
no JSON: pairs of keys and values are looked for instead. No key says the unit of a rate; it follows
from the rate of messages, whose size is known.

Source: perftest 4.5 and 24.01, src/perftest_parameters.c and src/perftest_resources.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from pytest_mnode.logs.lines import number, whole

_TEST = re.compile(r'\btest_info"?\s*:\s*\{')
_PAIR = re.compile(r'\b([A-Za-z][\w.]*)"?\s*:\s*(?:"([^"\n]*)"|([^\s",{}\[\]][^,{}\[\]\n]*))')
_KIND = re.compile(r"(?:RDMA_)?(?P<verb>Write|Read|Send|Atomic)\b.*\b(?P<what>BW|Latency)\b")
_FACTORS = (1.0, 8 * (1 << 20) / 1e9)
"""Of --report_gbits, and of MiB (2^20 bytes), which is the default."""
_SAME = 0.03
"""Part by which a printed rate may differ from that of its messages."""


@dataclass(frozen=True, slots=True)
class JsonRun:
    """Facts of one run; see `Perftest`. program: None if the test is another one."""

    program: str | None
    bidirectional: bool
    rates_gbits_s: tuple[tuple[int, float | None], ...]
    typical_us: tuple[tuple[int, float | None], ...]
    closed: bool


def read_json(text: str) -> tuple[JsonRun, ...]:
    """The runs in a text, each from its `test_info` on; empty for any other text."""
    edges = [*(match.start() for match in _TEST.finditer(text)), len(text)]
    return tuple(_run(text[begin:end]) for begin, end in pairwise(edges))


def _run(text: str) -> JsonRun:
    rows = list(_rows(text))
    test = next((row["test"] for row in rows if "test" in row), "").replace("_", " ")
    kind = _KIND.search(test.replace("RDMA ", ""))
    what = "bw" if kind and kind["what"] == "BW" else "lat"
    rates, latencies = dict[int, float | None](), dict[int, float | None]()
    for row in rows:
        if (size := whole(row.get("msgsize", ""))) is None:
            continue
        if (rate := row.get("bw_average") or row.get("bw_avg")) is not None:
            rates[size] = _gbits_s(rate, row.get("msgrate") or row.get("msgrate_avg", ""), size)
        else:
            typical = row.get("t_typical") or row.get("t_avg") or row.get("avg_lat", "")
            latencies[size] = number(typical) or None
    return JsonRun(
        f"ib_{kind['verb'].lower()}_{what}" if kind else None,
        "Bidirectional" in test,
        tuple(rates.items()),
        tuple(latencies.items()),
        text.count("}") >= text.count("{"),
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


def _gbits_s(rate: str, messages: str, size_bytes: int) -> float | None:
    """A rate in Gbit/s; None if its messages, in millions per second, fit no unit."""
    value, of_messages = number(rate), (number(messages) or 0.0) * 8 * size_bytes / 1e3
    if value is None or not of_messages:
        return None
    found = [value * factor for factor in _FACTORS]
    return next((one for one in found if abs(one / of_messages - 1) <= _SAME), None)
