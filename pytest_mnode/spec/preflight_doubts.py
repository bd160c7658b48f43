"""Promises of preflight that nothing could be measured for, or that would hide a fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_mnode.spec.quantity import DURATION, SIZE

if TYPE_CHECKING:
    from pytest_mnode.spec.models import Spec
    from pytest_mnode.spec.preflight import PreflightCriterion

_STALL_S = 5.0
"""A look-up that takes this long is about to run into torchrun's and resolvers' own limits."""
_USELESS_SKEW_S = 5.0
_FEW_BYTES = 2 << 20
_KEY = "criteria.preflight"


def preflight_doubts(spec: Spec) -> Iterator[str]:
    """One line for each promise that cannot be right."""
    promise = spec.criteria.preflight
    if promise is None:
        return
    yield from _without_subject(spec, promise)
    yield from _lax(promise)


def _without_subject(spec: Spec, promise: PreflightCriterion) -> Iterator[str]:
    yield from _networks(spec, promise)
    if not spec.accelerators.per_node:
        for key in ("accelerators", "gpudirect"):
            if getattr(promise, key) is not None:
                yield f"{_KEY}.{key}: given, but accelerators.per_node is 0"
        for part in sorted({"nccl", "driver"}.intersection(promise.same or ())):
            yield f"{_KEY}.same: {part}, but accelerators.per_node is 0"
    yield from _rdma(spec, promise)
    storage = promise.storage
    if storage is not None:
        if spec.storage is None:
            yield f"{_KEY}.storage: given, but storage names no path"
        elif "datasets" in storage.writable:
            yield f"{_KEY}.storage.writable: datasets: preflight will write a file there"


def _networks(spec: Spec, promise: PreflightCriterion) -> Iterator[str]:
    for key in ("reachable", "mtu", "payload"):
        asked = getattr(promise, key)
        if asked is None or "management" not in asked.networks:
            continue
        if spec.management is None:
            yield f"{_KEY}.{key}.networks: management, of which the spec says nothing"
        elif key == "mtu" and spec.management.mtu_bytes is None:
            yield f"{_KEY}.mtu.networks: management, and management.mtu is not given"


def _rdma(spec: Spec, promise: PreflightCriterion) -> Iterator[str]:
    if promise.rdma is None:
        return
    kind = spec.fabric.kind
    if kind == "ethernet":
        yield f"{_KEY}.rdma: given, but fabric.kind is ethernet, which is TCP"
    wrong = [t for t in promise.rdma.gid_types or () if (t == "IB") is not (kind == "infiniband")]
    if wrong and kind in ("infiniband", "roce"):
        yield f"{_KEY}.rdma.gid_types: {', '.join(wrong)}, which ports of {kind} do not have"


def _lax(promise: PreflightCriterion) -> Iterator[str]:
    names, clocks, speed = promise.names, promise.clocks, promise.speed
    payload = promise.payload
    if payload is not None and payload.size_bytes < _FEW_BYTES:
        shown = SIZE.text(payload.size_bytes)
        yield f"{_KEY}.payload.size: {shown}: a wire that changes a byte in 256 KiB may pass"
    if names is not None and names.within_s >= _STALL_S:
        shown = DURATION.text(names.within_s)
        yield f"{_KEY}.names.within: {shown}: torchrun stalls for 10 s where a look-up hangs"
    if clocks is not None and clocks.skew_s >= _USELESS_SKEW_S:
        shown = DURATION.text(clocks.skew_s)
        yield f"{_KEY}.clocks.skew: {shown}: logs of two nodes could not be put in order"
    if speed is not None and speed.at_least_fraction <= 0.5:
        yield (
            f"{_KEY}.speed.at_least_fraction: {speed.at_least_fraction:g}: "
            "a link that came up at half its speed passes"
        )
