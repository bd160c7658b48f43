"""Questions about links, ways, packets and clocks, on surveys as values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.preflight.answers import Connection, LookUp, Survey
from pytest_mnode.criteria.preflight.answers import Path as Way
from pytest_mnode.criteria.preflight.judges import (
    links,
    names,
    packets,
    reach,
)
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import (
    asked,
    culprits,
    cut,
    devices_of,
    healthy,
    interface,
    rdma_port,
    silent,
    spec_of,
    verdicts,
    with_facts,
    with_node,
    with_paths,
)

ALL = (
    "{reachable: {networks: [fabric, management]}, names: {}, interfaces: {}, speed: {}, "
    "mtu: {}, clocks: {skew: 50 ms}}"
)
QUESTIONS = (
    reach.master,
    reach.peers,
    names.look_ups,
    links.interfaces,
    links.speed,
    links.interface_mtu,
    packets.path_mtu,
    names.clocks,
)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return spec_of(tmp_path, ALL)


@pytest.mark.parametrize("question", QUESTIONS)
def test_nodes_that_are_well_pass_and_one_that_is_silent_is_inconclusive(
    spec: Spec, question: object
) -> None:
    assert verdicts(question, healthy(), spec) == {}  # type: ignore[arg-type]
    mute = silent(healthy(), 2)
    assert verdicts(question, mute, spec) == {"gpu2": "inconclusive"}  # type: ignore[arg-type]
    [first, *_] = asked(question, mute, spec)["gpu2"]  # type: ignore[arg-type]
    assert "gpu2: its survey gave no answer" in first.note


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_not_promised_is_not_judged(tmp_path: Path, question: object) -> None:
    silent_spec = spec_of(tmp_path, "{}")
    assert question(healthy(), silent_spec, "gpu0") == []  # type: ignore[operator]


def test_a_node_that_is_cut_off_is_named_once(spec: Spec) -> None:
    lost = cut(healthy(), [e for n in (0, 1, 3) for e in ((n, 2), (2, n))])
    assert culprits(reach.peers, lost, spec) == {
        "gpu2": "gpu2: no way to or from others on the fabric network"
    }
    [fabric, _] = asked(reach.peers, lost, spec)["gpu0"]
    assert fabric.value == 2
    assert fabric.note == "without gpu2, which is to blame itself"


def test_directions_and_paths_are_told_apart(spec: Spec) -> None:
    deaf = cut(healthy(), [(n, 2) for n in (0, 1, 3)])
    assert culprits(reach.peers, deaf, spec) == {
        "gpu2": "gpu2: it does not hear others on the fabric network, and they hear it"
    }
    dumb = cut(healthy(), [(2, n) for n in (0, 1, 3)])
    assert culprits(reach.peers, dumb, spec) == {
        "gpu2": "gpu2: others do not hear it on the fabric network, and it hears them"
    }
    one_way = cut(healthy(), [(1, 3)])
    assert culprits(reach.peers, one_way, spec) == dict.fromkeys(
        ("gpu1", "gpu3"), "path from gpu1 to gpu3 (one way)"
    )
    path = cut(healthy(), [(1, 3), (3, 1)])
    assert culprits(reach.peers, path, spec) == dict.fromkeys(
        ("gpu1", "gpu3"), "path between gpu1 and gpu3"
    )
    two = cut(healthy(2), [(0, 1), (1, 0)])
    assert set(culprits(reach.peers, two, spec).values()) == {"path between gpu0 and gpu1"}


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        ({"address": "02:00:00:00:00:01"}, "02:00:00:00:00:01"),
        ({"addresses": ("10.2.0.9",)}, "10.2.0.9"),
    ],
)
def test_an_address_that_two_nodes_have_is_named(
    spec: Spec, changes: dict[str, Any], both: str
) -> None:
    """Where ways fail: interfaces of one machine may share a MAC (ipvlan) and be well."""
    survey = healthy()
    for index in (1, 3):
        interfaces = survey.nodes[index].machine.interfaces or ()
        fabric, control = interfaces
        survey = with_facts(survey, index, interfaces=(replace(fabric, **changes), control))
    assert culprits(reach.peers, survey, spec) == {}
    cause = f"; gpu1 and gpu3 both have {both}"
    assert culprits(reach.peers, cut(survey, [(1, 3), (3, 1)]), spec) == dict.fromkeys(
        ("gpu1", "gpu3"), "path between gpu1 and gpu3" + cause
    )
    [deaf] = culprits(reach.peers, cut(survey, [(n, 3) for n in range(3)]), spec).values()
    assert deaf.startswith("gpu3: it does not hear")
    assert deaf.endswith(cause)


def test_a_link_without_a_carrier_explains_what_is_lost(spec: Spec) -> None:
    lost = cut(healthy(3), [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])
    for index in (1, 2):
        down = interface("fab0", f"10.2.0.{index + 1}", carrier=False)
        interfaces = lost.nodes[index].machine.interfaces or ()
        lost = with_facts(lost, index, interfaces=(down, interfaces[1]))
    assert culprits(reach.peers, lost, spec) == {
        "gpu1": "gpu1: fab0 has no carrier",
        "gpu2": "gpu2: fab0 has no carrier",
    }
    assert verdicts(reach.peers, lost, spec)["gpu0"] == "inconclusive"  # nobody is left to reach
    assert culprits(links.interfaces, lost, spec)["gpu1"] == "gpu1 fab0 has no carrier"


def test_connections_that_are_filtered_are_told_from_ways_that_are_cut(spec: Spec) -> None:
    survey = healthy()
    for index in (0, 1, 3):
        paths = survey.nodes[index].paths
        assert paths is not None
        connections = tuple(
            replace(c, took_s=None, problem="no answer within 2 s")
            if c.to == 2 and c.network == "management"
            else c
            for c in paths.connections
        )
        survey = with_node(survey, index, paths=replace(paths, connections=connections))
    assert culprits(reach.peers, survey, spec) == {
        "gpu2": "gpu2: connections to it are filtered on the management network, datagrams pass"
    }
    assert "though datagrams pass" in asked(reach.peers, survey, spec)["gpu2"][1].note


def _master(survey: Survey, lost: set[int]) -> Survey:
    for node in survey.nodes:
        if node.index in lost and node.paths is not None:
            refused = Connection(0, "control", "", None, "no answer within 2 s")
            survey = with_node(survey, node.index, paths=replace(node.paths, master=refused))
    return survey


def test_who_does_not_reach_the_first_node_is_told_from_a_first_node_that_answers_nobody(
    spec: Spec,
) -> None:
    assert culprits(reach.master, _master(healthy(), {2}), spec) == {
        "gpu2": "gpu2: gpu1, gpu3 can connect"
    }
    nobody = _master(healthy(), {1, 2, 3})
    assert culprits(reach.master, nobody, spec) == {"gpu0": "gpu0 10.1.0.1"}
    assert set(verdicts(reach.master, nobody, spec).values()) == {"fail", "inconclusive"}
    assert culprits(reach.master, _master(healthy(2), {1}), spec) == {"gpu1": "gpu1 or gpu0"}
    taken = with_facts(healthy(), 0, master_problem="cannot listen on port 29500: in use")
    assert culprits(reach.master, taken, spec) == {
        "gpu0": "gpu0: cannot listen on port 29500: in use"
    }


def _hole(size: int, *edges: tuple[int, int], refused: int | None = None) -> Survey:
    def change(index: int, path: Way) -> Way:
        if (index, path.to) not in edges:
            return path
        return replace(path, largest_bytes=size, refused_bytes=refused)

    return with_paths(healthy(), change)


def test_a_hole_is_a_nodes_or_a_paths(spec: Spec) -> None:
    around = [e for n in (0, 1, 3) for e in ((n, 2), (2, n))]
    hole = _hole(1500, *around)
    assert culprits(packets.path_mtu, hole, spec) == {
        "gpu2": "gpu2: its link to the fabric network, both ways"
    }
    [found] = asked(packets.path_mtu, hole, spec)["gpu2"]
    assert found.value == 1500
    assert "packets beyond 1500 B vanish" in found.note
    one = _hole(1500, (3, 1))
    assert set(culprits(packets.path_mtu, one, spec).values()) == {
        "path from gpu3 to gpu1 (one way)"
    }
    own = _hole(1500, *[(2, n) for n in (0, 1, 3)], refused=1501)
    [found] = asked(packets.path_mtu, own, spec)["gpu2"]
    assert "gpu2 fab0 itself takes no packet of 1501 B" in found.note


def test_sizes_that_could_not_be_tried_are_not_passed(spec: Spec) -> None:
    def mute(index: int, path: Way) -> Way:
        return replace(path, answered=False, largest_bytes=None) if path.to == 1 else path

    found = verdicts(packets.path_mtu, with_paths(healthy(), mute), spec)
    assert set(found.values()) == {"inconclusive"}
    assert "gpu0" in found


def test_an_mtu_above_the_promise_is_wrong_too(spec: Spec) -> None:
    fabric, control = healthy().nodes[1].machine.interfaces or ()
    large = replace(fabric, mtu_bytes=9216)
    found = with_facts(healthy(), 1, interfaces=(large, control))
    assert culprits(links.interface_mtu, found, spec) == {"gpu1": "gpu1 fab0"}


def _clock(survey: Survey, ahead_s: dict[int, float], error_s: float = 1e-4) -> Survey:
    def change(index: int, path: Way) -> Way:
        offset_s = ahead_s.get(path.to, 0.0) - ahead_s.get(index, 0.0)
        return replace(path, offset_s=offset_s, error_s=error_s)

    return with_paths(survey, change)


def test_the_odd_clock_is_named_with_its_error(spec: Spec) -> None:
    for odd in range(4):
        assert culprits(names.clocks, _clock(healthy(), {odd: 0.2}), spec) == {
            f"gpu{odd}": f"gpu{odd} clock"
        }
    [skew] = asked(names.clocks, _clock(healthy(), {3: -0.2}), spec)["gpu3"]
    assert skew.value == pytest.approx(200)
    assert "gpu3 is behind gpu" in skew.note
    assert "± 0.1 ms" in skew.note


def test_a_skew_near_the_bound_for_its_error_is_inconclusive(spec: Spec) -> None:
    assert verdicts(names.clocks, _clock(healthy(), {3: 0.045}, 0.001), spec) == {}
    assert verdicts(names.clocks, _clock(healthy(), {3: 0.045}, 0.01), spec)["gpu3"] == (
        "inconclusive"
    )


def test_two_clocks_do_not_say_which_is_right(spec: Spec) -> None:
    [culprit] = culprits(names.clocks, _clock(healthy(2), {0: 1.0}), spec).values()
    assert "do not say which is right" in culprit


def _look_up(survey: Survey, index: int, change: LookUp) -> Survey:
    paths = survey.nodes[index].paths
    assert paths is not None
    kept = tuple(change if one.what == change.what else one for one in paths.look_ups)
    return with_node(survey, index, paths=replace(paths, look_ups=kept))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (LookUp(2, "gpu2", ("10.9.9.9",), 0.001, ""), "gpu2 is 10.9.9.9, where gpu2 has 10.1.0.3"),
        (LookUp(2, "gpu2", (), 0.001, "not known"), "gpu2 has no address (not known)"),
        (LookUp(1, "gpu1", ("127.0.1.1",), 0.001, ""), "gpu1 is 127.0.1.1"),
        (LookUp(2, "10.1.0.3", ("gpu3",), 0.001, ""), "10.1.0.3 is gpu3, where gpu2 has it"),
        (LookUp(2, "10.1.0.3", ("gpu2",), 1.5, ""), "10.1.0.3 took 1.5 s"),
        (LookUp(2, "10.1.0.3", (), None, "no answer"), "10.1.0.3 took more than 2 s"),
    ],
)
def test_wrong_and_slow_look_ups_are_the_askers_fault(
    spec: Spec, change: LookUp, told: str
) -> None:
    found = _look_up(healthy(), 1, change)
    [culprit] = culprits(names.look_ups, found, spec).values()
    assert culprit.startswith("gpu1: its ")
    assert told in " ".join(m.note for m in asked(names.look_ups, found, spec)["gpu1"])


def test_speeds_of_what_has_none_are_not_known(spec: Spec) -> None:
    slow = with_facts(
        healthy(),
        1,
        interfaces=(
            interface("fab0", "10.2.0.2", speed_mbits_s=100_000),
            interface("eth0", "10.1.0.2", speed_mbits_s=None),
        ),
    )
    [fabric, management] = asked(links.speed, slow, spec)["gpu1"]
    assert (fabric.verdict, fabric.culprit) == ("fail", "gpu1 fab0 (100000 Mbit/s)")
    assert (management.verdict, management.note) == (
        "inconclusive",
        "gpu1: the speed of eth0 is not known",
    )
    # veth says 10000 whatever it carries: only what shapes it counts.
    veth = interface("fab0", "10.2.0.2", kind=Kind.VIRTUAL)
    eth = interface("eth0", "10.1.0.2", speed_mbits_s=25_000)
    emulated = with_facts(healthy(), 1, interfaces=(veth, eth))
    assert verdicts(links.speed, emulated, spec) == {"gpu1": "inconclusive"}
    shaped = replace(veth, shaped_mbits_s=400_000.0)
    assert verdicts(links.speed, with_facts(healthy(), 1, interfaces=(shaped, eth)), spec) == {}


def test_rdma_devices_stand_for_interfaces(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{interfaces: {}, speed: {}}", "infiniband", '"mlx5_*"')
    eth = interface("eth0", "10.1.0.1", speed_mbits_s=25_000)
    port = rdma_port()
    down = replace(port, state="DOWN", phys_state="Polling", rate_gbits_s=10.0)
    survey = healthy(2)
    for index, one in enumerate((port, down)):
        survey = with_facts(survey, index, interfaces=(eth,), rdma=devices_of(one))
    assert verdicts(links.interfaces, survey, spec) == {"gpu1": "fail"}
    assert verdicts(links.speed, survey, spec) == {"gpu1": "inconclusive"}  # none is up


@pytest.mark.parametrize("has", [interface("lo", ""), interface("fab0", "", carrier=False)])
def test_a_node_by_itself_is_judged_by_its_links_though_it_is_reached_on_loopback(
    has: Interface, tmp_path: Path
) -> None:
    """So does the health check of a node: no link at all is the worst that it can find."""
    spec = spec_of(tmp_path, "{interfaces: {}}")
    survey = with_facts(with_node(healthy(1), 0, address="127.0.0.1"), 0, interfaces=(has,))
    assert verdicts(links.interfaces, survey, spec) == {"gpu0": "fail"}


def test_loopback_has_no_links_to_fail(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{reachable: {}, interfaces: {}}")
    survey = healthy(2)
    for index in range(2):
        survey = with_node(survey, index, address="127.0.0.1")
        survey = with_facts(survey, index, interfaces=(interface("lo", "127.0.0.1"),))
        paths = survey.nodes[index].paths
        assert paths is not None
        survey = with_node(survey, index, paths=replace(paths, connections=()))
    assert set(verdicts(links.interfaces, survey, spec).values()) == {"inconclusive"}
    assert set(verdicts(reach.peers, survey, spec).values()) == {"inconclusive"}
