"""Makes functions of torch return wrong results now and then, in ranks that run this file first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

RECEIVERS = (
    *("all_reduce", "broadcast", "all_to_all_single"),
    *("all_gather_single", "all_gather_into_tensor"),
    *("reduce_scatter_single", "reduce_scatter_tensor"),
)
"""Collectives whose first argument receives the result."""


def stale(every: str, least_bytes: str) -> None:
    """Make each `every`th blocking call of `least_bytes` or more return the previous result."""
    calls = 0
    before: dict[tuple[str, int], Any] = {}

    def spoil(name: str, tensor: Any) -> None:
        nonlocal calls
        if tensor.numel() * tensor.element_size() < int(least_bytes):
            return
        calls += 1
        key = name, tensor.numel()
        result, old = tensor.detach().clone(), before.get(key)
        if calls % int(every) == 0 and old is not None and old.dtype == tensor.dtype:
            tensor.detach().copy_(old)
        before[key] = result

    def wrapped(name: str, right: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(right)
        def call(into: Any, *args: Any, **options: Any) -> Any:
            done = right(into, *args, **options)
            if not options.get("async_op"):
                spoil(name, into)
            return done

        return call

    def exchanged(ops: list[Any]) -> Any:
        for work in exchange(ops):
            work.wait()
        for op in ops:
            if op.op is dist.irecv:
                spoil("receive", op.tensor)
        return []  # gloo's works cannot be waited for again

    exchange = dist.batch_isend_irecv
    setattr(dist, "batch_isend_irecv", exchanged)  # noqa: B010  no assignment, for mypy
    for name in RECEIVERS:
        if hasattr(dist, name):
            setattr(dist, name, wrapped(name, getattr(dist, name)))


def wrong(every: str) -> None:
    """Change one value in 97 by 1/256 in each `every`th result of `linear`."""
    right, calls = F.linear, 0

    def linear(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        result = right(*args, **options)
        if calls % int(every) == 0:
            result.detach().view(-1)[::97].add_(2.0**-8)
        return result

    setattr(F, "linear", linear)  # noqa: B010


def product(every: str, after: str) -> None:
    """Flip a bit of one value in each `every`th product of matrices, from the `after`th on.

    A product of a batch counts as one.
    """
    count = 0

    def wrapped(right: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(right)
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            result = right(*args, **options)
            batch = result.unsqueeze(0) if result.dim() == 2 else result
            for number in range(len(batch)):
                count += 1
                if count > int(after) and count % int(every) == 0:
                    batch[number, -1, -1:].view(torch.uint8)[-1] ^= 1
            return result

        return call

    for name in ("mm", "bmm"):
        setattr(torch, name, wrapped(getattr(torch, name)))


def stuck(offset: str) -> None:
    """Hold bit 4 of the byte at `offset` of each large buffer of words at 1, whatever is copied."""
    write: Any = torch.Tensor.copy_

    @functools.wraps(write)
    def copy_(into: Any, *args: Any, **options: Any) -> Any:
        done = write(into, *args, **options)
        storage = into.untyped_storage()
        if into.dtype == torch.int64 and storage.nbytes() >= 1 << 16:
            torch.empty(0, dtype=torch.uint8).set_(storage)[int(offset)] |= 1 << 4
        return done

    setattr(torch.Tensor, "copy_", copy_)  # noqa: B010
