"""The experiments: a gang that waits for room, two gangs at once, a gang that is too large, and a
gang that loses a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.gang.engine import Capacity, Engine, GangRequest, Refused
from pytest_mnode.gang.judge_rounds import LARGE, Lost, Round, filled_turn, race_turn
from pytest_mnode.gang.watch import Clock, Watch
from pytest_mnode.gang.window import KEY, SMALL, Gang, State, Window
from pytest_mnode.spec.gang import GangCriterion

_MOST_FILLERS = 4
_HEARD_S = 3.0
_SMALL_RUNS_S = 1.0
_SPARE_S = 60.0
"""Added to the run time of a job for its time limit, because schedulers count minutes."""

PowerSwitch = Callable[[str, str], None]
"""Function that switches a node "off" or "on", as power("off", node). Raises ClusterError."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes of an experiment. arena: for all jobs, too few for two gangs. size: nodes per gang."""

    arena: tuple[str, ...]
    size: int
    seed: int

    @classmethod
    def of(cls, promise: GangCriterion, capacity: Capacity) -> Plan:
        """Plan on free nodes. Raises UsageError if these are too few, or `among` cannot be met."""
        wanted = promise.among or capacity.nodes
        if unknown := [node for node in wanted if node not in capacity.nodes]:
            raise UsageError(
                f"{KEY}.among: {', '.join(unknown)}: no such node; the scheduler has "
                f"{', '.join(capacity.nodes)}"
            )
        free = tuple(node for node in wanted if node in capacity.free)
        if promise.among and len(free) < len(wanted):
            taken = ", ".join(node for node in wanted if node not in free)
            raise UsageError(f"{KEY}.among: {taken} not free; give nodes that nobody uses")
        size = promise.nodes or max(2, len(free) // 2 + 1)
        if len(free) < size:
            raise UsageError(
                f"{len(free)} of {len(wanted)} nodes are free, and a gang needs {size}; nodes "
                "in the allocation of this run are not free: run it from a login node"
            )
        # Room for one gang and, if nodes suffice, for plain jobs at the same time.
        return cls(free[: 2 * size - 1], size, promise.seed)

    @property
    def fillers(self) -> tuple[int, ...]:
        """Sizes of the jobs that leave one node too few for a gang.

        The first jobs have one node each, and one of them ends; the last job is large on a large
        cluster.
        """
        nodes = len(self.arena) - (self.size - 1)
        if nodes <= _MOST_FILLERS:
            return (1,) * nodes
        return (*(1,) * (_MOST_FILLERS - 1), nodes - (_MOST_FILLERS - 1))

    def order(self, title: str, names: Iterable[str]) -> list[str]:
        """The names, in an order that depends only on the round's title and on the seed."""
        shuffled = list(names)
        Random(f"{self.seed} {title}").shuffle(shuffled)
        return shuffled


@dataclass(frozen=True, slots=True)
class Stage:
    """State shared by all rounds of an experiment."""

    engine: Engine
    plan: Plan
    promise: GangCriterion
    clock: Clock

    @property
    def turn_s(self) -> float:
        """The longest time for a job to start, to send heartbeats, and to be gone."""
        return self.promise.next_within_s + self.promise.together_s + 1.0

    def gang(self, name: str) -> GangRequest:
        runs_s = self.promise.runs_s
        return GangRequest(name, self.plan.size, runs_s, runs_s + _SPARE_S, self.plan.arena)

    def small(self) -> GangRequest:
        """A job of one node, too short to delay a waiting gang."""
        return GangRequest(SMALL, 1, _SMALL_RUNS_S, _SPARE_S, self.plan.arena)

    def gangs(self, names: Sequence[str]) -> list[GangRequest]:
        return [self.small() if name == SMALL else self.gang(name) for name in names]

    def filler(self, name: str, nodes: int) -> GangRequest:
        """A job that outlasts a round."""
        seconds = self.promise.waits_s + 4 * self.turn_s + 2 * self.promise.runs_s
        return GangRequest(name, nodes, seconds, seconds + _SPARE_S, self.plan.arena)

    def watched(
        self, title: str, conduct: Callable[[Watch], None], back_within_s: float | None = None
    ) -> Window:
        """Conduct a round, and clear up after it.

        back_within_s: seconds until its nodes must be free again; None for `next_within`.
        """
        # Heartbeats of a rank that outlives its gang may arrive late by the difference of clocks.
        linger_s = self.promise.clock_skew_s + 1.0
        watch = Watch(self.engine, title, self.clock, self.plan.arena, linger_s)
        try:
            conduct(watch)
        except ClusterError as error:
            watch.problem = f"{title}: {error}"
        # An interrupted run skips this: closing the engine then ends all remaining jobs at once.
        watch.clear_up(self.plan.arena, back_within_s or self.promise.next_within_s)
        return watch.window()


def filled(stage: Stage, title: str) -> Round:
    """Jobs fill all but N-1 nodes; a gang of N waits; a job of one node ends; the gang starts.

    A small job is submitted before or after the gang; it may use the nodes that the gang cannot.
    """
    plan, promise = stage.plan, stage.promise
    fillers = {f"filler {at + 1}": nodes for at, nodes in enumerate(plan.fillers)}
    first = plan.order(title, [name for name, nodes in fillers.items() if nodes == 1])[0]

    def conduct(watch: Watch) -> None:
        holding = [watch.submit(stage.filler(name, nodes)) for name, nodes in fillers.items()]
        watch.until(lambda: not watch.any_waiting(holding), promise.next_within_s)
        if not watch.all_in_state(holding, State.WHOLE):
            watch.problem = f"{title}: the nodes could not be filled: {watch.statuses(holding)}"
            return
        free = len(set(stage.engine.capacity().free) & set(plan.arena))
        watch.note(f"nodes filled, {free} nodes free")
        if free != plan.size - 1:
            watch.problem = (
                f"{title}: {free} nodes are free beside the jobs that fill the others, expected "
                f"{plan.size - 1}: others use these nodes"
            )
            return
        names = plan.order(title, ["B", SMALL])
        second = [watch.submit(request) for request in stage.gangs(names)]
        watch.watch(promise.waits_s)
        watch.cancel(gang for gang in holding if gang.name == first)
        watch.until(lambda: watch.all_in_state(second, State.OVER), stage.turn_s + promise.runs_s)

    window = stage.watched(title, conduct)
    if window.problem or len(window.gangs) < len(fillers) + 2:
        return Round(window, None)
    return Round(window, filled_turn(window, "B", list(fillers), (first, SMALL)))


def race(stage: Stage, title: str) -> Round:
    """Two gangs of N and a small job are submitted at once, shuffled, with room for one gang."""
    plan, promise = stage.plan, stage.promise
    small = [SMALL] if len(plan.arena) > plan.size else []
    names = plan.order(title, ["A", "B", *small])

    def conduct(watch: Watch) -> None:
        every = [watch.submit(request) for request in stage.gangs(names)]
        limit_s = 2 * (stage.turn_s + promise.runs_s)
        watch.until(
            lambda: watch.all_in_state(every, State.OVER) or _never_starts(watch, every, stage),
            limit_s,
        )

    window = stage.watched(title, conduct)
    if window.problem or len(window.gangs) < len(names):
        return Round(window, None)
    return Round(window, race_turn(window, ("A", "B")))


def _never_starts(watch: Watch, gangs: list[Gang], stage: Stage) -> bool:
    """Whether no gang was whole for longer than promised, so that more waiting is useless."""
    states = [watch.state(gang) for gang in gangs if gang.size > 1]
    waited_s = watch.observations[-1].answered_s - watch.observations[0].requested_s
    return State.WHOLE not in states and State.OVER not in states and waited_s > stage.turn_s


def oversize(stage: Stage, title: str) -> Window:
    """A gang requests one node more than there are; a gang and a small job are submitted later."""

    def conduct(watch: Watch) -> None:
        request = stage.gang(LARGE)
        size = len(stage.engine.capacity().nodes) + 1
        try:
            watch.submit(GangRequest(LARGE, size, request.runs_s, request.limit_s))
        except Refused as refused:
            watch.refused = str(refused) or "without a reason"
            watch.note(f"{LARGE} ({size} nodes) refused: {refused}")
        others = [watch.submit(stage.gang("B")), watch.submit(stage.small())]
        limit_s = 2 * stage.turn_s + stage.promise.runs_s
        watch.until(lambda: watch.all_in_state(others, State.OVER), limit_s)

    return stage.watched(title, conduct)


def lose_a_node(stage: Stage, title: str, power: PowerSwitch) -> Lost:
    """One node of a running gang is switched off, and on again after the gang has left it."""
    plan, promise = stage.plan, stage.promise
    lost: list[tuple[str, float]] = []

    def conduct(watch: Watch) -> None:
        long_s = 4 * promise.lost_within_s
        requeue = promise.node_loss != "cancelled"
        request = GangRequest("B", plan.size, long_s, long_s, plan.arena, requeue=requeue)
        gang = watch.submit(request)
        limit_s = promise.next_within_s + _HEARD_S
        watch.until(lambda: _runs(watch, gang, 0) or watch.state(gang) is State.OVER, limit_s)
        watch.watch(_HEARD_S)
        last = watch.last(gang)
        if last is None or not _runs(watch, gang, last.restarts):
            watch.problem = (
                f"{title}: the gang did not run or sent no heartbeats, so no node was switched "
                f"off: {watch.statuses([gang])}"
            )
            return
        restarts = last.restarts
        node = plan.order(title, sorted(watch.held(gang)))[0]
        try:
            at = stage.clock.time()
            watch.ignore_absence(node)
            watch.during(lambda: power("off", node))
            lost.append((node, at))
            watch.note(f"{node} switched off")
            watch.until(lambda: not _is_whole(watch, gang, restarts), promise.lost_within_s)
        except BaseException as error:
            # Also if the command failed: one that timed out may have switched the node off.
            try:
                power("on", node)
            except ClusterError as still:
                if isinstance(error, ClusterError):
                    raise ClusterError(f"{error}; {node} may be without power: {still}") from error
            raise
        watch.during(lambda: power("on", node))
        watch.note(f"{node} switched on")
        watch.until(
            lambda: watch.state(gang) is State.OVER or _runs(watch, gang, restarts + 1),
            promise.lost_within_s,
        )
        watch.watch(_HEARD_S)

    window = stage.watched(title, conduct, back_within_s=promise.lost_within_s)
    return Lost(window, *lost[0]) if lost else Lost(window)


def _is_whole(watch: Watch, gang: Gang, restarts: int) -> bool:
    last = watch.last(gang)
    return last is not None and last.state is State.WHOLE and last.restarts == restarts


def _runs(watch: Watch, gang: Gang, restarts: int) -> bool:
    """Whether the gang is whole in this start or a later one, with a heartbeat of every rank."""
    last = watch.last(gang)
    if last is None or last.state is not State.WHOLE or last.restarts < restarts:
        return False
    heard = {
        (beat.job, beat.rank)
        for observation in watch.observations
        for beat in observation.beats
        if beat.job in gang.jobs and beat.restarts == last.restarts
    }
    return len(heard) >= gang.size
