"""Runs of the experiments: open the spec's engine, conduct an experiment, clear up, judge."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.backends.registry import named
from pytest_mnode.charts import Moment, Span, Timeline
from pytest_mnode.errors import ClusterError, MnodeError
from pytest_mnode.gang import experiments, judging
from pytest_mnode.gang.engine import Engine
from pytest_mnode.gang.experiments import Plan, PowerSwitch, Stage
from pytest_mnode.gang.heartbeats import distinct, presences, spans
from pytest_mnode.gang.judge_rounds import Round
from pytest_mnode.gang.watch import Clock
from pytest_mnode.gang.window import KEY, Gang, State, Stretch, Window, stretches
from pytest_mnode.measurement import Measurement
from pytest_mnode.options import Settings
from pytest_mnode.progress import progress
from pytest_mnode.spec import Spec
from pytest_mnode.spec.gang import GangCriterion


def allocation(window: Window) -> Timeline:
    """The chart of a round: states of gangs above, nodes below, labelled with their gangs.

    A stretch is shown from its first observation to the first observation after it.
    """
    began = window.began_s
    spans: list[Span] = []
    nodes: dict[str, None] = dict.fromkeys(window.arena)
    for gang in window.gangs:
        for one in stretches(window.seen(gang), gang.submitted_s):
            if one.state is State.OVER:
                continue
            held = f"{len(one.nodes)} of {gang.size}"
            spans.append(_span(gang.name, one, held, began))
            spans += [_span(node, one, gang.name, began) for node in one.nodes]
            nodes |= dict.fromkeys(one.nodes)
    return Timeline(
        f"Allocation, {window.title}",
        (*(gang.name for gang in window.gangs), *nodes),
        tuple(spans),
        tuple(Moment(round(at - began, 3), text) for at, text in window.notes),
        tuple(state.value for state in State),
    )


def _span(lane: str, one: Stretch, text: str, began: float) -> Span:
    start_s, end_s = one.began_s - began, one.latest_s - began
    return Span(lane, round(start_s, 3), round(max(start_s, end_s), 3), one.state.value, text)


CONDUCTED = "experiments that could not be conducted"


@dataclass(frozen=True, slots=True)
class Report:
    """An experiment's measurements. lines: every state with its duration, by round. charts: the
    same as pictures."""

    measurements: tuple[Measurement, ...]
    lines: tuple[str, ...] = ()
    charts: tuple[Timeline, ...] = ()

    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class Site:
    """The scheduler of a spec, and what experiments on it need.

    open: creates the engine for one experiment.
    """

    promise: GangCriterion
    open: Callable[[], contextlib.AbstractContextManager[Engine]]
    power: PowerSwitch
    clock: Clock

    @classmethod
    def of(cls, spec: Spec, settings: Settings, root: Path) -> Site:
        """The site of a spec that promises gangs."""
        promise = spec.criteria.gang
        assert promise is not None

        def power(what: str, node: str) -> None:
            from pytest_mnode.launchers.node import Node
            from pytest_mnode.launchers.power import switch

            switch(spec.power, what, Node(node, 0, node))

        return cls(promise, lambda: opened(spec, settings, root), power, time)

    def filled(self) -> Report:
        """Report of a gang that waits, because one node is missing for it."""
        return self._rounds("filled", experiments.filled)

    def race(self) -> Report:
        """Report of two gangs that are submitted at once, with room for one."""
        return self._rounds("race", experiments.race)

    def oversize(self) -> Report:
        """Report of a gang that is larger than the cluster."""

        def conduct(stage: Stage) -> Report:
            window = experiments.oversize(stage, "too large")
            judged = judging.judged_size(window, self.promise)
            return Report(tuple(judged), tuple(table(window)), (allocation(window),))

        return self._conducted(conduct)

    def loss(self) -> Report:
        """Report of a gang that loses a node."""

        def conduct(stage: Stage) -> Report:
            lost = experiments.lose_a_node(stage, "loss", self.power)
            judged = judging.judged_lost(lost, self.promise)
            pictures = (allocation(lost.window),)
            return Report(tuple(judged), tuple(table(lost.window)), pictures)

        return self._conducted(conduct)

    def _rounds(self, name: str, how: Callable[[Stage, str], Round]) -> Report:
        def conduct(stage: Stage) -> Report:
            rounds = []
            for number in range(self.promise.rounds):
                progress("", number, self.promise.rounds)
                rounds.append(how(stage, f"{name} {number + 1}"))
            plan = stage.plan
            head = f"gangs of {plan.size} on {' '.join(plan.arena)}, seed {plan.seed}"
            lines = [line for one in rounds for line in table(one.window)]
            judged = judging.judged_rounds(rounds, self.promise)
            pictures = tuple(allocation(one.window) for one in rounds)
            return Report(tuple(judged), (head, *lines), pictures)

        return self._conducted(conduct)

    def _conducted(self, conduct: Callable[[Stage], Report]) -> Report:
        """Conduct an experiment; one that fails is inconclusive, with the reason."""
        report = Report(())
        try:
            with self.open() as engine:
                plan = Plan.of(self.promise, engine.capacity())
                report = conduct(Stage(engine, plan, self.promise, self.clock))
        except MnodeError as error:
            failed = Measurement.unknown(CONDUCTED, str(error), source=KEY)
            return Report((*report.measurements, failed), report.lines, report.charts)
        return report


@contextlib.contextmanager
def opened(spec: Spec, settings: Settings, root: Path) -> Iterator[Engine]:
    """The engine for the scheduler that the spec names; closing it leaves nothing behind.

    Raises UsageError, ClusterError.
    """
    engine = _engine(spec, settings, root)
    try:
        yield engine
    except MnodeError as error:
        try:
            engine.close()
        except ClusterError as left:
            raise ClusterError(f"{error}; {left}") from error
        raise
    except BaseException:
        with contextlib.suppress(ClusterError):
            engine.close()
        raise
    engine.close()


def _engine(spec: Spec, settings: Settings, root: Path) -> Engine:
    if spec.scheduler is None:
        raise ClusterError("the spec names no scheduler; accepted: scheduler: {kind: slurm}")
    return named(spec.scheduler.kind).gangs(spec, settings, root)


def table(window: Window) -> list[str]:
    """A round as lines: actions, nodes that each gang held, and ranks that ran.

    Times are seconds since the round began.
    """
    began = window.began_s
    lines = [f"{window.title}:"]
    lines += [f"  {at - began:+7.1f} s  {text}" for at, text in window.notes]
    for gang in window.gangs:
        states = stretches(window.seen(gang), gang.submitted_s)
        lines += [_state_line(gang, one, began) for one in states]
        for restarts in sorted({beat.restarts for beat in window.beats(gang)}):
            lines += [
                f"  {gang.name:<10} {some.began_s - began:+7.1f} s  ranks   {some.seconds:6.1f} s  "
                f"{distinct(some.ranks)} of {gang.size} heard"
                for some in presences(spans(window.beats(gang, restarts)))
            ]
    if window.problem:
        lines.append(f"  {window.problem}")
    return lines


def _state_line(gang: Gang, one: Stretch, began: float) -> str:
    held = f"{len(one.nodes)} of {gang.size} ({' '.join(one.nodes)})  " if one.nodes else ""
    return (
        f"  {gang.name:<10} {one.began_s - began:+7.1f} s  {one.state.value:<8}"
        f"{max(0.0, one.shown_s):6.1f} s  {held}{one.status}"
    ).rstrip()
