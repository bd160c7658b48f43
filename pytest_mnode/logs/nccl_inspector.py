"""Records of NCCL's inspector, a plugin of NCCL 2.28 and RCCL: how fast collectives were. Pure.

A rank's kernel of a collective runs from its own arrival. So the rank that comes last has the
shortest one, which is what the network takes; the others waited in theirs.
Source: NVIDIA/nccl, ext-profiler/inspector/README.md, output format v4.0.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

_LATE = 0.1
"""[choice] A rank came late if its kernel is shorter by this fraction than that of the median."""

_ALL_WAIT = ("allreduce", "allgather", "reducescatter", "alltoall")
"""No rank's kernel ends before all ranks came; the root of a broadcast or reduce may end first."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one collective and size. busbw_gbytes_s: median, by the rank of each call that came
    last. late: the host that came late in more than half of them; None if there is none."""

    name: str
    size_bytes: int
    ranks: int
    calls: int
    busbw_gbytes_s: float
    late: str | None


def read_calls(texts: Iterable[str]) -> list[Calls]:
    """What all ranks recorded, lines of JSON each, that with the most bytes first."""
    calls: dict[tuple[str, int, int, str, int], dict[int, tuple[float, float, str]]]
    calls = defaultdict(dict)
    for line in (line for text in texts for line in text.splitlines()):
        try:
            one = json.loads(line)
            group, done = one["header"], one["coll_perf"]
            name, size = str(done["coll"]), int(done["coll_msg_size_bytes"])
            call = (name, size, int(group["n_ranks"]), str(group["id"]), int(done["coll_sn"]))
            took = float(done["coll_exec_time_us"]), float(done["coll_busbw_gbs"])
            calls[call][int(group["rank"])] = (*took, str(one["metadata"]["hostname"]))
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            continue  # a point-to-point transfer, or torn by a kill
    last: dict[tuple[str, int, int], list[tuple[float, str | None]]] = defaultdict(list)
    for (name, size, ranks, *_), of_ranks in calls.items():
        if ranks > 1 and len(of_ranks) == ranks:
            took_us, busbw, host = min(of_ranks.values())
            usual_us = median(took for took, *_ in of_ranks.values())
            waits = name.lower() in _ALL_WAIT
            late = host if waits and took_us < (1 - _LATE) * usual_us else None
            last[name, size, ranks].append((busbw, late))
    found = []
    for (name, size, ranks), some in last.items():
        [(late, times)] = Counter(late for _, late in some).most_common(1)
        rate = median(busbw for busbw, _ in some)
        often = late if 2 * times > len(some) else None
        found.append(Calls(name, size, ranks, len(some), rate, often))
    return sorted(found, key=lambda one: -one.size_bytes * one.calls)
