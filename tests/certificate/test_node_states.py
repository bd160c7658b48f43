"""Node states in a certificate: passed, failed, suspect or not tested, with evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import RIGHT, certify


def case(name: str, outcome: Any = "passed", *culprits: str | None, **more: Any) -> CaseResult:
    measured = tuple(
        Measurement("rate", 48, "Mbit/s", at_least(170), "spec", c if c is None else Culprit.of(c))
        for c in culprits
    )
    if outcome == "passed" and not measured:
        measured = (RIGHT,)
    test = f"acceptance/test_{name}.py::test_it"
    return CaseResult(test, "?", outcome, measurements=measured, **more)


def failed(*culprits: Any, **more: Any) -> CaseResult:
    return case("mesh", "failed", *culprits, **more)


def error(message: str = "x", **more: Any) -> CaseResult:
    return case("mesh", "error", message=message, **more)


def path(first: int, second: int) -> Culprit:
    ends = f"node{first}", f"node{second}"
    return Culprit("→".join(ends), either=[ends])


FABRIC = Culprit("node2 fab0", "node2")
SETTING = Culprit("settings of tuning.mtu", parts=Parts(settings=("tuning.mtu",)))


@pytest.mark.parametrize(
    ("words", "states"),
    [
        ("node2", "ppfp"),
        ("node1, node3", "pfpf"),
        ("node[0-1]", "ffpp"),
        ("node2 fab0", "ssss"),  # nothing is read out of words
        ("node1→node2", "ssss"),
        ("node9", "ssss"),
        ("node[", "ssss"),
    ],
)
def test_of_plain_words_only_names_of_nodes_count(words: str, states: str) -> None:
    for one in (failed(words), failed(culprit=words)):
        coverage = certify(one, promised=["mesh"]).coverage
        assert "".join(node.state[0] for node in coverage.nodes) == states


STOPPED: Any = {"message": "not run: preflight failed (node2)", "stopped_by": "failure"}
CUT_OFF: Any = {"message": "interrupted", "stopped_by": "interruption"}
NODE1_OR_3: Any = {"culprit": "?", "culprit_either": (("node1", "node3"),)}
NODES_1_AND_3: Any = {"culprit": "?", "culprit_nodes": ("node1", "node3")}


@pytest.mark.parametrize(
    ("cases", "more", "states"),
    [
        ([case("mesh")], {}, "pppp"),
        ([failed(FABRIC)], {}, "ppfp"),
        ([failed("node2", path(1, 3))], {}, "psfs"),
        ([failed(path(1, 2), "node2")], {}, "pnfp"),
        ([failed(path(1, 3), path(0, 2)), case("a", "failed", "node3")], {}, "snsf"),
        ([failed(path(1, 3)), error(culprit="node3")], {}, "psps"),
        ([case("mesh"), error(nodes=("node1",))], {}, "pspp"),
        ([error(**NODE1_OR_3)], {}, "psps"),
        ([failed(message="x", **NODES_1_AND_3)], {}, "pfpf"),
        ([failed(Culprit("node2, …", "node2", [()]))], {}, "ssfs"),
        ([failed("the fabric")], {}, "ssss"),
        ([failed(SETTING)], {}, "pppp"),
        ([failed(SETTING, path(1, 3))], {}, "psps"),
        ([failed(Culprit("by an alias", "node2.site"))], {}, "ssss"),
        ([failed(Culprit("one alias", ["node2", "alias"]))], {}, "ppfp"),
        ([failed(None, nodes=("node0", "node1"))], {}, "ssnn"),
        ([failed("node2", None)], {}, "ssfs"),
        ([failed("node2"), failed(None)], {}, "nnfn"),  # as a program over all nodes
        ([failed(path(1, 2)), failed(None)], {}, "nssn"),
        ([case("other", "failed", "node2"), failed(None)], {}, "ssfs"),
        ([failed(message="x", culprit="node3")], {}, "pppf"),
        ([error(culprit="node3")], {}, "ppps"),
        ([error()], {}, "ssss"),
        ([case("mesh", "skipped")], {}, "ssss"),
        ([case("preflight", "failed", "node2"), error(**STOPPED)], {}, "nnfn"),
        ([case("preflight", "failed", "x"), error(**STOPPED)], {}, "ssss"),
        ([error(STOPPED["message"])], {}, "ssss"),  # words stop nothing,
        ([error(**CUT_OFF)], {"cut_short": ("interrupted",)}, "nnnn"),
        ([case("mesh", "error", "node2", **CUT_OFF)], {}, "ppfp"),
        ([case("mesh", nodes=("node0", "node1", "node2"))], {}, "pppn"),
        ([case("mesh", nodes=("node0",)), case("mesh")], {}, "pppp"),
        ([], {}, "nnnn"),
        ([case("mesh")], {"promised": []}, "nnnn"),
        ([case("mesh"), case("other", "failed", "node1")], {}, "pfpp"),
        ([case("mesh"), case("other", "failed", "node1")], {"cut_short": ("-x",)}, "nfnn"),
        ([case("mesh"), case("gang", "failed", "x")], {"not_promised": {"gang": "no"}}, "pppp"),
    ],
)
def test_state_of_a_node_from_its_cases(
    cases: list[CaseResult], more: dict[str, Any], states: str
) -> None:
    coverage = certify(*cases, **{"promised": ["mesh"], **more}).coverage
    assert "".join(node.state[0] for node in coverage.nodes) == states
    assert all(node.date and node.evidence for node in coverage.nodes)
    assert all(bool(node.until) is (node.state == "passed") for node in coverage.nodes)


def test_the_evidence_names_its_tests() -> None:
    certificate = certify(
        case("mesh"),
        case("fabric", "failed", "node2"),
        promised=["mesh", "fabric"],
        not_covered=("node7",),
        cluster_nodes=16,
    )
    first, _, third, _, other = certificate.coverage.nodes
    assert first.evidence == "passed: mesh"
    assert third.evidence == "fabric: rate 48 Mbit/s"
    assert (other.name, other.date, other.evidence) == ("node7", None, "no run has tested it")
    assert certificate.coverage.nodes_in_words() == (
        "passed: node[0-1,3]; failed: node2; not tested: node7 and 11 others"
    )
    assert certificate.count == "3 of 16 nodes"
    assert certificate.verdict == "not certified"


def test_a_part_of_the_cluster_does_not_certify_it() -> None:
    certificate = certify(case("mesh"), promised=["mesh"], cluster_nodes=16)
    assert (certificate.verdict, certificate.kept) == ("partly certified", True)
    assert certificate.expiry is None
    assert certificate.reasons == (
        "not every node has a pass: passed: node[0-3]; not tested: 12 others",
    )
    unseen = certify(case("mesh", nodes=("node0",)), promised=["mesh"], cluster_nodes=4)
    assert (unseen.verdict, unseen.count) == ("partly certified", "1 of 4 nodes")
    assert unseen.coverage.nodes_in_words() == "passed: node0; no pass: node[1-3]"


def test_an_unmeasured_node_does_not_pass_if_another_failed() -> None:
    slow = Measurement("node0→node1", 48, "Mbit/s", at_least(170), "spec", Culprit("node0"))
    lost = Measurement.unknown("node2→node3", "no answer", expected=at_least(170), source="spec")
    measured = (slow, replace(lost, culprit=path(2, 3)))
    found = certify(replace(failed(), measurements=measured), promised=["mesh"]).coverage
    assert "".join(node.state[0] for node in found.nodes) == "fpss"
