"""The two experiments under contention: room that is one node too small, and two gangs at once."""

from __future__ import annotations

from pytest_mnode.gang.stage import Stage
from pytest_mnode.gang.terms import SMALL
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.gang.turns import Round, filled_turn, race_turn
from pytest_mnode.gang.watching import Watch


def filled(stage: Stage, title: str) -> Round:
    """Jobs fill all but N−1 nodes; a gang of N waits; a job of one node ends; the gang starts.

    A small job comes before the gang or after it, and may use what the gang cannot.
    """
    plan, promise = stage.plan, stage.promise
    fillers = {f"filler {at + 1}": nodes for at, nodes in enumerate(plan.fillers)}
    first = plan.order(title, [name for name, nodes in fillers.items() if nodes == 1])[0]

    def conduct(watch: Watch) -> None:
        holding = [watch.submit(stage.filler(name, nodes)) for name, nodes in fillers.items()]
        watch.until(lambda: not watch.waits(holding), promise.next_within_s)
        if not watch.are(holding, State.WHOLE):
            watch.problem = f"{title}: the room could not be filled: {watch.told(holding)}"
            return
        free = len(set(stage.engine.capacity().free) & set(plan.arena))
        watch.note(f"room filled, {free} nodes free")
        if free != plan.size - 1:
            watch.problem = (
                f"{title}: {free} nodes free beside what fills the room, and not {plan.size - 1}: "
                "somebody else uses these nodes"
            )
            return
        second = [
            watch.submit(stage.small() if name == SMALL else stage.gang(name))
            for name in plan.order(title, ["B", SMALL])
        ]
        watch.watch(promise.waits_s)
        watch.cancel(gang for gang in holding if gang.name == first)
        watch.until(lambda: watch.are(second, State.OVER), stage.turn_s + promise.runs_s)

    window = stage.watched(title, conduct)
    if window.problem or len(window.gangs) < len(fillers) + 2:
        return Round(window, None)
    return Round(window, filled_turn(window, "B", list(fillers), (first, SMALL)))


def race(stage: Stage, title: str) -> Round:
    """Two gangs of N are submitted at once into room for one; a small job comes in between them."""
    plan, promise = stage.plan, stage.promise
    small = [SMALL] if len(plan.arena) > plan.size else []
    names = plan.order(title, ["A", "B", *small])

    def conduct(watch: Watch) -> None:
        every = [
            watch.submit(stage.small() if name == SMALL else stage.gang(name)) for name in names
        ]
        limit = 2 * (stage.turn_s + promise.runs_s)
        watch.until(lambda: watch.are(every, State.OVER) or _stuck(watch, every, stage), limit)

    window = stage.watched(title, conduct)
    if window.problem or len(window.gangs) < len(names):
        return Round(window, None)
    return Round(window, race_turn(window, ("A", "B")))


def _stuck(watch: Watch, gangs: list[Gang], stage: Stage) -> bool:
    """No gang was ever whole for longer than is promised; waiting on shows nothing new."""
    states = [watch.state(gang) for gang in gangs if gang.size > 1]
    waited = watch.looks[-1].answered_s - watch.looks[0].asked_s
    return State.WHOLE not in states and State.OVER not in states and waited > stage.turn_s
