"""Times the forward and backward compute of each block of the model, and paces it if declared.

A block calls `enter` on its input and `leave` on its output, inside its `forward`. The backward
pass reaches the same two places in reverse, through identity functions of autograd. Hooks that DDP
and FSDP2 put around a module run before `enter` and after `leave`, so that waiting for a collective
is never counted as compute. Work that still runs inside (DDP hands a bucket over as soon as its
last gradient is there) is subtracted by `aside`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.config import JobConfig, spans_of
from pytest_mnode.reference_job.device import compute_factor
from pytest_mnode.reference_job.timeline import Clock, EventClock, HostClock, Timeline


class Pace:
    """Stretches compute to a declared duration: each span sleeps until its share has passed.

    forward_s, backward_s: of one span. If a span takes too long, the next spans of the step are
    shorter, so that the sum is as declared. now, sleep: functions of the clock, in seconds.
    """

    def __init__(
        self,
        forward_s: float,
        backward_s: float,
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.share = {"forward": forward_s, "backward": backward_s}
        self.ahead_s = 0.0
        self._now, self._sleep = now, sleep
        self._began = 0.0

    def begin(self) -> None:
        self._began = self._now()

    def spare(self, seconds: float) -> None:
        """Exclude `seconds` from the span: they were not compute."""
        self._began += seconds

    def end(self, way: str) -> None:
        left = self.share[way] - (self._now() - self._began) + self.ahead_s
        if left > 0:
            self._sleep(left)
        slept_until = self._now()
        self.ahead_s += self.share[way] - (slept_until - self._began)


def pace_of(config: JobConfig, device: torch.device) -> Pace | None:
    """The pace of declared compute on this node's emulated accelerator; None if none is declared.

    Raises UsageError on a real accelerator.
    """
    if config.compute_s is None:
        return None
    if device.type != "cpu":
        raise UsageError(
            f"compute_s={config.compute_s:g}: computing is emulated on the CPU only, and this is "
            f"{device}; leave it out"
        )
    span_s = compute_factor() * config.compute_s / (config.accumulation * spans_of(config))
    return Pace(span_s / 3, span_s * 2 / 3)


def clock_of(device: torch.device) -> Clock:
    """A clock for when compute was done, not when it was launched."""
    if device.type == "cpu":
        return HostClock()
    module = torch.get_device_module(device)
    return EventClock(lambda: module.Event(enable_timing=True), module.synchronize)


class Spans:
    """Records the compute of blocks in the timeline of the current step."""

    def __init__(self, timeline: Timeline, pace: Pace | None = None) -> None:
        self.timeline = timeline
        self.pace = pace
        self._way: str | None = None
        self._began: Any = None

    def next_step(self) -> None:
        """Begin a new timeline, in which the pace has nothing to make up for."""
        self.timeline = Timeline(self.timeline.clock)
        if self.pace is not None:
            self.pace.ahead_s = 0.0

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Begin a block's compute; returns `x`, which is an input of the block or a weight."""
        self.begin("forward")
        return _MET(x, self.end, False) if x.requires_grad else x

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """End a block's compute; returns `x`, the output of the block."""
        if x.requires_grad:
            # Not a view: FSDP2 puts its own hooks on the output of a module.
            x = _MET(x, self.begin, True)
        self.end("forward")
        return x

    def begin(self, way: str) -> None:
        self._way, self._began = way, self.timeline.clock.mark()
        if self.pace is not None:
            self.pace.begin()

    def end(self, way: str) -> None:
        if self.pace is not None:
            self.pace.end(way)
        spans = self.timeline.forward if way == "forward" else self.timeline.backward
        spans.append((self._began, self.timeline.clock.mark()))
        self._way = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the work in this context from compute, wherever it runs."""
        way, began, started = self._way, self.timeline.clock.mark(), time.perf_counter()
        try:
            yield
        finally:
            if way is not None:
                marks = (began, self.timeline.clock.mark())
                self.timeline.aside.setdefault(way, []).append(marks)
                if self.pace is not None:
                    self.pace.spare(time.perf_counter() - started)


class _Met(torch.autograd.Function):
    """Passes a tensor on, and calls `note("backward")` when the backward pass reaches it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, note: Callable[[str], None], copied: bool) -> Any:
        ctx.note = note
        return x.clone() if copied else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.note("backward")
        return grads[0], None, None


_MET: Any = _Met.apply
