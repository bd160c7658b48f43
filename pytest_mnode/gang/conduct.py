"""From a spec to findings: the engine is opened, the experiment conducted, all taken down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart.findings import Finding
from pytest_mnode.errors import ClusterError, MnodeError
from pytest_mnode.gang import judging
from pytest_mnode.gang.contention import filled, race
from pytest_mnode.gang.engine import Engine
from pytest_mnode.gang.loss import Power, lose_a_node
from pytest_mnode.gang.oversize import oversize
from pytest_mnode.gang.plan import plan
from pytest_mnode.gang.stage import Stage
from pytest_mnode.gang.table import table
from pytest_mnode.gang.terms import KEY, Terms
from pytest_mnode.gang.turns import Round
from pytest_mnode.gang.watching import Clock, WallClock
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.wrong import Wrong

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.options import Settings
    from pytest_mnode.spec import Spec

CONDUCTED = "experiments that could not be conducted"


@dataclass(frozen=True, slots=True)
class Report:
    """What an experiment found. lines: each round, with every state and its duration."""

    findings: tuple[Finding, ...]
    lines: tuple[str, ...] = ()

    def text(self) -> str:
        """To print."""
        return "\n".join(self.lines)

    def record(self, measure: Measure) -> None:
        """Have it judged with the test."""
        for finding in self.findings:
            finding.record(measure)


@dataclass(frozen=True, slots=True)
class Site:
    """Where experiments are conducted: the scheduler that a spec names.

    open: makes the engine, for one experiment. power: switches nodes.
    """

    promise: GangCriterion
    open: Callable[[], contextlib.AbstractContextManager[Engine]]
    power: Power
    clock: Clock

    @classmethod
    def of(cls, spec: Spec, settings: Settings, root: Path) -> Site:
        """The spec's own. It has to promise gangs."""
        promise = spec.criteria.gang
        assert promise is not None

        def power(what: str, node: str) -> None:
            from pytest_mnode.launchers.node import Node
            from pytest_mnode.launchers.power import switch

            switch(spec.power, what, Node(node, 0, node))

        return cls(promise, lambda: opened(spec, settings, root), power, WallClock())

    def filled(self) -> Report:
        """A gang, and room that is one node too small for it."""
        return self._rounds("filled", filled)

    def race(self) -> Report:
        """Two gangs at once, and room for one."""
        return self._rounds("race", race)

    def oversize(self) -> Report:
        """A gang that is larger than the cluster."""

        def conduct(stage: Stage) -> Report:
            window = oversize(stage, "too large")
            found = judging.judged_size(window, self._terms)
            return Report(tuple(found), tuple(table(window)))

        return self._conducted(conduct)

    def loss(self) -> Report:
        """A gang whose node dies."""

        def conduct(stage: Stage) -> Report:
            lost = lose_a_node(stage, "loss", self.power)
            found = judging.judged_lost(lost, self.promise, self._terms)
            return Report(tuple(found), tuple(table(lost.window)))

        return self._conducted(conduct)

    @property
    def _terms(self) -> Terms:
        return Terms.of(self.promise)

    def _rounds(self, name: str, how: Callable[[Stage, str], Round]) -> Report:
        def conduct(stage: Stage) -> Report:
            rounds = [how(stage, f"{name} {n + 1}") for n in range(self.promise.rounds)]
            planned = stage.plan
            head = f"gangs of {planned.size} on {' '.join(planned.arena)}, seed {planned.seed}"
            lines = [line for one in rounds for line in table(one.window)]
            return Report(tuple(judging.judged_rounds(rounds, self._terms)), (head, *lines))

        return self._conducted(conduct)

    def _conducted(self, conduct: Callable[[Stage], Report]) -> Report:
        """What could not be tried is inconclusive, with its reason."""
        report: Report | None = None
        try:
            with self.open() as engine:
                planned = plan(self.promise, engine.capacity())
                report = conduct(Stage(engine, planned, self.promise, self.clock))
        except MnodeError as error:
            failed = Wrong(CONDUCTED, None, KEY, note=str(error))
            before: Sequence[Finding] = report.findings if report else ()
            return Report((*before, failed), report.lines if report else ())
        return report


@contextlib.contextmanager
def opened(spec: Spec, settings: Settings, root: Path) -> Iterator[Engine]:
    """The engine for the scheduler that the spec names; nothing of it is left behind.

    Raises UsageError, ClusterError.
    """
    scheduler = spec.scheduler
    if scheduler is None:
        raise ClusterError("the spec names no scheduler; accepted: scheduler: {kind: slurm}")
    from pytest_mnode.gang.slurm import SlurmEngine, default_shared

    engine = SlurmEngine(
        settings.shared_dir or default_shared(root),
        python=settings.python,
        args=settings.slurm_args,
        names=scheduler.names,
    )
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
