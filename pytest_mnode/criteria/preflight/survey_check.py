"""Checks of what the survey finds on all nodes: machines, paths, files; and how one is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pytest_mnode.criteria.preflight.answers import Directory, NodeSurvey, Survey
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import Check, Evidence, raised
from pytest_mnode.evidence.reading import ReadOrder
from pytest_mnode.evidence.row import Row
from pytest_mnode.evidence.rules import Unread
from pytest_mnode.measurement import Measurement

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec


NEED_RANKS = (
    "mesh",
    "fabric",
    "numa",
    "devices",
    "groups",
    "data",
    "storage",
    "launch",
    "scaling",
    "restart",
)
"""Criteria that are of no use on nodes that cannot meet."""


class SurveyCheck(Check):
    """A check without a reading of its own, which judges what every survey reads: by `rule`, from
    `rows` of each node, or by a `judge` of its own.

    parts: parts of the machine that it needs; see `machine.model`.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    spec: Spec

    def directories(self) -> Iterable[Directory]:
        """Directories that each node inspects for it. An inspection hangs where their file server
        hangs, so it is made only for checks that are asked."""
        return ()

    def unread(self, node: NodeSurvey) -> str:
        """Why nothing is known of a node; "" if something is."""
        return next(filter(None, map(node.why, self.parts or ("",))), "")

    def rows(self, node: NodeSurvey) -> Iterable[Row]:
        """Rows of a node that has all `parts`."""
        raise NotImplementedError

    def by_node(self, evidence: Survey) -> Mapping[str, Sequence[Row]]:
        """Its rows of a survey by node, or why a node has none. Pure."""
        return {node.name: self._rows_of(node) for node in evidence.nodes}

    def _rows_of(self, node: NodeSurvey) -> Sequence[Row]:
        if why := self.unread(node):
            return Unread(why)
        try:
            return [replace(one, node=node.name) for one in self.rows(node)]
        except Exception as error:  # that of a site may raise anything
            return Unread(raised("reading", error))


def of_node(name: str, one: Measurement) -> Measurement:
    """A finding about a node: a culprit in plain words is this node's."""
    culprit = one.culprit
    if culprit is None or culprit.nodes or any(culprit.either):
        return one
    return replace(one, culprit=Culprit(culprit, name))


def promise_of(one: type[Check], spec: Spec) -> Any:
    """What a spec promises for a check; None if nothing."""
    return getattr(spec.criteria.preflight, one.key.removeprefix("preflight."), None)


def promised_checks(spec: Spec, asked: Iterable[type[Check]]) -> list[Check]:
    """Of these checks those that a spec promises, each of their parts by itself."""
    found = ((one, promise_of(one, spec)) for one in asked)
    return [
        one(promise, spec, part)
        for one, promise in found
        if promise is not None
        for part in one.each or ("",)
    ]


def read_orders(checks: Iterable[Check], on: Literal["node", "rank"]) -> tuple[ReadOrder, ...]:
    """The readings of checks that are read on nodes, or in ranks."""
    found = {one.case(): one for one in checks if one.on == on and one.reads()}
    return tuple(ReadOrder.of(type(one), one.promise) for one in found.values())


def judged(
    one: type[Check], evidence: Evidence, spec: Spec, node: str, part: str = ""
) -> list[Measurement]:
    """Findings of a check about one node; [] if the spec does not promise it."""
    checks: list[Any] = [made for made in promised_checks(spec, [one]) if made.part == part]
    return [found for check in checks for found in check.judge(evidence, node)]
