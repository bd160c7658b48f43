"""Traces of torch's profiler: exposed communication, and what says nothing of it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from pytest_mnode.logs.kineto import Call, read_trace

GPU = {"deviceProperties": [{"id": 0}]}


def event(cat: str, name: str, begin_s: float, seconds: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin_s * 1e6, "dur": seconds * 1e6}


MATMUL = event("kernel", "sm90_gemm", 0, 3)
ALL_REDUCE = event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2, 4)
QUEUED = event("user_annotation", "nccl:all_reduce", 0, 0.1)
LAUNCH = event("cuda_runtime", "cudaLaunchKernel", 0, 0.1)
OPERATOR = event("cpu_op", "aten::mm", 0, 3)
HOOK = event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 0, 7)
NODE = event("cpu_op", "AddmmBackward0", 0, 6.5)
GLOO = event("user_annotation", "gloo:all_reduce", 2, 4)


@pytest.mark.parametrize(
    ("events", "more", "expected"),
    [
        ([MATMUL, ALL_REDUCE, QUEUED, LAUNCH, OPERATOR], GPU, (3, 1, 3)),
        ([MATMUL, OPERATOR], GPU, (0, 0, 3)),
        ([OPERATOR, GLOO], {}, (3, 1, 3)),
        ([GLOO, OPERATOR, NODE, HOOK], {}, (3, 1, 3)),  # a hook waits: only the product works
        ([NODE, GLOO], {}, (0, 4, 6.5)),  # it has no operators of torch
        ([OPERATOR, GLOO], GPU, (3, 1, 3)),  # gloo on nodes that have accelerators
        ([OPERATOR, QUEUED], {}, None),
        ([MATMUL, QUEUED], GPU, None),
        ([OPERATOR, LAUNCH, GLOO], GPU, None),
        ([OPERATOR], GPU, None),
        ([OPERATOR], {"distributedInfo": {"rank": "a"}}, None),
        ([{**OPERATOR, "ts": "5"}], {}, None),
        ([{**OPERATOR, "dur": None}], {}, None),
        ([{"ph": "X"}], {}, None),
        ([3], {}, None),
    ],
)
def test_what_a_trace_says(
    events: list[Any], more: dict[str, Any], expected: tuple[float, float, float] | None
) -> None:
    found = read_trace(gzip.compress(json.dumps({"traceEvents": events, **more}).encode()))
    assert (found and (found.exposed, found.hidden, found.computing)) == expected


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b", b"[]", b"[" * 100_000, gzip.compress(b"{}", mtime=0)[:12]]
)
def test_what_is_no_trace(content: bytes) -> None:
    assert read_trace(content) is None


def call(name: str, at_s: float, shapes: list[Any], kinds: list[str]) -> dict[str, Any]:
    shown = {"Input Dims": shapes, "Input type": kinds}
    return {**event("cpu_op", f"c10d::{name}", at_s, 0.1), "args": shown}


def test_the_collectives_of_a_trace_in_their_order() -> None:
    events = [
        GLOO,
        call("allreduce_", 3, [[[3], [2, 5]], []], ["TensorList", ""]),
        call("_allgather_base_", 1, [[8], [4]], ["c10::BFloat16", "c10::BFloat16"]),
        call("_reduce_scatter_base_", 2, [[4], [8]], ["float", "float"]),
        call("broadcast_", 0, [[[9]]], ["TensorList"]),
        event("cpu_op", "c10d::allreduce_", 4, 0.1),  # without shapes
        {**event("cpu_op", "c10d::allreduce_", 5, 0.1), "args": None},
        {**event("cpu_op", "c10d::allreduce_", 5, 0.1), "args": {"Input Dims": [[[3]]]}},
        call("allreduce_", 5, [[[3]]], ["GenericList"]),
        call("allreduce_", 5, [[]], ["TensorList"]),
        call("_reduce_scatter_base_", 5, [[4]], ["float"]),
    ]
    found = read_trace(json.dumps({"traceEvents": events}).encode())
    gathered, scattered = Call("all_gather", 16), Call("reduce_scatter", 32)
    assert found is not None
    assert found.calls == (gathered, scattered, Call("all_reduce", 52))
