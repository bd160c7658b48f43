"""Parts add up, and exposed time is what blocks do not compute."""

from __future__ import annotations

import pytest

from pytest_mnode.reference_job.timeline import EventClock, HostClock, Timeline


class SetClock:
    """A clock that shows the given times."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def settle(self) -> None:
        pass


def _step(clock: SetClock) -> Timeline:
    """2 s of input; passes of 10 s, with 3 s and 4 s in blocks; two more parts of 1 s."""
    timeline = Timeline(clock)
    with timeline.running():
        clock.now += 2
        timeline.lap("input")
        begin = clock.now
        timeline.forward.append((begin + 1, begin + 4))
        timeline.backward.append((begin + 4, begin + 9))
        timeline.aside["backward"] = [(begin + 5, begin + 6)]
        clock.now += 10
        timeline.lap("passes")
        clock.now += 1
        timeline.lap("optimiser")
        clock.now += 1
        timeline.lap("rest")
    return timeline


def test_time_outside_of_blocks_is_exposed() -> None:
    parts = _step(SetClock()).parts()
    assert parts == {
        **{"input": 2, "forward": 3, "backward": 4, "exposed": 3},
        **{"metrics": 0, "optimiser": 1, "checkpoint": 0, "rest": 1},
    }
    assert sum(parts.values()) == 14


def test_laps_of_the_same_name_add_up() -> None:
    clock = SetClock()
    timeline = Timeline(clock)
    with timeline.running():
        for seconds in (2, 3):
            clock.now += seconds
            timeline.lap("input")
    assert timeline.parts()["input"] == 5


def test_a_checkpoint_counts_in_the_step_that_follows() -> None:
    clock = SetClock()
    timeline = Timeline(clock)
    with timeline.running():
        clock.now += 5
        timeline.lap("checkpoint")
    clock.now += 100  # the caller does something else between steps
    with timeline.running():
        clock.now += 1
        timeline.lap("rest")
    assert sum(timeline.parts().values()) == 6


def test_wall_time_is_measured_by_another_clock() -> None:
    clock = SetClock()
    timeline = Timeline(clock)
    with timeline.running():
        clock.now += 60
        timeline.lap("rest")
    assert timeline.parts()["rest"] == 60
    assert timeline.wall_s < 30, "a wrong sum of the parts would be seen"


class Event:
    """A CUDA event as far as it is used: its time is known only after waiting for the device.

    now_ms: the device's clock.
    """

    now_ms = 0.0
    settled = False

    def __init__(self) -> None:
        self.at: float | None = None

    def record(self) -> None:
        self.at = Event.now_ms

    def elapsed_time(self, other: Event) -> float:
        assert Event.settled, "read before the device had reached the event"
        assert self.at is not None
        assert other.at is not None
        return other.at - self.at


def test_events_of_a_device_are_read_once_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "now_ms", 0.0)
    monkeypatch.setattr(Event, "settled", False)
    waited: list[float] = []

    def synchronize() -> None:
        waited.append(Event.now_ms)
        Event.settled = True

    timeline = Timeline(EventClock(Event, synchronize))
    with timeline.running():
        Event.now_ms += 30
        timeline.lap("input")
        Event.now_ms += 500
        timeline.lap("passes")
    assert waited == [530], "one wait per step"
    parts = timeline.parts()
    assert parts["input"] == pytest.approx(0.03)
    assert parts["exposed"] == pytest.approx(0.5)


def test_the_clock_of_the_host_advances() -> None:
    clock = HostClock()
    begin = clock.mark()
    assert clock.seconds(begin, clock.mark()) >= 0
