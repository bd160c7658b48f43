"""Splits the time of a step into parts, on one rank and by its own clock.

A step is a sequence of sections, each beginning where the one before ended: input (waiting for the
loader), passes (forward and backward), metrics (agreeing on the loss with all ranks), optimiser,
checkpoint, rest.
Within the passes every block of the model times its own forward and backward compute; the rest of
the passes is *exposed*: waiting for collectives, and the hooks of DDP or FSDP2. The step's wall
time is measured around all sections, so that their sum is a check and not a definition.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_mnode.reference_job.records import PARTS


class Clock(Protocol):
    """Marks moments; `seconds` between two marks can be read once `settle` was called."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float: ...

    def settle(self) -> None: ...


class HostClock:
    """This process's own clock, for devices whose compute is done when the call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def settle(self) -> None:
        """Nothing is outstanding on a CPU."""


class EventClock:
    """The accelerator's clock: events on the compute stream, read after one wait per step.

    event: returns a timed event, such as `lambda: torch.cuda.Event(enable_timing=True)`.
    synchronize: waits for the device.
    """

    def __init__(self, event: Callable[[], Any], synchronize: Callable[[], None]) -> None:
        self._event = event
        self._synchronize = synchronize

    def mark(self) -> Any:
        event = self._event()
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000  # CUDA events: milliseconds

    def settle(self) -> None:
        self._synchronize()


@dataclass(slots=True)
class Timeline:
    """Collects the marks of one step; `parts` once it is settled."""

    clock: Clock
    sections: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)
    forward: list[tuple[Any, Any]] = field(default_factory=list)
    backward: list[tuple[Any, Any]] = field(default_factory=list)
    aside: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)
    last: Any = None
    wall_s: float = 0.0

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
        now = self.clock.mark()
        self.sections.setdefault(name, []).append((self.last, now))
        self.last = now

    def parts(self) -> dict[str, float]:
        """Seconds of each part in PARTS."""
        found = {name: self._total(self.sections.get(name, ())) for name in PARTS}
        for name in ("forward", "backward"):
            found[name] = self._total(getattr(self, name)) - self._total(self.aside.get(name, ()))
        passes = self._total(self.sections.get("passes", ()))
        found["exposed"] = passes - found["forward"] - found["backward"]
        return found

    def _total(self, marks: Sequence[tuple[Any, Any]]) -> float:
        return sum(self.clock.seconds(begin, end) for begin, end in marks)
