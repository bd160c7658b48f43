"""Checks of what the survey finds on all nodes: machines, paths, files; and how one is judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Measurement

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec


NEED_RANKS = ("mesh", "fabric", "numa", "devices", "groups", "data", "launch", "scaling", "restart")
"""Criteria that are of no use on nodes that cannot meet."""


class SurveyCheck(Check):
    """A check without a reading of its own, which judges what every survey reads.

    parts: parts of the machine that are only read for it; see `machine.model`. stored: whether it
    needs the storage paths to be read, which hangs where their file server hangs.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[bool] = False
    spec: Spec

    def judge(self, survey: Survey, name: str) -> Iterable[Measurement]:
        """Findings about one node of a survey. Pure."""
        raise NotImplementedError


def promise_of(one: type[Check], spec: Spec) -> Any:
    """What a spec promises for a check; None if nothing."""
    return getattr(spec.criteria.preflight, one.key.removeprefix("preflight."), None)


def promised_checks(spec: Spec, asked: Iterable[type[Check]]) -> list[Check]:
    """Of these checks those that a spec promises."""
    found = ((one, promise_of(one, spec)) for one in asked)
    return [one(promise, spec) for one, promise in found if promise is not None]


def judged(
    one: type[Check], survey: Survey, spec: Spec, node: str, part: str = ""
) -> list[Measurement]:
    """Findings of a check about one node; [] if the spec does not promise it."""
    promise = promise_of(one, spec)
    if promise is None:
        return []
    check = one(promise, spec, part)
    if isinstance(check, SurveyCheck):
        return list(check.judge(survey, node))
    by_node = {other.name: other.rows(one.case()) for other in survey.nodes}
    return list(check.rule(Rows(node, one.key, promise, by_node)))


def all_judged(
    survey: Survey, spec: Spec, asked: Sequence[type[Check]], node: str
) -> list[Measurement]:
    """Findings of many checks of nodes, with all of their parts."""
    return [
        found
        for one in asked
        for part in one.each or ("",)
        for found in judged(one, survey, spec, node, part)
    ]
