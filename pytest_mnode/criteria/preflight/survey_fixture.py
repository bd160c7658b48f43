"""Preflight for tests: one survey per run, judged for one node at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.checks.node.same import PARTS, items_of
from pytest_mnode.checks.world_check import case_named
from pytest_mnode.cluster import NodesOfRun, nodes_of_run
from pytest_mnode.criteria.preflight.answers import Survey, survey_to_json
from pytest_mnode.criteria.preflight.environment import (
    RankEnvironment,
    Ranks,
    ranks_to_json,
    read_environment,
)
from pytest_mnode.criteria.preflight.survey import survey
from pytest_mnode.criteria.preflight.survey_check import of_node, promised_checks, read_orders
from pytest_mnode.errors import MnodeError
from pytest_mnode.evidence.check import findings
from pytest_mnode.evidence.file import record
from pytest_mnode.installed import Fact, Installed
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.skipping import not_promised, promised
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.evidence.check import Check
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

_CHECK = "mnode_check"
_CHECKS: pytest.StashKey[dict[tuple[type[Check], str], Check]] = pytest.StashKey()
_SURVEY: pytest.StashKey[Survey] = pytest.StashKey()
_RANKS: pytest.StashKey[Ranks] = pytest.StashKey()
_MOST_VALUES = 8
"""Most values kept of one fact; 512 different values would be useless."""


def case_of(one: type[Check], file: str) -> Callable[..., None]:
    """The test of a check, for each node: a function that pytest collects in this file."""
    if one.each:

        @pytest.mark.parametrize("part", one.each)
        def case(ask: NodeJudgement, part: str) -> None:
            ask(one, part)

    else:

        def case(ask: NodeJudgement) -> None:  # type: ignore[misc]
            ask(one)

    case_named(one, case, file)
    vars(case)[_CHECK] = one
    if one.alone:
        case = pytest.mark.alone(case)
    return pytest.mark.stops(*one.stops)(case) if one.stops else case


def check_of(item: pytest.Item) -> type[Check] | None:
    """The check that a test was made of by `case_of`; None for any other test."""
    found: type[Check] | None = getattr(getattr(item, "obj", None), _CHECK, None)
    return found


class NodeJudgement:
    """Judges one node of a run, and records the measurements."""

    def __init__(self, test: pytest.Item, spec: Spec, node: str, measure: Measure) -> None:
        self._test, self._session, self._spec = test, test.session, spec
        self._node, self._measure = node, measure

    def __call__(self, one: type[Check], part: str = "") -> None:
        """Record the findings of a check about this node, from a survey that is made once per run,
        or from the ranks of a world over all nodes, read once per run."""
        for key in (one.key, f"{one.key}.{one.needs}".rstrip(".")):
            promised(self._spec, key)
        evidence = self._surveyed() if one.on == "node" else self._ranks()
        made = self._checks[one, part]
        found = findings(made, made.judge, evidence, self._node)
        if not found and len(self._run.all_nodes().nodes) == 1:
            not_promised(f"{one.key}: one node has no other to compare with")
        if not found:
            not_promised(f"{one.key} does not cover this check", key=one.key)
        self._measure.record([of_node(self._node, measured) for measured in found])

    @property
    def _run(self) -> NodesOfRun:
        return nodes_of_run(self._session.config)

    @property
    def _checks(self) -> dict[tuple[type[Check], str], Check]:
        """The promised checks of all tests of this run, by their part."""
        stash = self._session.config.stash
        if _CHECKS not in stash:
            asked = dict.fromkeys(filter(None, map(check_of, self._session.items)))
            checks = promised_checks(self._spec, asked)
            stash[_CHECKS] = {(type(one), one.part): one for one in checks}
        return stash[_CHECKS]

    def _surveyed(self) -> Survey:
        stash = self._session.config.stash
        if _SURVEY not in stash:
            code = sorted({str(item.path.parent) for item in self._session.items})
            # No lease: a lease needs agents, and a node may be too broken to run one.
            nodes, checks = self._run.all_nodes(), [*self._checks.values()]
            passed_at = self._run.passed_at()
            found = survey(nodes, self._spec, code, checks)
            found = stash[_SURVEY] = Survey(
                tuple(
                    replace(one, passed_at=passed_at.get(one.machine.hostname or one.name))
                    for one in found.nodes
                )
            )
            record(self._session.config, survey_to_json(found))
            self._measure.chart(installed(found, self._spec))
        return stash[_SURVEY]

    def _ranks(self) -> Ranks:
        stash = self._session.config.stash
        if _RANKS not in stash:
            nodes = self._run.all_nodes().nodes
            try:
                stash[_RANKS] = Ranks(nodes, self._in_ranks())
            except MnodeError as error:
                stash[_RANKS] = Ranks(nodes, why=f"no world: {str(error).splitlines()[0]}")
            record(self._session.config, ranks_to_json(stash[_RANKS]))
        return stash[_RANKS]

    def _in_ranks(self) -> tuple[RankEnvironment, ...]:
        cluster = self._run.lease_cluster(self._test)
        orders = read_orders(self._checks.values(), "rank")
        try:
            with cluster.world() as world:
                found = world.run(read_environment, orders)
        finally:
            cluster.close()
        return tuple(replace(rank, number=i) for i, rank in enumerate(found))


def installed(survey: Survey, spec: Spec) -> Installed:
    """Versions, firmware, settings and a digest of the code; unread items are left out."""
    facts = []
    for part in PARTS:
        nodes: dict[str, dict[str, list[str]]] = {}
        for node in survey.nodes:
            items = items_of(node, spec, part)
            if part == "code" and items:
                text = json.dumps(dict(items), sort_keys=True)
                items = {part: hashlib.sha256(text.encode()).hexdigest()[:16]}
            for item, value in items.items():
                nodes.setdefault(item, {}).setdefault(value, []).append(node.name)
        for item, values in sorted(nodes.items()):
            most = sorted(values.items(), key=lambda entry: -len(entry[1]))[:_MOST_VALUES]
            facts.append(Fact(part, item, tuple((value, compress(who)) for value, who in most)))
    return Installed(tuple(facts))
