"""Blocks time both passes without hooks, and keep declared durations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.config import JobConfig, spans_of
from pytest_mnode.reference_job.model import Transformer
from pytest_mnode.reference_job.spans import Clock, Pace, Spans, clock_of, pace_of


class Noted:
    """A clock whose marks are consecutive numbers, and a log of events."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.clock = Clock(self.mark)

    def mark(self) -> int:
        self.events.append("mark")
        return len(self.events) - 1


class Note(torch.autograd.Function):
    """Records when the forward and backward pass reach this module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, noted: Noted, name: str) -> Tensor:
        ctx.noted, ctx.name = noted, name
        noted.events.append(f"forward {name}")
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.noted.events.append(f"backward {ctx.name}")
        return grads[0], None, None


NOTE: Any = Note.apply


class Block(nn.Module):
    """A block that hands over its gradients immediately, like DDP."""

    def __init__(self, spans: Spans, noted: Noted, name: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.spans, self.noted, self.name = spans, noted, name
        for parameter in self.linear.parameters():
            hang: Any = parameter.register_post_accumulate_grad_hook
            hang(self._hand_over)

    def _hand_over(self, _: Tensor) -> None:
        with self.spans.aside():
            self.noted.events.append(f"sent {self.name}")

    def forward(self, x: Tensor) -> Tensor:
        x = self.spans.enter(x)
        return self.spans.leave(NOTE(self.linear(x), self.noted, self.name))


def test_marks_enclose_computing_in_both_passes() -> None:
    noted = Noted()
    spans = Spans(noted.clock)
    model = nn.Sequential(*(Block(spans, noted, name) for name in "ab"))
    for number, block in enumerate(model):  # like FSDP2's hooks: around forward
        block.register_forward_pre_hook(lambda *_, n=number: noted.events.append(f"unshard {n}"))
        block.register_full_backward_hook(lambda *_, n=number: noted.events.append(f"reshard {n}"))
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    sent = ["mark", "sent b", "mark"]
    assert noted.events == [
        *("unshard 0", "mark", "forward a", "mark"),
        *("unshard 1", "mark", "forward b", "mark"),
        *("mark", "backward b", *sent, *sent, "mark", "reshard 1"),
        *("mark", "backward a", *(w.replace("b", "a") for w in (*sent, *sent)), "mark"),
        "reshard 0",
    ]  # fmt: skip
    counted = {name: len(marks) for name, marks in spans.marks.items()}
    assert counted == {"forward": 2, "backward": 2, "backward aside": 4}
    assert spans.parts()["backward"] == 2 * (8 - 2 * 2), "without the hand-over of gradients"


def test_time_outside_of_blocks_is_not_subtracted() -> None:
    spans = Spans(Clock())
    with spans.aside():
        pass
    assert spans.marks == {}


@pytest.mark.parametrize("accumulation", [1, 3])
def test_every_block_of_the_model_is_timed_once_per_pass(accumulation: int) -> None:
    config = JobConfig("unused", vocab=16, context=8, width=8, heads=2, layers=3)
    spans = Spans(Clock())
    model = Transformer(config, spans)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    for _ in range(accumulation):
        model(tokens, tokens).backward()
    forward, backward = spans.marks["forward"], spans.marks["backward"]
    assert len(forward) == len(backward) == accumulation * spans_of(config)
    marks = sorted((*forward, *backward))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(marks))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_timing_does_not_change_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    config = JobConfig("unused", vocab=16, context=8, width=8, heads=2, layers=2)

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        model = Transformer(config, Spans(Clock()))
        tokens = torch.arange(16).view(2, 8)
        model(tokens, (tokens + 1) % 16).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    timed = gradients()
    monkeypatch.setattr(Spans, "enter", lambda _, x: x)
    monkeypatch.setattr(Spans, "leave", lambda _, x: x)
    for one, other in zip(timed, gradients(), strict=True):
        assert torch.equal(one, other)


class Watch:
    """A clock that a test moves, and that oversleeps."""

    def __init__(self, oversleep_s: float = 0.0) -> None:
        self.now, self.slept, self._over_s = 0.0, 0.0, oversleep_s

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept += seconds
        self.now += seconds + self._over_s


def _paced(watch: Watch, computing_s: list[float], aside_s: float = 0.0) -> float:
    pace = Pace(1.0, 2.0, now=watch, sleep=watch.sleep)
    began = watch.now
    for number, seconds in enumerate(computing_s):
        pace.begin()
        watch.now += seconds + aside_s
        pace.spare(aside_s)
        pace.end("forward" if number % 2 == 0 else "backward")
    return watch.now - began


@pytest.mark.parametrize(
    ("computing_s", "oversleep_s", "expected_s"),
    [
        ([0.1, 0.3] * 4, 0.0, 12),
        ([0.0, 0.0] * 4, 0.01, 12.01),  # oversleeping shortens the next sleep
        ([1.5, 0.5] * 4, 0.0, 12),  # computing shortens it as well
        ([1.5, 2.5] * 4, 0.0, 16),  # time that is already exceeded is not recovered
        ([0.0, 9.0, 0.0, 0.0], 0.0, 10),
    ],
)
def test_declared_time_is_kept(
    computing_s: list[float], oversleep_s: float, expected_s: float
) -> None:
    assert _paced(Watch(oversleep_s), computing_s) == pytest.approx(expected_s)


def test_only_computing_is_paced() -> None:
    assert _paced(Watch(), [0.1, 0.1], aside_s=0.5) == pytest.approx(3 + 2 * 0.5)


def test_a_slow_step_does_not_shorten_the_next() -> None:
    watch = Watch()
    spans = Spans(Clock(), Pace(1.0, 2.0, now=watch, sleep=watch.sleep))
    spans.begin("forward")
    watch.now += 100
    spans.end("forward")
    spans.next_step()
    spans.begin("forward")
    spans.end("forward")
    assert watch.now == 101
    assert len(spans.marks["forward"]) == 1


def test_a_duration_is_declared_for_all_passes_of_a_step() -> None:
    config = JobConfig("unused", layers=3, accumulation=2, compute_s=1.5)
    pace = pace_of(config, torch.device("cpu"))
    assert pace is not None
    passes = 2 * spans_of(config)
    assert pace.share == pytest.approx({"forward": 0.5 / passes, "backward": 1.0 / passes})
    assert pace_of(JobConfig("unused"), torch.device("cpu")) is None


def test_nothing_is_emulated_on_an_accelerator() -> None:
    with pytest.raises(UsageError, match=r"compute_s=0\.5: computing is emulated on the"):
        pace_of(JobConfig("unused", compute_s=0.5), torch.device("cuda", 1))
    assert pace_of(JobConfig("unused"), torch.device("cuda", 1)) is None


class Now:
    """The time that a clock shows."""

    s = 0.0


def _step(now: Now) -> Spans:
    """2 s of input; passes of 10 s, with 3 s and 4 s in blocks; two more parts of 1 s."""
    spans = Spans(Clock(lambda: now.s))
    with spans.running():
        now.s += 2
        spans.lap("input")
        begin = now.s
        spans.marks["forward"] = [(begin + 1, begin + 4)]
        spans.marks["backward"] = [(begin + 4, begin + 9)]
        spans.marks["backward aside"] = [(begin + 5, begin + 6)]
        now.s += 10
        spans.lap("passes")
        now.s += 1
        spans.lap("optimiser")
        now.s += 1
        spans.lap("rest")
    return spans


def test_time_outside_of_blocks_is_exposed() -> None:
    parts = _step(Now()).parts()
    assert parts == {
        **{"input": 2, "forward": 3, "backward": 4, "exposed": 3},
        **{"metrics": 0, "optimiser": 1, "checkpoint": 0, "rest": 1},
    }
    assert sum(parts.values()) == 14


def test_laps_of_the_same_name_add_up() -> None:
    now = Now()
    spans = Spans(Clock(lambda: now.s))
    with spans.running():
        for seconds in (2, 3):
            now.s += seconds
            spans.lap("input")
    assert spans.parts()["input"] == 5


def test_a_checkpoint_counts_in_the_step_that_follows() -> None:
    now = Now()
    spans = Spans(Clock(lambda: now.s))
    with spans.running():
        now.s += 5
        spans.lap("checkpoint")
    now.s += 100  # the caller does something else between steps
    with spans.running():
        now.s += 1
        spans.lap("rest")
    assert sum(spans.parts().values()) == 6


def test_wall_time_is_measured_by_another_clock() -> None:
    now = Now()
    spans = Spans(Clock(lambda: now.s))
    with spans.running():
        now.s += 60
        spans.lap("rest")
    assert spans.parts()["rest"] == 60
    assert spans.wall_s < 30, "a wrong sum of the parts would be seen"


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

    spans = Spans(Clock.of_events(Event, synchronize))
    with spans.running():
        Event.now_ms += 30
        spans.lap("input")
        Event.now_ms += 500
        spans.lap("passes")
    assert waited == [530], "one wait per step"
    parts = spans.parts()
    assert parts["input"] == pytest.approx(0.03)
    assert parts["exposed"] == pytest.approx(0.5)


def test_an_accelerator_is_timed_by_its_own_events() -> None:
    assert clock_of(torch.device("cpu")) == Clock()
    assert clock_of(torch.device("cuda", 0)) != Clock()
