"""Traces of torch's profiler (kineto): how much of the communication of a rank is exposed. Pure.

On an accelerator, communication is kernels of NCCL or RCCL, and the rest is other kernels. On CPUs
it is the annotation that gloo makes of each collective, and the rest is operators of torch. The
annotations of NCCL say when a collective was queued, not when it ran, so a trace of an accelerator
without its kernels says nothing. Nodes of autograd that enclose other operators are no work: hooks
wait for collectives in them. Source: kineto, output_json.cpp; torch, ProcessGroupGloo.cpp.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_COLLECTIVE = re.compile(r"^(?:nccl|rccl|void nccl)", re.IGNORECASE)
_QUEUED = re.compile(r"^(?:nccl|rccl|xccl|hccl):")
_ANNOTATED = re.compile(r"^(?:gloo|ucc|mpi):")
_NO_WORK = re.compile(r"^(?:c10d::|record_param_comms|gloo:|ucc:|mpi:)")
_ENCLOSES = re.compile(r"^autograd::engine::|Backward\d*$")
_OF_DEVICE = re.compile(r"^(?:cuda_|gpu_|xpu_|hip_|mtia_|privateuse1)")
_CALLS = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
}
"""Collectives by torch's operator, and its argument that is the whole tensor."""
_BYTES = {"double": 8, "long int": 8, "c10::BFloat16": 2, "c10::Half": 2}
_GRADIENT_BYTES = 4
"""Of float, and of lists of tensors, whose type a trace does not say."""
_UNREADABLE = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError),
    *(TypeError, ValueError, zlib.error),
)
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that a rank called, by its name in torch.distributed. size_bytes: of the whole
    tensor that is summed up, gathered or scattered."""

    collective: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace says, in seconds. exposed: communication beside which the rank does nothing
    else; hidden: the rest of it. computing: all other work. rank: None if the trace has none.

    calls: in their order, where the trace has shapes (`record_shapes`); of other collectives none.
    """

    rank: int | None
    exposed: float
    hidden: float
    computing: float
    calls: tuple[Call, ...] = ()


def read_trace(content: bytes) -> Traced | None:
    """What a trace says, as JSON, also packed by gzip; None if it is none, or has no kernels of the
    accelerator that the rank uses, or none of its collectives."""
    try:
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        return _traced(data)
    except _UNREADABLE:
        return None


def _traced(data: Any) -> Traced | None:
    events = [one for one in data["traceEvents"] if one.get("ph") == "X"]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    queued = any(_QUEUED.search(one["name"]) for one in events)
    if kernels:
        collectives = _spans(one for one in kernels if _COLLECTIVE.search(one["name"]))
        work = _spans(one for one in kernels if not _COLLECTIVE.search(one["name"]))
        if queued and not collectives:
            return None
    else:
        annotated = [one for one in events if _ANNOTATED.search(one["name"])]
        on_device = any(_OF_DEVICE.search(one.get("cat") or "") for one in events)
        if queued or on_device or (data.get("deviceProperties") and not annotated):
            return None
        collectives = _spans(annotated)
        work = _spans(_operators([one for one in events if one.get("cat") == "cpu_op"]))
    rank = (data.get("distributedInfo") or {}).get("rank")
    total, both = _length(collectives), _length(_common(collectives, work))
    return Traced(
        None if rank is None else int(rank),
        (total - both) / 1e6,
        both / 1e6,
        _length(work) / 1e6,
        tuple(_calls(events)),
    )


def _calls(events: Iterable[Mapping[str, Any]]) -> Iterator[Call]:
    for one in sorted((one for one in events if one["name"] in _CALLS), key=lambda one: one["ts"]):
        name, argument = _CALLS[one["name"]]
        try:
            kind = one["args"]["Input type"][argument]
            shape = one["args"]["Input Dims"][argument]
            tensors = shape if kind == "TensorList" else [shape]
            elements = sum(math.prod(tensor) for tensor in tensors)
            size_bytes = elements * _BYTES.get(kind, _GRADIENT_BYTES)
        except (LookupError, TypeError):  # without shapes, or as another version writes them
            continue
        if size_bytes:
            yield Call(name, size_bytes)


def _operators(events: list[Any]) -> Iterator[Any]:
    """Those that work. One that encloses others is followed by them, in order of threads."""
    events.sort(key=lambda one: (str(one.get("tid")), one["ts"], -one.get("dur", 0)))
    for one, following in pairwise([*events, {"ts": math.inf}]):
        left = one["ts"] + one.get("dur", 0) - following["ts"]
        encloses = left > 0 and following.get("tid") == one.get("tid")
        name = one["name"]
        if not _NO_WORK.search(name) and not (encloses and _ENCLOSES.search(name)):
            yield one


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
        next_one = at
        while next_one < len(others) and others[next_one][0] < end:
            yield max(begin, others[next_one][0]), min(end, others[next_one][1])
            next_one += 1


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
