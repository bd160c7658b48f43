"""A gang larger than the cluster is submitted, and others behind it."""

from __future__ import annotations

from pytest_mnode.gang.engine import Ask, Refused
from pytest_mnode.gang.stage import Stage
from pytest_mnode.gang.terms import Window
from pytest_mnode.gang.timeline import State
from pytest_mnode.gang.toolarge import LARGE, REFUSED
from pytest_mnode.gang.watching import Watch


def oversize(stage: Stage, title: str) -> Window:
    """One node more than there are is asked for, and then by others what there is."""

    def conduct(watch: Watch) -> None:
        ask = stage.gang(LARGE)
        size = len(stage.engine.capacity().nodes) + 1
        try:
            watch.submit(Ask(LARGE, size, ask.runs_s, ask.limit_s))
        except Refused as refused:
            watch.note(f"{LARGE} ({size} nodes) {REFUSED}{refused}")
        others = [watch.submit(stage.gang("B")), watch.submit(stage.small())]
        limit = 2 * stage.turn_s + stage.promise.runs_s
        watch.until(lambda: watch.are(others, State.OVER), limit)

    return stage.watched(title, conduct)
