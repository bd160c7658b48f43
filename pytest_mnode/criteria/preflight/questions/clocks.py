"""Do the clocks of the nodes agree?"""

from __future__ import annotations

from pytest_mnode.criteria.preflight.facts import NodeSurvey, Path, Survey
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    Subject,
    listed,
    silence,
)
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.spec import Spec
from pytest_mnode.spec.quantity import DURATION


def clocks(survey: Survey, spec: Spec, name: str) -> Answer:
    """How far this node's clock is from the middle one.

    Measured by four time stamps as NTP does, in the exchange that was over soonest; it may be wrong
    by half of that exchange. A skew whose error leaves the verdict open is inconclusive.
    """
    promise = spec.criteria.preflight
    if promise is None or promise.clocks is None:
        return NotPromised("that clocks agree")
    if len(survey.nodes) == 1:
        return NotPromised("one node has no other clock to agree with")
    bound = at_most(promise.clocks.skew_s * 1e3)
    source = f"preflight.clocks.skew {DURATION.text(_exact(promise.clocks.skew_s))}"
    return (_skew(survey, survey.node(name), Subject("clock skew", "ms", bound, source)),)


def _skew(survey: Survey, me: NodeSurvey, subject: Subject) -> Measurement:
    if me.facts is None or me.paths is None:
        return subject.unknown(silence(me))
    middle = _middle(survey)
    if middle is None:
        return subject.unknown("no two nodes exchanged time stamps")
    if middle is me:
        return subject.measured(0.0, note=f"the middle one of {len(survey.nodes)} clocks")
    measured = _offset(me, middle)
    if measured is None:
        return subject.unknown(
            f"{me.name} and {middle.name}, whose clock is the middle one, exchanged no time stamps"
        )
    offset_s, error_s = measured
    skew_ms, error_ms = abs(offset_s) * 1e3, error_s * 1e3
    side = "behind" if offset_s > 0 else "ahead of"
    note = f"{me.name} is {side} {middle.name}, known to ± {error_ms:.3g} ms"
    if abs(skew_ms - subject.bound.limit) <= error_ms:
        return subject.unknown(f"{note}: {skew_ms:.4g} ms is too near to the bound for that")
    culprit = f"{me.name} clock"
    agree = _agreeing(survey, middle, subject.bound.limit / 1e3)
    if len(survey.nodes) == 2:
        culprit = f"{me.name} or {middle.name}: two clocks do not say which is right"
    elif 2 * len(agree) <= len(survey.nodes):
        culprit += f", or those of {listed(agree)}: no majority says which are right"
    return subject.measured(skew_ms, culprit, note)


def _agreeing(survey: Survey, middle: NodeSurvey, most_s: float) -> list[str]:
    """The middle clock's node, and those whose clocks are no further from it than this."""
    measured = {other.name: _offset(middle, other) for other in survey.others(middle)}
    near = {name for name, found in measured.items() if found and abs(found[0]) <= most_s}
    return [node.name for node in survey.nodes if node is middle or node.name in near]


def _exact(seconds: float) -> float:
    return round(seconds, 9)


def _middle(survey: Survey) -> NodeSurvey | None:
    """The node whose clock is the median, of those that exchanged time stamps with most others."""
    named = {node.index: node for node in survey.nodes}
    best: dict[int, float] = {}
    for node in survey.nodes:
        offsets = {node.index: 0.0}
        for other in survey.others(node):
            measured = _offset(node, other)
            if measured is not None:
                offsets[other.index] = measured[0]
        if len(offsets) > max(1, len(best)):
            best = offsets
    ordered = sorted(best, key=lambda index: (best[index], index))
    return named[ordered[(len(ordered) - 1) // 2]] if ordered else None


def _offset(node: NodeSurvey, other: NodeSurvey) -> tuple[float, float] | None:
    """The other's clock less this node's, and by how much that may be wrong, s; by the best path.

    Either of the two may have measured it.
    """
    found = [(path.offset_s, path.error_s) for path in _timed(node, other)]
    found += [(-(path.offset_s or 0.0), path.error_s) for path in _timed(other, node)]
    known = [(o, e) for o, e in found if o is not None and e is not None]
    return min(known, key=lambda pair: pair[1]) if known else None


def _timed(node: NodeSurvey, other: NodeSurvey) -> list[Path]:
    paths = node.paths.paths if node.paths else ()
    return [p for p in paths if p.to == other.index and p.offset_s is not None]
