"""Traces of torch's profiler (kineto): how much of the communication of a rank is exposed. Pure.

On an accelerator, communication is kernels of NCCL or RCCL, and the rest is other kernels. On CPUs
it is the annotation that gloo makes of each collective, and the rest is operators of torch.
Source: kineto, output_json.cpp; torch, ProcessGroupGloo.cpp.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_COLLECTIVE = re.compile(r"^(?:nccl|rccl|void nccl)", re.IGNORECASE)
_ANNOTATED = re.compile(r"^(?:gloo|nccl|ucc|mpi|xccl):")
_NO_WORK = re.compile(r"^(?:c10d::|record_param_comms|gloo:)")
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace says, in seconds. exposed: communication beside which the rank does nothing
    else; hidden: the rest of it. computing: all other work. rank: None if the trace has none."""

    rank: int | None
    exposed: float
    hidden: float
    computing: float


def read_trace(content: bytes) -> Traced | None:
    """What a trace says, as JSON, also packed by gzip; None if it is none."""
    try:
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        events = [one for one in data["traceEvents"] if one.get("ph") == "X"]
        kernels = [one for one in events if one.get("cat") == "kernel"]
        if kernels:
            collectives = _spans(one for one in kernels if _COLLECTIVE.search(one["name"]))
            work = _spans(one for one in kernels if not _COLLECTIVE.search(one["name"]))
        else:
            collectives = _spans(one for one in events if _ANNOTATED.search(one["name"]))
            of_cpu = (one for one in events if one.get("cat") == "cpu_op")
            work = _spans(one for one in of_cpu if not _NO_WORK.search(one["name"]))
        rank = (data.get("distributedInfo") or {}).get("rank")
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zlib.error):
        return None
    total, both = _length(collectives), _length(_common(collectives, work))
    return Traced(
        None if rank is None else int(rank),
        (total - both) / 1e6,
        both / 1e6,
        _length(work) / 1e6,
    )


def _spans(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Their union: spans that do not overlap, in order. Microseconds."""
    found: list[Span] = []
    for begin, end in sorted((one["ts"], one["ts"] + one.get("dur", 0)) for one in events):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _common(some: list[Span], others: list[Span]) -> Iterator[Span]:
    at = 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        for other in others[at:]:
            if other[0] >= end:
                break
            yield max(begin, other[0]), min(end, other[1])


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
