"""Splits the time of a step into parts on one rank, and paces its compute if that is declared.

A step is a sequence of sections, each beginning where the one before ended: input (waiting for the
loader), passes (forward and backward), metrics (agreeing on the loss with all ranks), optimiser,
checkpoint, rest. Within the passes every block of the model times its own forward and backward
compute; the rest of the passes is *exposed*: waiting for collectives, and the hooks of DDP or
FSDP2. The step's wall time is measured around all sections, so that their sum is a check.

A block calls `enter` on its input and `leave` on its output, inside its `forward`. The backward
pass reaches the same two places in reverse, by hooks of two tensors of their own. Hooks that DDP
and FSDP2 put around a module run before `enter` and after `leave`, so that waiting for a collective
is never counted as compute. Work that still runs inside (DDP hands a bucket over as soon as its
last gradient is there) is subtracted by `aside`.

torch's profiler (logs/kineto.py) says how much communication is hidden, in two further steps. It
does not time the others: under it a step takes 1.4 times the CPU time (4 layers of width 64), and
140 ms more to be written and read, where these marks take microseconds. And two steps of many do
not show a loss in one step of three, nor the slowest rank of each.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.config import JobConfig, spans_of
from pytest_mnode.reference_job.device import compute_factor
from pytest_mnode.reference_job.records import PARTS


@dataclass(frozen=True, slots=True)
class Clock:
    """mark: of a moment. seconds: between two marks, once `settle` was called, which waits for what
    is under way. The host's own by itself: on a CPU, compute is done when the call returns."""

    mark: Callable[[], Any] = time.perf_counter
    seconds: Callable[[Any, Any], float] = lambda begin, end: end - begin
    settle: Callable[[], None] = lambda: None

    @classmethod
    def of_events(cls, event: Callable[[], Any], synchronize: Callable[[], None]) -> Clock:
        """The accelerator's: events on the compute stream, read after one wait per step.

        event: returns a timed event, such as `lambda: torch.cuda.Event(enable_timing=True)`.
        """

        def mark() -> Any:
            one = event()
            one.record()
            return one

        return cls(mark, lambda begin, end: float(begin.elapsed_time(end)) / 1000, synchronize)


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
        return Clock()
    module = torch.get_device_module(device)
    return Clock.of_events(lambda: module.Event(enable_timing=True), module.synchronize)


class Spans:
    """Marks of the current step, by what lies between two of them."""

    def __init__(self, clock: Clock, pace: Pace | None = None) -> None:
        self.clock, self.pace = clock, pace
        self._way: str | None = None
        self._began: Any = None
        self.next_step()

    def next_step(self) -> None:
        """Forget all marks; the pace has nothing to make up for."""
        self.marks: dict[str, list[tuple[Any, Any]]] = {}
        self.last: Any = None
        self.wall_s = 0.0
        if self.pace is not None:
            self.pace.ahead_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Time the work in this context as part of the step; a step may have several contexts."""
        began = time.monotonic()
        self.last = self.clock.mark()
        try:
            yield
            self.clock.settle()
        finally:
            self.wall_s += time.monotonic() - began

    def lap(self, name: str) -> None:
        """Add the time since the last lap to the section `name`."""
        began, self.last = self.last, self.clock.mark()
        self._add(name, began, self.last)

    def parts(self) -> dict[str, float]:
        """Seconds of each part in PARTS, once the clock is settled."""
        found = {name: self._total(name) for name in PARTS}
        for name in ("forward", "backward"):
            found[name] -= self._total(f"{name} aside")
        found["exposed"] = self._total("passes") - found["forward"] - found["backward"]
        return found

    def _add(self, name: str, began: Any, ended: Any) -> None:
        self.marks.setdefault(name, []).append((began, ended))

    def _total(self, name: str) -> float:
        return sum(self.clock.seconds(*pair) for pair in self.marks.get(name, ()))

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Begin a block's compute; returns `x`, which is an input of the block or a weight."""
        self.begin("forward")
        if x.requires_grad:
            x = x.view_as(x)  # whose hook is called before those of `x`
            x.register_hook(lambda _: self.end("backward"))  # type: ignore[no-untyped-call]
        return x

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """End a block's compute; returns `x`, the output of the block."""
        if x.requires_grad:
            x.register_hook(lambda _: self.begin("backward"))  # type: ignore[no-untyped-call]
            x = x.clone()  # FSDP2 puts its own hooks on the output of a module
        self.end("forward")
        return x

    def begin(self, way: str) -> None:
        self._way, self._began = way, self.clock.mark()
        if self.pace is not None:
            self.pace.begin()

    def end(self, way: str) -> None:
        if self.pace is not None:
            self.pace.end(way)
        self._add(way, self._began, self.clock.mark())
        self._way = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the work in this context from compute, wherever it runs."""
        way, began, started = self._way, self.clock.mark(), time.perf_counter()
        try:
            yield
        finally:
            if way is not None:
                self._add(f"{way} aside", began, self.clock.mark())
                if self.pace is not None:
                    self.pace.spare(time.perf_counter() - started)
