"""A chart of a round: the nodes that each gang held, and the gang that held each node. Pure."""

from __future__ import annotations

from pytest_mnode.charts import Moment, Span, Timeline
from pytest_mnode.gang.timeline import State, Stretch, stretches
from pytest_mnode.gang.window import Window


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
