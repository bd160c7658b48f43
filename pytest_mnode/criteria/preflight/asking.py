"""Preflight for tests: one survey a run, one answer a question and node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.cluster import NodesOfRun, nodes_of_run
from pytest_mnode.criteria.preflight.conduct import survey
from pytest_mnode.criteria.preflight.facts import Survey
from pytest_mnode.criteria.preflight.questions.answer import Answer, NotPromised
from pytest_mnode.criteria.preflight.ranks import RankEnvironment, read_environment
from pytest_mnode.errors import MnodeError
from pytest_mnode.marks import fixture_names
from pytest_mnode.skipping import not_promised

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

Question = Callable[[Survey, "Spec", str], Answer]
"""From what was learnt of all nodes, the spec and a node's name to the answer for that node."""

STORAGE_FIXTURE = "ask_storage"
"""Of tests that ask for the paths of storage, by the name of their fixture."""
_SURVEY: pytest.StashKey[Survey] = pytest.StashKey()
_RANKS: pytest.StashKey[Environments] = pytest.StashKey()


@dataclass(frozen=True, slots=True)
class Environments:
    """Of all ranks of a world over all nodes, by rank; None and `why` where there could be none."""

    ranks: tuple[RankEnvironment, ...] | None
    why: str = ""


def spec_to_survey(spec: Spec, items: Sequence[pytest.Item]) -> Spec:
    """What a survey is made with: no paths of storage where no test asks for them.

    To look at one is to write there, and to hang where its server does.
    """
    if any(STORAGE_FIXTURE in fixture_names(item) for item in items):
        return spec
    return spec.model_copy(update={"storage": None})


class Asking:
    """Puts questions to one node of a run."""

    def __init__(self, test: pytest.Item, spec: Spec, node: str, measure: Measure) -> None:
        self._test, self._session, self._spec = test, test.session, spec
        self._node, self._measure = node, measure

    def __call__(self, question: Question) -> None:
        """Ask it, of a survey that is made once a run; ends the test where it is not promised."""
        if self._spec.criteria.preflight is None:
            not_promised("preflight")
        self._record(question(self._surveyed(), self._spec, self._node))

    def environments(self) -> Environments:
        """What the ranks of a world over all nodes find, read once a run."""
        stash = self._session.config.stash
        if self._spec.criteria.preflight is None:
            not_promised("preflight")
        if _RANKS not in stash:
            stash[_RANKS] = self._read_ranks()
        return stash[_RANKS]

    def record(self, answer: Answer) -> None:
        """Record what was measured; ends the test where it is not promised."""
        self._record(answer)

    @property
    def _run(self) -> NodesOfRun:
        return nodes_of_run(self._session.config)

    def _surveyed(self) -> Survey:
        stash = self._session.config.stash
        if _SURVEY not in stash:
            items = self._session.items
            code = sorted({str(item.path.parent) for item in items})
            spec = spec_to_survey(self._spec, items)
            # Without a lease, for that needs agents: a node may be too ill for one.
            stash[_SURVEY] = survey(self._run.all_nodes(), spec, code)
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

    def _record(self, answer: Answer) -> None:
        if isinstance(answer, NotPromised):
            not_promised(answer.why)
        for one in answer:
            self._measure.record(one)
