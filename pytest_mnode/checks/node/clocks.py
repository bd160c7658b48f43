"""Clocks: whether those of all nodes agree."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey, no_answer
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.edges import Edge
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.spec.fields import Seconds, Section
from pytest_mnode.spec.inventory import Inventory
from pytest_mnode.spec.quantity import DURATION

_USELESS_SKEW_S = 5.0


class Clocks(Section):
    """The clocks of the nodes agree."""

    skew_s: Seconds = Field(alias="skew")
    """Largest distance of a node's clock from the middle one, such as 50 ms."""


@check("preflight.clocks")
class ClocksAgree(SurveyCheck):
    """Does this node's clock agree with the others'?

    Skew between this node's clock and the median clock, by four time stamps as in NTP, in the
    fastest exchange; the error is at most half of its duration. A skew that is closer to the bound
    than its error is inconclusive.
    """

    promise: Clocks
    of_paths = True
    compared_only = frozenset({"skew"})

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        skew_s = self.promise.skew_s
        source = f"preflight.clocks.skew {DURATION.text(round(skew_s, 9))}"
        bound = at_most(skew_s * 1e3).of("criteria.preflight.clocks.skew", skew_s)
        if len(survey.nodes) > 1:
            yield _skew(survey, survey.node(name), Subject("clock skew", "ms", bound, source))

    def doubts(self, cluster: Inventory) -> Iterator[str]:  # noqa: ARG002
        if (skew_s := self.promise.skew_s) >= _USELESS_SKEW_S:
            shown = DURATION.text(skew_s)
            yield f".skew: {shown}: logs of two nodes could not be put in order"


def _skew(survey: Survey, me: NodeSurvey, subject: Subject) -> Measurement:
    if me.facts is None or me.paths is None:
        return subject.unknown(no_answer(me))
    middle = _middle(survey)
    if middle is None:
        return subject.unknown("no two nodes exchanged time stamps")
    if middle is me:
        return subject.measured(0.0, note=f"the median of {len(survey.nodes)} clocks")
    measured = _offsets(survey).get((me.index, middle.index))
    if measured is None:
        return subject.unknown(
            f"{me.name} and {middle.name}, whose clock is the median, exchanged no time stamps"
        )
    offset_s, error_s = measured
    skew_ms, error_ms = abs(offset_s) * 1e3, error_s * 1e3
    side = "behind" if offset_s > 0 else "ahead of"
    note = f"{me.name} is {side} {middle.name}, known to ± {error_ms:.3g} ms"
    if abs(skew_ms - subject.bound.limit) <= error_ms:
        return subject.unknown(f"{note}: {skew_ms:.4g} ms is too close to the bound to decide")
    culprit, agree = Culprit(f"{me.name} clock", me.name), [*survey.names]
    if not subject.bound.holds(skew_ms):
        agree = _agreeing(survey, middle, subject.bound.limit / 1e3)
    if len(survey.nodes) == 2:
        words = f"{me.name} or {middle.name}: two clocks cannot show which is right"
        culprit = Culprit(words, either=[[me.name, middle.name]])
    elif 2 * len(agree) <= len(survey.nodes):
        words = f"{culprit}, or those of {listed(agree)}: no majority says which are right"
        culprit = Culprit(words, either=[[me.name, *agree]])
    return subject.measured(skew_ms, culprit, note)


def _agreeing(survey: Survey, middle: NodeSurvey, most_s: float) -> list[str]:
    """The node `middle`, and the nodes whose clocks differ from its clock by at most `most_s`."""
    offsets = _offsets(survey)
    return [
        node.name
        for node in survey.nodes
        if node is middle
        or ((found := offsets.get((middle.index, node.index))) and abs(found[0]) <= most_s)
    ]


@lru_cache(maxsize=1)
def _middle(survey: Survey) -> NodeSurvey | None:
    """The node with the median clock, among the node with most exchanges and its partners."""
    by_node: dict[int, dict[int, float]] = {}
    for (one, other), (offset_s, _) in _offsets(survey).items():
        by_node.setdefault(one, {one: 0.0})[other] = offset_s
    best: dict[int, float] = {}
    for index in sorted(by_node):
        if len(by_node[index]) > len(best):
            best = by_node[index]
    ordered = sorted(best, key=lambda index: (best[index], index))
    return survey.nodes[ordered[(len(ordered) - 1) // 2]] if ordered else None


@lru_cache(maxsize=1)
def _offsets(survey: Survey) -> dict[Edge, tuple[float, float]]:
    """The second node's clock minus the first's, and the largest error of that, s.

    Taken from the most exact exchange that either of the two nodes measured.
    """
    found: dict[Edge, tuple[float, float]] = {}
    for node in survey.nodes:
        for path in node.paths.paths if node.paths else ():
            if path.offset_s is None or path.error_s is None:
                continue
            there, back = (node.index, path.to), (path.to, node.index)
            for edge, offset_s in ((there, path.offset_s), (back, -path.offset_s)):
                if edge not in found or path.error_s < found[edge][1]:
                    found[edge] = offset_s, path.error_s
    return found
