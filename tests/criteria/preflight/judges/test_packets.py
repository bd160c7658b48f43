"""Judges of full-size packets and of changed payloads: which node or path is to blame."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pytest

from pytest_mnode.checks.node.mtu import FullSizePacketsPass
from pytest_mnode.checks.node.payloads import Payload, PayloadsArriveUnchanged, paths_that_change
from pytest_mnode.criteria.preflight.answers import (
    Connection,
    LastFacts,
    PayloadFacts,
    Received,
    Sent,
    Survey,
)
from pytest_mnode.criteria.preflight.answers import Path as ProbedPath
from pytest_mnode.criteria.preflight.tcp import targets
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import (
    RAILS,
    asked,
    culprits,
    healthy,
    silent,
    verdicts,
    with_interface,
    with_node,
    with_path_facts,
    with_paths,
)


def _hole(size: int, *edges: tuple[int, int], refused: int | None = None) -> Survey:
    def change(index: int, path: ProbedPath) -> ProbedPath:
        if (index, path.to) not in edges:
            return path
        return replace(path, largest_bytes=size, refused_bytes=refused)

    return with_paths(healthy(), change)


def _segments(*edges: tuple[int, int], size: int | None = 900) -> Survey:
    """TCP segments of this size on these paths."""

    def change(index: int, one: Connection) -> Connection:
        return replace(one, largest_bytes=size) if (index, one.to) in edges else one

    survey = healthy()
    for index in range(4):
        survey = with_path_facts(survey, index, connections=partial(change, index))
    return survey


def test_tcp_segments_smaller_than_the_packets_that_pass(spec: Spec) -> None:
    own_route = _segments(*((3, n) for n in range(3)))
    routes = "gpu3: its routes on the fabric network"
    assert culprits(FullSizePacketsPass, own_route, spec) == {"gpu3": routes}
    own_mtu = with_interface(own_route, 3, "fab1", mtu_bytes=900)
    assert culprits(FullSizePacketsPass, own_mtu, spec) == {"gpu3": "gpu3 fab1 (MTU 900)"}
    _, tcp = asked(FullSizePacketsPass, own_route, spec)["gpu3"]
    assert tcp.value == 900
    path = "path from gpu2 to gpu0 (one way)"
    assert culprits(FullSizePacketsPass, _segments((2, 0)), spec) == {"gpu0": path, "gpu2": path}
    mute = _segments((2, 0), size=None)
    assert verdicts(FullSizePacketsPass, mute, spec) == {"gpu2": "inconclusive"}


def test_lost_large_packets_blame_a_node_or_a_path(spec: Spec) -> None:
    hole = _hole(1500, *(e for n in (0, 1, 3) for e in ((n, 2), (2, n))))
    link = "gpu2: its link to the fabric network, both ways"
    assert culprits(FullSizePacketsPass, hole, spec) == {"gpu2": link}
    found, _ = asked(FullSizePacketsPass, hole, spec)["gpu2"]
    assert found.value == 1500
    assert "packets larger than 1500 B are lost" in found.note
    one = culprits(FullSizePacketsPass, _hole(1500, (3, 1)), spec)
    assert set(one.values()) == {"path from gpu3 to gpu1 (one way)"}
    two = _hole(1500, *(e for n in (0, 1) for m in (2, 3) for e in ((n, m), (m, n))), (2, 3))
    notes = {name: found[0].note for name, found in asked(FullSizePacketsPass, two, spec).items()}
    assert ["without" in notes[f"gpu{index}"] for index in range(4)] == [True, True, False, False]
    own = _hole(1500, *[(2, n) for n in (0, 1, 3)], refused=1501)
    found, _ = asked(FullSizePacketsPass, own, spec)["gpu2"]
    assert "gpu2 fab0 itself rejects packets of 1501 B" in found.note


def test_packet_sizes_that_could_not_be_tried_are_inconclusive(spec: Spec) -> None:
    def mute(index: int, path: ProbedPath, *, at: int | None = None) -> ProbedPath:
        unheard = path.to == 1 and at in (None, index)
        return replace(path, answered=False, largest_bytes=None) if unheard else path

    one_path = with_paths(healthy(), partial(mute, at=0))
    ends = dict.fromkeys(("gpu0", "gpu1"), "inconclusive")
    assert verdicts(FullSizePacketsPass, one_path, spec) == ends
    # Datagrams to one node are filtered: it is judged, and the others without it.
    found = with_paths(healthy(), mute)
    assert verdicts(FullSizePacketsPass, found, spec) == {"gpu1": "inconclusive"}
    own, _ = asked(FullSizePacketsPass, found, spec)["gpu1"]
    assert own.culprit is not None
    assert own.culprit.nodes == {"gpu1"}
    other, _ = asked(FullSizePacketsPass, found, spec)["gpu0"]
    assert (str(other.verdict), other.note) == ("pass", "without gpu1, which answers no datagrams")
    # So it is beside a node that nobody reaches.
    beside = verdicts(FullSizePacketsPass, silent(with_paths(healthy(5), mute), 3), spec)
    assert beside == {"gpu1": "inconclusive", "gpu3": "inconclusive"}
    # Two that do not exchange any, beside two that nobody reaches, tell nothing of each other.
    two = silent(silent(with_paths(healthy(), mute), 2), 3)
    pair, _ = asked(FullSizePacketsPass, two, spec)["gpu1"]
    assert (str(pair.verdict), pair.culprit) == ("inconclusive", None)
    # A hole fails, whatever could not be tried beside it.
    hole = verdicts(FullSizePacketsPass, with_paths(_hole(1500, (0, 2)), mute), spec)
    assert hole == {"gpu1": "inconclusive", "gpu0": "fail", "gpu2": "fail"}


SIZE = 4 << 20
PAYLOAD = Payload.model_validate({"size": "4 MiB"})


Edges = Collection[tuple[int, int]]


NICS = "+".join(RAILS)
LINK = f"gpu2 {NICS}: its link changes payloads, "
BOTH_WAYS = f"{NICS}: its link changes payloads, both ways"


def _sent(count: int, wrong: Edges = (), lost: Edges = ()) -> Survey:
    """A cluster that sent payloads on each rail: 17 bytes of those on the paths `wrong` are wrong,
    half of those on `lost` are lost."""
    survey = healthy(count)
    edges = [(i, to) for i in range(count) for to in targets(i, range(count))]
    for index in range(count):
        sent, received = [], []
        for rail, (i, to) in itertools.product(RAILS, edges):
            source, is_lost = f"{rail} {i} {to}", (i, to) in lost
            if i == index:
                sent.append(Sent(to, "fabric", source, "not done within 5 s" * is_lost))
            if to == index:
                received.append(Received(source, SIZE >> is_lost, 17 * ((i, to) in wrong)))
        last = LastFacts((), None, tuple(received))
        survey = with_node(survey, index, payloads=PayloadFacts(tuple(sent)), last=last)
    return survey


def _of(node: int, count: int) -> set[tuple[int, int]]:
    return {(i, to) for i in range(count) for to in targets(i, range(count)) if node in (i, to)}


@pytest.mark.parametrize(
    ("count", "wrong", "expected"),
    [
        (4, (), {}),
        (4, {(2, n) for n in (0, 1, 3)}, {"gpu2": LINK + "sending"}),
        (4, {(n, 2) for n in (0, 1, 3)}, {"gpu2": LINK + "receiving"}),
        (4, _of(2, 4), {"gpu2": LINK + "both ways"}),
        (3, _of(2, 3), {"gpu2": LINK + "both ways"}),
        (16, _of(2, 16), {"gpu2": LINK + "both ways"}),
        (16, {(2, 3), (2, 4), (2, 10)}, {"gpu2": LINK + "sending"}),
        # A few wrong bytes now and then, so that most paths are right by chance.
        (16, {(2, 3), (1, 2)}, {"gpu2": LINK + "both ways"}),
        (4, {(2, 3), (2, 0)}, {"gpu2": LINK + "sending"}),
        (4, {(1, 2)}, dict.fromkeys(("gpu1", "gpu2"), "path from gpu1 to gpu2 (one way)")),
        (2, {(0, 1), (1, 0)}, dict.fromkeys(("gpu0", "gpu1"), "path between gpu0 and gpu1")),
        (6, _of(2, 6) | _of(3, 6), {n: f"{n} {BOTH_WAYS}" for n in ("gpu2", "gpu3")}),
        # All three are wrong: there is no healthy partner and no majority.
        (
            3,
            set(itertools.permutations(range(3), 2)),
            {
                "gpu0": "path between gpu0 and gpu1, path between gpu0 and gpu2",
                "gpu1": "path between gpu0 and gpu1, path between gpu1 and gpu2",
                "gpu2": "path between gpu0 and gpu2, path between gpu1 and gpu2",
            },
        ),
    ],
)
def test_nodes_and_paths_that_change_payloads(
    spec: Spec, count: int, wrong: Edges, expected: dict[str, str]
) -> None:
    survey = _sent(count, wrong)
    assert culprits(PayloadsArriveUnchanged, survey, spec) == expected
    assert set(verdicts(PayloadsArriveUnchanged, survey, spec)) == set(expected)


def test_value_and_note_of_a_payload_measurement(spec: Spec) -> None:
    found = asked(PayloadsArriveUnchanged, _sent(4, _of(2, 4)), spec)
    [bad], [well] = found["gpu2"], found["gpu0"]
    assert (bad.value, bad.unit) == (2 * 6 * 17, "B")
    assert bad.note.startswith(f"gpu0 to gpu2: {2 * 17} of {2 * SIZE} B, ")
    assert well.note == f"of {2 * 4 * SIZE} B; without gpu2, which is judged separately"
    assert (well.value, well.culprit) == (0, None)
    assert well.source == "preflight.payload 4 MiB to each partner"


@pytest.mark.parametrize(
    ("wrong", "lost", "value", "culprit", "note"),
    [
        ((), (), 0, None, "of 12 paths"),
        (_of(2, 4), (), 6, f"gpu2 {NICS}", "of 12 paths"),
        ({(1, 2)}, (), 1, "path from gpu1 to gpu2 (one way)", "of 12 paths"),
        (_of(2, 4), {(0, 1)}, 6, f"gpu2 {NICS}", "of 12 paths, gpu0 to gpu1: 2097152 of "),
        ((), _of(2, 4), None, f"gpu2 {NICS}", "of 12 paths, gpu0 to gpu2: 2097152 of "),
    ],
)
def test_paths_that_change_payloads(  # noqa: PLR0917  a row of the table
    spec: Spec, wrong: Edges, lost: Edges, value: int | None, culprit: str | None, note: str
) -> None:
    found = paths_that_change(_sent(4, wrong, lost), spec, PAYLOAD)
    assert (found.value, found.culprit) == (value, culprit)
    assert found.note.startswith(note)


def test_paths_of_a_silent_node_do_not_pass(spec: Spec) -> None:
    found = paths_that_change(silent(_sent(4), 2), spec, PAYLOAD)
    assert (found.verdict, found.culprit) == ("inconclusive", f"gpu2 {NICS}")
    assert "gpu2: " in found.note
    assert paths_that_change(healthy(2), spec, PAYLOAD).verdict == "inconclusive", "none was sent"


def test_payloads_that_did_not_arrive_are_inconclusive(spec: Spec) -> None:
    slow = _sent(4, lost=_of(2, 4))  # a slow link affects only its own node's case
    assert verdicts(PayloadsArriveUnchanged, slow, spec) == {"gpu2": "inconclusive"}
    [found] = asked(PayloadsArriveUnchanged, slow, spec)["gpu2"]
    assert f"gpu0 to gpu2: {SIZE // 2} of {SIZE} B arrived (not done within 5 s)" in found.note
    [well] = asked(PayloadsArriveUnchanged, slow, spec)["gpu0"]
    assert well.note.endswith("; without gpu2, which is judged separately")
    path = dict.fromkeys(("gpu1", "gpu2"), "inconclusive")
    assert verdicts(PayloadsArriveUnchanged, _sent(4, lost={(1, 2)}), spec) == path
    changed = _sent(4, _of(2, 4) - {(0, 2)}, lost={(0, 2)})  # another's fault, changed or lost
    assert verdicts(PayloadsArriveUnchanged, changed, spec) == {"gpu2": "fail"}
    # Wrong bytes fail, however few bytes arrived.
    assert verdicts(PayloadsArriveUnchanged, _sent(4, _of(2, 4), _of(2, 4)), spec) == {
        "gpu2": "fail"
    }
    mute = with_node(silent(_sent(4), 2), 2, payloads=None)
    for node in mute.nodes:
        if node.payloads is not None:
            sent = tuple(one for one in node.payloads.sent if one.to != 2)
            mute = with_node(mute, node.index, payloads=PayloadFacts(sent))
    assert verdicts(PayloadsArriveUnchanged, mute, spec) == {"gpu2": "inconclusive"}
    nothing = with_node(_sent(2), 0, payloads=PayloadFacts(()))
    nothing = with_node(nothing, 1, payloads=PayloadFacts(()))
    assert set(verdicts(PayloadsArriveUnchanged, nothing, spec).values()) == {"inconclusive"}
