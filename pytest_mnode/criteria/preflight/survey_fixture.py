"""Preflight for tests: one survey per run, judged for one node at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.cluster import NodesOfRun, nodes_of_run
from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.environment import RankEnvironment, read_environment
from pytest_mnode.criteria.preflight.installed import installed
from pytest_mnode.criteria.preflight.judges.common import of_node
from pytest_mnode.criteria.preflight.survey import survey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck, judged, promised_checks
from pytest_mnode.errors import MnodeError
from pytest_mnode.marks import fixture_names
from pytest_mnode.measurement import Measurement
from pytest_mnode.skipping import not_promised, promised

if TYPE_CHECKING:
    from pytest_mnode.evidence.check import Check
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

Judge = Callable[[Survey, "Spec", str], list[Measurement]]
"""A judge of `judges`: `(survey, spec, node) -> list[Measurement]`."""
RankJudge = Callable[[Sequence[RankEnvironment] | None, "Spec", str, str], list[Measurement]]
"""A judge of `(ranks, spec, node, why)`; without a world, ranks is None and why is the reason."""

_CHECK = "mnode_check"
STORAGE_FIXTURE = "ask_storage"
"""Fixture that tests of the storage paths request."""
_SURVEY: pytest.StashKey[Survey] = pytest.StashKey()
_RANKS: pytest.StashKey[Environments] = pytest.StashKey()


@dataclass(frozen=True, slots=True)
class Environments:
    """Ranks of a world over all nodes, by rank; without a world, None and the reason in `why`."""

    ranks: tuple[RankEnvironment, ...] | None
    why: str = ""


def case_of(one: type[Check]) -> Callable[..., None]:
    """The test of a check, for each node: a function that pytest collects."""
    if one.each:

        @pytest.mark.parametrize("part", one.each)
        def case(ask: NodeJudgement, part: str) -> None:
            ask.check(one, part)

    else:

        def case(ask: NodeJudgement) -> None:  # type: ignore[misc]
            ask.check(one)

    case.__name__ = case.__qualname__ = one.case()
    case.__doc__ = one.__doc__
    # Where pytest shows the place of a test, it is the check's.
    line = inspect.getsourcelines(one)[1]
    case.__code__ = case.__code__.replace(co_filename=inspect.getfile(one), co_firstlineno=line)
    vars(case)[_CHECK] = one
    return pytest.mark.stops(*one.stops)(case) if one.stops else case


def check_of(item: pytest.Item) -> type[Check] | None:
    """The check that a test was made of by `case_of`; None for any other test."""
    found: type[Check] | None = getattr(getattr(item, "obj", None), _CHECK, None)
    return found


def spec_to_survey(spec: Spec, items: Sequence[pytest.Item]) -> Spec:
    """Spec of the survey, without the storage paths if no test requests `STORAGE_FIXTURE`.

    The probe writes to these paths, and hangs if their file server hangs.
    """
    checks = filter(None, map(check_of, items))
    if any(issubclass(one, SurveyCheck) and one.stored for one in checks) or any(
        STORAGE_FIXTURE in fixture_names(item) for item in items
    ):
        return spec
    return spec.model_copy(update={"storage": None})


class NodeJudgement:
    """Judges one node of a run, and records the measurements."""

    def __init__(self, test: pytest.Item, spec: Spec, node: str, measure: Measure) -> None:
        self._test, self._session, self._spec = test, test.session, spec
        self._node, self._measure = node, measure

    def check(self, one: type[Check], part: str = "") -> None:
        """Record the findings of a check about this node."""
        promised(self._spec, "preflight")
        promised(self._spec, one.key)
        surveyed = self._surveyed()
        found = judged(one, surveyed, self._spec, self._node, part)
        if not found and len(surveyed.nodes) == 1:
            not_promised(f"{one.key}: one node has no other to compare with")
        self._record(one.key, found)

    def __call__(self, key: str, judge: Judge) -> None:
        """Record a judge's measurements of this node, from a survey that is made once per run.

        key: spec key, such as "preflight.mtu"; the test ends as not promised if the spec lacks it.
        """
        promised(self._spec, "preflight")
        promised(self._spec, key)
        surveyed = self._surveyed()
        found = judge(surveyed, self._spec, self._node)
        if not found and len(surveyed.nodes) == 1:
            not_promised(f"{key}: one node has no other to compare with")
        self._record(key, found)

    def ranks(self, key: str, judge: RankJudge) -> None:
        """Record a judge's measurements of ranks of a world over all nodes, read once per run."""
        promised(self._spec, "preflight")
        promised(self._spec, key)
        stash = self._session.config.stash
        if _RANKS not in stash:
            stash[_RANKS] = self._read_ranks()
        found = stash[_RANKS]
        self._record(key, judge(found.ranks, self._spec, self._node, found.why))

    def _record(self, key: str, found: list[Measurement]) -> None:
        if not found:
            not_promised(f"{key} does not cover this check", key=key)
        self._measure.record([of_node(self._node, one) for one in found])

    @property
    def _run(self) -> NodesOfRun:
        return nodes_of_run(self._session.config)

    def _surveyed(self) -> Survey:
        stash = self._session.config.stash
        if _SURVEY not in stash:
            items = self._session.items
            code = sorted({str(item.path.parent) for item in items})
            spec = spec_to_survey(self._spec, items)
            # No lease: a lease needs agents, and a node may be too broken to run one.
            asked = dict.fromkeys(filter(None, map(check_of, items)))
            checks = promised_checks(spec, asked)
            stash[_SURVEY] = survey(self._run.all_nodes(), spec, code, checks)
            self._measure.chart(installed(stash[_SURVEY], spec))
        return stash[_SURVEY]

    def _read_ranks(self) -> Environments:
        try:
            cluster = self._run.lease_cluster(self._test)
        except MnodeError as error:
            return Environments(None, f"no world: {str(error).splitlines()[0]}")
        try:
            with cluster.world() as world:
                found = world.run(read_environment)
        except MnodeError as error:
            return Environments(None, f"no world: {str(error).splitlines()[0]}")
        finally:
            cluster.close()
        return Environments(tuple(replace(rank, number=i) for i, rank in enumerate(found)))
