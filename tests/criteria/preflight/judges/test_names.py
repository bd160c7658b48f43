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


@pytest.mark.parametrize(
    ("name", "took_s", "expected"),
    [
        ("gpu2-ib0", 0.001, {"gpu1": "fail"}),
        ("gpu2", 0.001, {"gpu1": "fail"}),
        ("gpu1-ib0.cluster", 0.001, {}),
        ("gpu10-ib0", 0.001, {}),  # of another machine
        ("storage1", 0.001, {}),
        ("gpu1", None, {}),  # nobody needs the name of the address on a fabric
    ],
)
def test_an_address_on_another_network_may_not_have_another_nodes_name(
    spec: Spec, name: str, took_s: float | None, expected: dict[str, str]
) -> None:
    survey = healthy()
    paths = survey.nodes[1].paths
    assert paths is not None
    of_fabric = LookUp(1, "10.2.0.2", (name,) if took_s else (), took_s, "")
    survey = with_path_facts(survey, 1, look_ups=(*paths.look_ups, of_fabric))
    assert verdicts(NamesAreFound, survey, spec) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("gpu-ib-2", "pass"), ("gpu-3-ib", "fail"), ("gpu", "fail")]
)
def test_another_node_may_have_the_first_part_of_a_name(
    spec: Spec, name: str, expected: str
) -> None:
    survey = healthy()
    for index, hostname in enumerate(("gpu", "gpu-2", "gpu-3")):
        survey = with_facts(survey, index, hostname=hostname)
    look_ups = (
        LookUp(1, "localhost", ("127.0.0.1",), 0.001, ""),
        LookUp(1, "10.2.0.2", (name,), 0.001, ""),
    )
    survey = with_path_facts(survey, 1, look_ups=look_ups)
    assert asked(NamesAreFound, survey, spec)["gpu1"][1].verdict == expected


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


@pytest.mark.parametrize("itself", [True, False])
def test_a_host_name_that_no_other_node_knows_blames_its_node_alone(
    spec: Spec, itself: bool
) -> None:
    names = ["gpu0", "gpu1", "img.cloud", "gpu3"]
    right = [LookUp(to, name, (f"10.1.0.{to + 1}",), 0.001, "") for to, name in enumerate(names)]
    unknown = LookUp(2, "img.cloud", (), 0.001, "not known")
    survey = _named(names, [unknown if one.of == 2 else one for one in right])
    if itself:
        survey = with_path_facts(survey, 2, look_ups=tuple(right))
    cause = "gpu2: its names, as other nodes know them"
    assert culprits(NamesAreFound, survey, spec) == {"gpu2": cause}
    _, own, _ = asked(NamesAreFound, survey, spec)["gpu2"]
    assert own.note == "gpu2: img.cloud has no address (not known)"
    _, other, _ = asked(NamesAreFound, survey, spec)["gpu0"]
    assert other.note == "of 4, without gpu2, judged separately"


def test_a_name_that_others_do_not_know_is_a_fault_also_if_its_node_looked_up_none(
    spec: Spec,
) -> None:
    names = ["gpu0", "gpu1", "img.cloud", "gpu3"]
    unknown = LookUp(2, "img.cloud", (), 0.001, "not known")
    survey = with_path_facts(_named(names, [unknown]), 2, look_ups=())
    assert culprits(NamesAreFound, survey, spec) == {
        "gpu2": "gpu2: its names, as other nodes know them"
    }


def test_nodes_with_swapped_names_are_blamed_for_their_names(spec: Spec) -> None:
    reverse = {0: "gpu0", 1: "gpu1", 2: "gpu2"}
    right = [LookUp(to, f"10.1.0.{to + 1}", (name,), 0.001, "") for to, name in reverse.items()]
    survey = _named(["gpu0", "gpu2", "gpu1"], right)
    for index in (1, 2):
        fabric = LookUp(index, f"10.2.0.{index + 1}", (f"gpu{index}-fab",), 0.001, "")
        survey = with_path_facts(survey, index, look_ups=(*right, fabric))
    cause = "its names, as other nodes know them"
    assert culprits(NamesAreFound, survey, spec) == {
        name: f"{name}: {cause}" for name in ("gpu1", "gpu2")
    }
    _, wrong, _ = asked(NamesAreFound, survey, spec)["gpu1"]
    assert "to gpu1, but it is an address of gpu1 (host name gpu2)" in wrong.note


def test_nodes_that_are_wrong_about_several_blame_none_of_these(spec: Spec) -> None:
    names = ["gpu0", "gpu1", "gpu2"]
    right = [LookUp(to, name, (f"10.1.0.{to + 1}",), 0.001, "") for to, name in enumerate(names)]
    survey = _named(names, right)
    for index in (0, 1):
        found = (one if one.of == index else replace(one, found=("10.9.9.9",)) for one in right)
        survey = with_path_facts(survey, index, look_ups=tuple(found))
    cause = "its hosts file or name server"
    assert culprits(NamesAreFound, survey, spec) == {
        name: f"{name}: {cause}" for name in ("gpu0", "gpu1")
    }


@pytest.mark.parametrize("itself", [True, False])
def test_of_two_nodes_the_one_that_does_not_know_its_own_name_is_blamed(
    spec: Spec, itself: bool
) -> None:
    names = ["gpu0", "img.cloud"]
    right = [LookUp(to, name, (f"10.1.0.{to + 1}",), 0.001, "") for to, name in enumerate(names)]
    survey = _named(names, [right[0], LookUp(1, "img.cloud", (), 0.001, "not known")])
    if itself:
        survey = with_path_facts(survey, 1, look_ups=tuple(right))
    assert set(culprits(NamesAreFound, survey, spec)) == {"gpu0" if itself else "gpu1"}


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (("::1", "127.0.0.1"), ""),
        ((), "gpu1: localhost has no address (not known)"),
        (("127.0.0.1", "10.1.0.9"), "gpu1: localhost resolves to 10.1.0.9, but gpu1 has 10.1.0.2"),
    ],
)
def test_localhost_is_the_node_itself(spec: Spec, found: tuple[str, ...], fault: str) -> None:
    survey = healthy()
    paths = survey.nodes[1].paths
    assert paths is not None
    own = LookUp(1, "localhost", found, 0.001, "" if found else "not known")
    survey = with_path_facts(survey, 1, look_ups=(*paths.look_ups, own))
    assert verdicts(NamesAreFound, survey, spec) == ({"gpu1": "fail"} if fault else {})
    _, wrong, _ = asked(NamesAreFound, survey, spec)["gpu1"]
    assert not fault or wrong.note == fault
