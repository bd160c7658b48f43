"""Node states in a certificate: passed, failed, suspect or not tested, with evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.node_states import blamed
from pytest_mnode.certificate.results import CUT_OFF
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import certify

NAMES = tuple(f"node{i}" for i in range(12))


def case(name: str, outcome: Any = "passed", *culprits: str | None, **more: Any) -> CaseResult:
    measured = tuple(Measurement("rate", 48, "Mbit/s", at_least(170), "spec", c) for c in culprits)
    test = f"acceptance/test_{name}.py::test_it"
    return CaseResult(test, "?", outcome, measurements=measured, **more)


@pytest.mark.parametrize(
    ("culprit", "sure", "unsure"),
    [
        (None, "", ""),
        ("node2", "2", ""),
        ("node11 clock", "11", ""),
        ("node2 /scratch/node1 is nfs", "2", ""),
        ("node2/mlx5_0", "2", ""),
        ("node2 fab0 tx (48 Mbit/s, alone with node0 or node3 (again); other nodes 191)", "2", ""),
        ("node1: its hosts file or name server; node4: the same", "1 4", ""),
        ("node2: its host name node0", "2", ""),
        ("the paths node1↔node2 (5), node3→node4 (6): their nodes are fast", "", "1 2 3 4"),
        (
            "node3: x, node5 fab0: node1 can connect; node1 and node3 both have 10.0.0.1",
            "1 3 5",
            "",
        ),
        ("path from node2 to node3 (one way)", "", "2 3"),
        ("path between node2 and node3: no answer, node1: y", "1", "2 3"),
        ("the path node1→node3 (95 Mbit/s): both nodes are fast with others", "", "1 3"),
        ("fab0 between node0 and node1 (48 Mbit/s, both ways)", "", "0 1"),
        ("node5 fab0; suspected, not confirmed: node6 (48 Mbit/s with node1)", "5", "6"),
        ("no reading of node3 tx", "", "3"),
        ("rank 2 on node1", "1", ""),
        ("the fabric as a whole: every pair is slow", "", ""),
        ("node22, nodes, snode1", "", ""),
    ],
)
def test_certain_and_possible_nodes_of_a_culprit(
    culprit: str | None, sure: str, unsure: str
) -> None:
    def nodes(numbers: str) -> set[str]:
        return {f"node{number}" for number in numbers.split()}

    found, paths = blamed(culprit, NAMES)
    assert (found, set().union(*paths)) == (nodes(sure), nodes(unsure))


STOPPED = "not run: preflight failed (node2)"


@pytest.mark.parametrize(
    ("cases", "more", "states"),
    [
        ([case("mesh")], {}, "pppp"),
        ([case("mesh", "failed", "node2 fab0")], {}, "ppfp"),
        ([case("mesh", "failed", "node2", "node1→node3")], {}, "psfs"),
        ([case("mesh", "failed", "node1→node2", "node2")], {}, "pnfp"),
        (
            [
                case("mesh", "failed", "node1→node3 (5), node0→node2 (6)"),
                case("a", "failed", "node3"),
            ],
            {},
            "snsf",
        ),
        (
            [
                case("mesh", "failed", "node1→node3"),
                case("a", "error", message="x", culprit="node3"),
            ],
            {},
            "psps",
        ),
        ([case("mesh"), case("mesh", "error", message="x", nodes=("node1",))], {}, "pspp"),
        ([case("mesh", "error", message="x", culprit="path between node1 and node3")], {}, "psps"),
        ([case("mesh", "failed", "the fabric")], {}, "ssss"),
        ([case("mesh", "failed", None, nodes=("node0", "node1"))], {}, "ssnn"),
        ([case("mesh", "failed", "node2", None)], {}, "ssfs"),
        ([case("mesh", "failed", message="x", culprit="node3")], {}, "pppf"),
        ([case("mesh", "error", message="x", culprit="node3")], {}, "ppps"),
        ([case("mesh", "error", message="x")], {}, "ssss"),
        ([case("mesh", "skipped")], {}, "ssss"),
        (
            [case("preflight", "failed", "node2"), case("mesh", "error", message=STOPPED)],
            {},
            "nnfn",
        ),
        ([case("preflight", "failed", "x"), case("mesh", "error", message=STOPPED)], {}, "ssss"),
        ([case("mesh", "error", message=CUT_OFF)], {"cut_short": ("interrupted",)}, "nnnn"),
        ([case("mesh", "error", "node2", message=CUT_OFF)], {}, "ppfp"),
        ([case("mesh", nodes=("node0", "node1", "node2"))], {}, "pppn"),
        ([case("mesh", nodes=("node0",)), case("mesh")], {}, "pppp"),
        ([], {}, "nnnn"),
        ([case("mesh"), case("other", "failed", "node1")], {}, "pfpp"),
        ([case("mesh"), case("other", "failed", "node1")], {"cut_short": ("-x",)}, "nfnn"),
        ([case("mesh"), case("gang", "failed", "x")], {"not_promised": {"gang": "no"}}, "pppp"),
    ],
)
def test_state_of_a_node_from_its_cases(
    cases: list[CaseResult], more: dict[str, Any], states: str
) -> None:
    coverage = certify(*cases, promised=["mesh"], **more).coverage
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
    slow = Measurement("node0→node1", 48, "Mbit/s", at_least(170), "spec", "node0")
    lost = Measurement.unknown("node2→node3", "no answer", expected=at_least(170), source="spec")
    measured = (slow, replace(lost, culprit="the path node2→node3"))
    failed = replace(case("fabric", "failed"), measurements=measured)
    states = {n.name: n.state.value for n in certify(failed, promised=["fabric"]).coverage.nodes}
    assert states == dict(zip(NAMES, ("failed", "passed", "suspect", "suspect"), strict=False))
