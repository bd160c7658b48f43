"""Judges of name lookups and of clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.checks.node.clocks import ClocksAgree
from pytest_mnode.checks.node.names import NamesAreFound
from pytest_mnode.criteria.preflight.answers import LookUp, Survey
from pytest_mnode.criteria.preflight.answers import Path as ProbedPath
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import (
    asked,
    culprits,
    everyone,
    healthy,
    interface,
    on_loopback,
    promising,
    verdicts,
    with_facts,
    with_path_facts,
    with_paths,
)


def _look_up(survey: Survey, index: int, change: LookUp) -> Survey:
    return with_path_facts(
        survey, index, look_ups=lambda one: change if one.what == change.what else one
    )


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (LookUp(2, "gpu2", ("10.9.9.9",), 0.001, ""), "to 10.9.9.9, but gpu2 has 10.1.0.3"),
        (LookUp(2, "gpu2", (), 0.001, "not known"), "gpu2 has no address (not known)"),
        (LookUp(1, "gpu1", ("127.0.1.1",), 0.001, ""), "gpu1 resolves to 127.0.1.1"),
        (LookUp(2, "10.1.0.3", ("gpu3",), 0.001, ""), "to gpu3, but it is an address of gpu2"),
        (LookUp(2, "10.1.0.3", ("gpu2",), 1.5, ""), "10.1.0.3 took 1.5 s"),
        (LookUp(2, "10.1.0.3", (), None, "no answer"), "10.1.0.3 took more than 2 s"),
    ],
)
def test_wrong_and_slow_lookups_blame_the_node_that_made_them(
    spec: Spec, change: LookUp, note: str
) -> None:
    found = _look_up(healthy(), 1, change)
    [culprit] = culprits(NamesAreFound, found, spec).values()
    assert culprit.startswith("gpu1: its ")
    assert note in " ".join(m.note for m in asked(NamesAreFound, found, spec)["gpu1"])


@pytest.mark.parametrize(
    ("of", "found", "expected"),
    [
        (1, ("127.0.0.1",), {"gpu1": "fail"}),
        (1, ("127.0.0.1", "10.1.0.2"), {}),
        (1, ("10.1.0.2",), {}),
        (2, ("127.0.0.1",), {"gpu1": "fail"}),
    ],
)
def test_a_name_that_resolves_to_loopback_alone_is_wrong(
    spec: Spec, of: int, found: tuple[str, ...], expected: dict[str, str]
) -> None:
    survey = healthy()
    for index in (1, 2):
        there = (*(survey.nodes[index].machine.interfaces or ()), interface("lo", "127.0.0.1"))
        survey = with_facts(survey, index, interfaces=there)
    survey = _look_up(survey, 1, LookUp(of, f"gpu{of}", found, 0.001, ""))
    assert verdicts(NamesAreFound, survey, spec) == expected


def test_names_of_nodes_on_loopback_resolve_to_loopback(spec: Spec) -> None:
    survey = everyone(on_loopback(healthy(2)), interfaces=(interface("lo", "127.0.0.1"),))
    look_ups = tuple(LookUp(of, f"gpu{of}", ("127.0.0.1",), 0.001, "") for of in range(2))
    for index in range(2):
        survey = with_path_facts(survey, index, look_ups=look_ups)
    assert verdicts(NamesAreFound, survey, spec) == {}


def _named(hostnames: list[str], look_ups: list[LookUp]) -> Survey:
    """Nodes of these host names, each of which looked up the same."""
    survey = healthy(len(hostnames))
    for index, name in enumerate(hostnames):
        survey = with_facts(survey, index, hostname=name)
        survey = with_path_facts(survey, index, look_ups=tuple(look_ups))
    return survey


@pytest.mark.parametrize(
    ("hostnames", "reverse", "faults"),
    [
        (["a1.hall", "a2.hall"], {0: "a1", 1: "a2.hall."}, 0),
        (["a1", "a2"], {0: "a1.mgmt.hall", 1: "A2.hall"}, 0),
        (["n1.rack1", "n1.rack2"], {0: "n1.rack1", 1: "n1.rack2"}, 0),
        (["n1.rack1", "n1.rack2"], {0: "n1.rack2", 1: "n1.rack2"}, 1),
        (["n1.rack1", "n1.rack2"], {0: "n1", 1: "n1.other"}, 0),
        (["a1.hall", "a2.hall"], {0: "a2.mgmt", 1: "a2"}, 1),
        (["a1", "a2"], {0: "10-1-0-1.pods.cluster.local", 1: "ip-10-1-0-2"}, 0),
    ],
)
def test_names_with_and_without_domains(
    hostnames: list[str], reverse: dict[int, str], faults: int
) -> None:
    spec = promising("{names: {}}")
    look_ups = [LookUp(to, f"10.1.0.{to + 1}", (name,), 0.001, "") for to, name in reverse.items()]
    _, wrong, _ = asked(NamesAreFound, _named(hostnames, look_ups), spec)["gpu0"]
    assert wrong.value == faults, wrong.note


@pytest.mark.parametrize(
    ("hostnames", "to_blame"),
    [
        (["gpu0", "gpu1", "gpu0", "gpu3"], {"gpu2": "gpu2: its host name gpu0"}),
        (["gpu0", "img", "img", "gpu3"], {f"gpu{i}": f"gpu{i}: its host name img" for i in (1, 2)}),
        (["gpu0.hall", "gpu1", "gpu0.annex", "gpu3"], {}),
        (["gpu0", "gpu1", "", "gpu3"], {}),
    ],
)
def test_two_nodes_with_the_same_host_name(
    spec: Spec, hostnames: list[str], to_blame: dict[str, str]
) -> None:
    # As in DNS, where every name has one address.
    first = [f"10.1.0.{hostnames.index(name) + 1}" for name in hostnames]
    look_ups = [LookUp(to, name, (first[to],), 0.001, "") for to, name in enumerate(hostnames)]
    assert culprits(NamesAreFound, _named(hostnames, look_ups), spec) == to_blame


def test_lookups_of_a_node_of_unknown_addresses_are_not_judged() -> None:
    spec = promising("{names: {}}")
    mute = with_facts(healthy(2), 1, interfaces=None)
    assert verdicts(NamesAreFound, mute, spec) == {}  # the control address is known
    elsewhere = (LookUp(1, "gpu1", ("10.9.0.2",), 0.001, ""),)
    for survey, verdict in ((mute, "inconclusive"), (healthy(2), "fail")):
        other = with_path_facts(survey, 0, look_ups=elsewhere)
        assert verdicts(NamesAreFound, other, spec) == {"gpu0": verdict}


def _clock(ahead_s: dict[int, float], error_s: float = 1e-4, count: int = 4) -> Survey:
    def change(index: int, path: ProbedPath) -> ProbedPath:
        offset_s = ahead_s.get(path.to, 0.0) - ahead_s.get(index, 0.0)
        return replace(path, offset_s=offset_s, error_s=error_s)

    return with_paths(healthy(count), change)


def test_the_deviating_clock_is_named_with_its_error(spec: Spec) -> None:
    for odd in range(4):
        named = {f"gpu{odd}": f"gpu{odd} clock"}
        assert culprits(ClocksAgree, _clock({odd: 0.2}), spec) == named
    for ahead_s, words in ((-0.2, "gpu3 is behind gpu"), (0.2, "gpu3 is ahead of gpu")):
        [skew] = asked(ClocksAgree, _clock({3: ahead_s}), spec)["gpu3"]
        assert skew.value == pytest.approx(200)
        assert words in skew.note
        assert "± 0.1 ms" in skew.note


def test_clocks_are_compared_with_the_one_in_the_middle(spec: Spec) -> None:
    ahead_s = {index: 0.06 * place for place, index in enumerate((3, 0, 4, 1, 2))}
    answers = asked(ClocksAgree, _clock(ahead_s, count=5), spec)
    values = {name: round(one.value or 0) for name, [one] in answers.items()}
    assert values == {"gpu3": 120, "gpu0": 60, "gpu4": 0, "gpu1": 60, "gpu2": 120}


def test_a_skew_within_its_error_of_the_bound_is_inconclusive(spec: Spec) -> None:
    assert verdicts(ClocksAgree, _clock({3: 0.045}, 0.001), spec) == {}
    assert verdicts(ClocksAgree, _clock({3: 0.045}, 0.01), spec)["gpu3"] == "inconclusive"


def test_clocks_without_a_majority_blame_no_single_node(spec: Spec) -> None:
    [culprit] = culprits(ClocksAgree, _clock({0: 1.0}, count=2), spec).values()
    assert "cannot show which is right" in culprit
    others = "clock, or those of gpu0, gpu1: no majority says which are right"
    found = culprits(ClocksAgree, _clock({2: 0.2, 3: 0.2}), spec)
    assert found == {name: f"{name} {others}" for name in ("gpu2", "gpu3")}
