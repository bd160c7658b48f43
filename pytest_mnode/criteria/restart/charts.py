"""Chart of a kill and the recovery: what each rank did when. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_mnode.charts import Moment, Span, Timeline
from pytest_mnode.criteria.restart.history import History, Incarnation
from pytest_mnode.criteria.restart.resuming import KillReport
from pytest_mnode.jobs import JobEvent

_MOST_LANES = 16
_CHECKPOINTS = "checkpoints"
_KEPT, _REDONE, _LOADING, _SAVING = "trains", "trains, lost by the kill", "loads", "saves"


def kill_timeline(
    kill: str, history: History, report: KillReport, events: Sequence[JobEvent]
) -> Timeline | None:
    """Timeline of ranks from the killed start to the start after it; of many ranks, the first.

    Times are by the clocks of the nodes, which differ a little. None if there was no kill.
    """
    last = report.incarnations or len(history.incarnations)
    shown = history.incarnations[report.incarnation : last]
    if report.missed or not shown:
        return None
    began = min(own.start.time for one in shown for own in one.by_rank.values())
    until = max((span.end_s for one in shown for span in _spans(one, history, 0.0)), default=began)
    spans = [span for one in shown for span in _spans(one, history, began)]
    happened = [(report.at, f"{report.what} (clock of {report.clock})")]
    happened += [
        (event.time_s, " ".join(filter(None, (event.what, event.node, event.detail))))
        for event in events
        if event.what not in ("signalled", "submitted", "started")
        and report.at <= event.time_s <= until
    ]
    ranks = {span.lane for span in spans} - {_CHECKPOINTS}
    lanes = sorted(ranks, key=lambda lane: int(lane.split()[1]))[:_MOST_LANES]
    lanes += [_CHECKPOINTS] if any(span.lane == _CHECKPOINTS for span in spans) else []
    return Timeline(
        f"Kill of {kill} and resume, by the clocks of the nodes",
        tuple(lanes),
        tuple(span for span in spans if span.lane in lanes),
        tuple(Moment(round(at - began, 3), text) for at, text in sorted(happened)),
        (_KEPT, _REDONE, _LOADING, _SAVING),
    )


def _spans(one: Incarnation, history: History, began: float) -> Iterator[Span]:
    """What the ranks of one start did, in seconds since `began`."""
    kept = history.kept_until(one)

    def span(lane: str, start: float, end: float, state: str, text: str) -> Span:
        return Span(lane, round(start - began, 3), round(end - began, 3), state, text)

    for rank, own in one.by_rank.items():
        lane, ready = f"rank {rank}", own.start.time
        loaded = f"step {own.start.loaded}" if own.start.loaded else ""
        yield span(lane, ready - own.start.load_s, ready, _LOADING, loaded)
        for state, steps in (
            (_KEPT, [s for s in own.steps if s.step <= kept]),
            (_REDONE, [s for s in own.steps if s.step > kept]),
        ):
            if steps:
                text = f"{steps[0].step}–{steps[-1].step}"
                yield span(lane, steps[0].began, steps[-1].ended, state, text)
        for saved in own.checkpoints:
            yield span(_CHECKPOINTS, saved.begun, saved.ended, _SAVING, f"step {saved.step}")
