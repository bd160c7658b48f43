"""Addresses that two nodes have: which node is to blame, and what healthy nodes share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.checks.node.addresses import AddressesAreUnique
from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.machine.netdev import Kind
from pytest_mnode.measurement import Verdict
from tests.criteria.preflight.made import (
    asked,
    healthy,
    interface,
    on_loopback,
    promising,
    silent,
    verdicts,
    with_facts,
    with_interface,
)

SPEC = promising("{addresses: unique}")
ANYTHING = promising("{addresses: unique}", interfaces='"*"', nics=2)


def _given(survey: Survey, index: int, name: str, *more: str) -> Survey:
    """The survey with more addresses of one interface of a node."""
    there = survey.nodes[index].machine.by_name[name].addresses
    return with_interface(survey, index, name, addresses=(*there, *more))


Blamed = tuple[int, set[str], set[frozenset[str]]]


def _blamed(survey: Survey) -> dict[str, Blamed]:
    """Number, sure and suspect nodes of each finding that failed, by the node that it is about."""
    return {
        name: (int(one.value or 0), {*one.culprit.nodes}, {*one.culprit.either})
        for name, found in asked(AddressesAreUnique, survey, SPEC).items()
        for one in found
        if one.verdict is Verdict.FAIL and one.culprit is not None
    }


def _pairs(*ends: tuple[int, int]) -> set[frozenset[str]]:
    return {frozenset(f"gpu{index}" for index in pair) for pair in ends}


@pytest.mark.parametrize("rail", ["fab0", "fab1"])
def test_both_nodes_with_an_address_are_suspect(rail: str) -> None:
    survey = healthy()
    taken = survey.nodes[1].machine.by_name[rail].addresses
    both: Blamed = (1, set(), _pairs((1, 3)))
    for found in (
        _given(survey, 3, rail, *taken),  # beside its own
        with_interface(survey, 3, rail, addresses=taken),  # in place of its own
        _given(survey, 3, "fab0" if rail == "fab1" else "fab1", *taken),
    ):
        assert _blamed(found) == {"gpu1": both, "gpu3": both}


def test_each_of_three_nodes_with_an_address_is_suspect() -> None:
    survey = healthy()
    for index in (0, 2, 3):
        survey = _given(survey, index, "fab0", "10.2.0.99", "fd00::9")
    assert _blamed(survey) == {
        "gpu0": (2, set(), _pairs((0, 2), (0, 3))),
        "gpu2": (2, set(), _pairs((0, 2), (2, 3))),
        "gpu3": (2, set(), _pairs((0, 3), (2, 3))),
    }


def test_the_address_by_which_a_node_is_reached_is_its_own() -> None:
    survey = _given(healthy(), 3, "eth0", "10.1.0.2")
    assert _blamed(survey) == {"gpu3": (1, {"gpu3"}, set())}
    [_, owner] = asked(AddressesAreUnique, survey, SPEC)["gpu1"]
    assert (owner.value, owner.note) == (0, "gpu3 has 10.1.0.2 too, and is judged separately")
    # Listed under names, or reached by the very address that both have: nobody knows.
    both: Blamed = (1, set(), _pairs((1, 3)))
    for address in ("", "10.1.0.2"):
        nodes = tuple(
            replace(n, address=address or n.name) if n.index in (1, 3) else n for n in survey.nodes
        )
        assert _blamed(replace(survey, nodes=nodes)) == {"gpu1": both, "gpu3": both}


@pytest.mark.parametrize(
    "shared",
    [
        interface("fab0", "fe80::1"),
        interface("lo", "10.2.0.200", kind=Kind.LOOPBACK),
        interface("docker0", "172.17.0.1", kind=Kind.BRIDGE, slaves=("veth1",)),
    ],
    ids=["link-local", "anycast", "bridge"],
)
def test_what_healthy_nodes_share_is_no_fault(shared: Any) -> None:
    survey = healthy()
    for node in survey.nodes:
        there = (*(node.machine.interfaces or ()), shared)
        if shared.name == "fab0":
            survey = _given(survey, node.index, "fab0", *shared.addresses)
        else:
            survey = with_facts(survey, node.index, interfaces=there)
    assert verdicts(AddressesAreUnique, survey, SPEC) == {}
    assert verdicts(AddressesAreUnique, survey, ANYTHING) == {}, "a pattern that matches them too"
    # The same address on an interface of the fabric is one.
    if shared.name != "fab0":
        for index in (0, 1):
            survey = _given(survey, index, "fab0", *shared.addresses)
        assert verdicts(AddressesAreUnique, survey, SPEC) == {"gpu0": "fail", "gpu1": "fail"}


def test_nodes_that_are_not_read_or_share_a_loopback_are_inconclusive() -> None:
    assert verdicts(AddressesAreUnique, silent(healthy(), 2), SPEC) == {"gpu2": "inconclusive"}
    local = verdicts(AddressesAreUnique, on_loopback(healthy(2)), SPEC)
    assert local == {"gpu0": "inconclusive", "gpu1": "inconclusive"}
    assert judged(AddressesAreUnique, healthy(1), SPEC, "gpu0") == []
