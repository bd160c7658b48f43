"""Times from a rank's death until it is seen, reported, and until the next test's body begins.

Rank 1 stamps the time and calls os._exit(3), in one variant while the other ranks are inside an
all-reduce, in the other after it. `seen` is the moment when the controller learns of the
death. Then the test is reported, and the next test begins in new processes, which is checked by
their pids. All stamps are time.time() of one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import peers, table

_LIMIT_S = 120.0
VARIANTS = {
    "others in a collective": "rank 1 exits 3 before the collective",
    "after the collective": "rank 1 exits 3 after the collective",
}


def measure(repeats: int, ranks: tuple[int, ...] = (2, 4)) -> str:
    """The table, for a terminal."""
    peer = peers.mnode_recorded(60.0)
    rows = []
    for count in ranks:
        for variant, fault in VARIANTS.items():
            found: dict[str, list[float]] = {"seen": [], "reported": [], "next": []}
            problem = ""
            for _ in range(repeats):
                ran = peer.run(count, 2, _LIMIT_S, fault=fault)
                times, problem = _times(ran)
                for name, value in times.items():
                    found[name].append(value)
            cells = (c for values in found.values() for c in (table.ms(values), _worst(values)))
            rows.append((f"{count}  {variant}", *cells, problem))
    head = ("ranks, death", "seen ms", "worst", "reported ms", "worst", "next test ms", "worst", "")
    return table.terminal("From the death of a rank", head, rows)


def _worst(values: list[float]) -> str:
    return table.ms([max(values)]) if values else "-"


def _times(ran: peers.Ran) -> tuple[dict[str, float], str]:
    deaths = ran.times("fault")
    after = [s for s in ran.stamps if s.what == "next"]
    old = {s.pid for s in ran.stamps if s.what == "fault"}
    if not deaths or not after:
        return {}, "the next test did not run"
    if old & {s.pid for s in after}:
        return {}, "the next test ran in the processes of the dead world"
    seen = [r["death_seen"] for r in ran.records if "death_seen" in r]
    reported = [r["time"] for r in ran.records if _is_failure(r)]
    times = {"next": min(s.time for s in after) - deaths[0]}
    if seen:
        times["seen"] = seen[0] - deaths[0]
    if reported:
        times["reported"] = reported[0] - deaths[0]
    return times, "" if seen and reported else "not reported"


def _is_failure(record: Mapping[str, Any]) -> bool:
    return record.get("test") == "test_0000_faulty" and record.get("outcome") == "failed"
