"""Installed software of nodes, grouped by value: compact for many nodes, without guesses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_mnode.checks.node.interfaces import InterfacesAreUp
from pytest_mnode.criteria.preflight import survey_fixture
from pytest_mnode.criteria.preflight.survey_fixture import NodeJudgement, installed
from pytest_mnode.errors import MnodeError
from pytest_mnode.installed import Fact
from pytest_mnode.skipping import REQUESTED_KEYS
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import SOFTWARE, healthy, with_facts


def facts(spec: Spec, changes: dict[int, dict[str, Any]]) -> dict[str, Fact]:
    """Software of four healthy nodes, with `changes` of some, by name."""
    survey = healthy()
    for index, changed in changes.items():
        survey = with_facts(survey, index, **changed)
    return {fact.name: fact for fact in installed(survey, spec).facts}


def test_equal_nodes_are_one_value(spec: Spec) -> None:
    found = facts(spec, {})
    assert found["driver"].values == (("550.54.15", "gpu[0-3]"),)
    assert found["packages numpy"].values == (("2.1.0", "gpu[0-3]"),)
    assert found["sysctl net.core.rmem_max"].values == (("212992", "gpu[0-3]"),)
    assert [who for _, who in found["code"].values] == ["gpu[0-3]"]


def test_a_differing_node_is_listed_after_the_others(spec: Spec) -> None:
    newer = replace(SOFTWARE, driver="570.1", kernel="6.9.0")
    found = facts(spec, {2: {"software": newer}, 1: {"code": {"train/main.py": "other"}}})
    assert found["driver"].values == (("550.54.15", "gpu[0-1,3]"), ("570.1", "gpu2"))
    assert [who for _, who in found["code"].values] == ["gpu[0,2-3]", "gpu1"]


def test_unread_values_are_left_out(spec: Spec) -> None:
    unread: dict[str, Any] = {"software": None, "settings": None, "code": {}}
    assert facts(spec, dict.fromkeys(range(4), unread)) == {}


def test_a_check_asks_for_its_own_key_only(spec: Spec) -> None:
    """Else another spec's value for one check would leave all others undecided."""
    nothing = spec.criteria.model_copy(update={"preflight": None})
    without = spec.model_copy(update={"criteria": nothing})
    ask = NodeJudgement(cast(Any, SimpleNamespace(session=None)), without, "gpu0", cast(Any, None))
    REQUESTED_KEYS.clear()
    with pytest.raises(pytest.skip.Exception) as skipped:
        ask(InterfacesAreUp)
    assert [*REQUESTED_KEYS] == [InterfacesAreUp.key] == [vars(skipped.value)["mnode_lacks"]]


def test_a_world_in_which_ranks_are_read_ends_however_that_went(spec: Spec) -> None:
    ended: list[str] = []

    def no_world() -> None:
        raise MnodeError("no port is free")

    run = SimpleNamespace(
        all_nodes=lambda: SimpleNamespace(nodes=("gpu0", "gpu1")),
        lease_cluster=lambda _: SimpleNamespace(world=no_world, close=lambda: ended.append("all")),
    )
    stash = pytest.Stash()
    session = SimpleNamespace(config=SimpleNamespace(stash=stash), items=())
    ask = NodeJudgement(cast(Any, SimpleNamespace(session=session)), spec, "gpu0", cast(Any, None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_fixture, "nodes_of_run", lambda _: run)
        assert ask._ranks().why == "no world: no port is free"
    assert ended == ["all"]
