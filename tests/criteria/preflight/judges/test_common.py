"""Behaviour common to checks of links and paths: silent nodes, and what is not promised."""

from __future__ import annotations

import pytest

from pytest_mnode.checks.node.clocks import ClocksAgree
from pytest_mnode.checks.node.interfaces import InterfacesAreUp, InterfacesRunAtTheirSpeed
from pytest_mnode.checks.node.mtu import FullSizePacketsPass, InterfacesHaveTheirMtu
from pytest_mnode.checks.node.names import NamesAreFound
from pytest_mnode.checks.node.reachable import EveryNodeIsReached, FirstNodeIsReached
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.evidence.check import Check
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import asked, healthy, promising, silent, verdicts

JUDGES = (
    FirstNodeIsReached,
    EveryNodeIsReached,
    NamesAreFound,
    InterfacesAreUp,
    InterfacesRunAtTheirSpeed,
    InterfacesHaveTheirMtu,
    FullSizePacketsPass,
    ClocksAgree,
)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_silent_node_is_inconclusive_and_what_is_not_promised_is_not_judged(
    spec: Spec, judge: type[Check]
) -> None:
    assert verdicts(judge, healthy(), spec) == {}
    mute = silent(healthy(), 2)
    assert verdicts(judge, mute, spec) == {"gpu2": "inconclusive"}
    assert "gpu2: its survey gave no answer" in asked(judge, mute, spec)["gpu2"][0].note
    assert judged(judge, healthy(), promising("{}"), "gpu0") == []
