from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.spec import Criteria, default_spec_path, doubts, load_spec
from pytest_mnode.spec.fabric import FabricCriterion
from tests.spec.conftest import Load, busbw_of, changed

FRACTION = "criteria.fabric.all_reduce_busbw.at_least_fraction"
ALLOWED = "0.956 of the line rate (TCP payload at MTU 1500)"


def test_the_racks_spec_has_no_doubts() -> None:
    assert doubts(load_spec(default_spec_path())) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "fraction: 0.75",
            "fraction: 0.96",
            f"{FRACTION}: 0.96 is more than the wire allows, {ALLOWED}: no healthy cluster ",
        ),
        (
            "fraction: 0.75",
            "fraction: 0.47",
            f"{FRACTION}: 0.47 is below half of what the wire allows, {ALLOWED}: a cluster at half",
        ),
        (
            "tolerance_fraction: 0",
            "tolerance_fraction: 0.4",
            f"{FRACTION}: 0.75 less tolerance_fraction 0.4 is below half of what the wire allows, ",
        ),
        ("20 Mbit/s", "200 Mbit/s", "management.line_rate: 200 Mbit/s is no slower than the"),
        ("[mgmt0]", "['*b0']", "management.interfaces: fab0 is in fabric.interfaces too: "),
        ("[fab0]", "['*0']", "management.interfaces: mgmt0 is in fabric.interfaces too: "),
        ("[fab0]", "[a, b]", "fabric.nics_per_node: 1, but fabric.interfaces names 2 (a, b)"),
        ("name: rack", "name: rack\nnodes: 1", "criteria.fabric: promised for nodes: 1, "),
        ("per_node: 0", "per_node: 0\n  memory: 80 GB", "accelerators.memory: given, but "),
        ("per_node: 0", "per_node: 0\n  model: H100", "accelerators.model: given, but "),
        ("kind: ethernet", "gpudirect: true\n  kind: ethernet", "fabric.gpudirect: promised, with"),
        ("question: gang", "question: mesh", "not_promised[1].question: mesh is promised by"),
        ("question: gang", "question: accelerators", "not_promised[1].question: accel"),
    ],
)
def test_a_doubt_names_key_value_and_what_the_wire_allows(
    load: Load, old: str, new: str, line: str
) -> None:
    # One node cannot scale, and a lost node is the cluster; other tests cover this.
    elsewhere = ("criteria.scaling", "criteria.restart")
    found = [one for one in doubts(load(old, new)) if not one.startswith(elsewhere)]
    assert len(found) == 1
    assert found[0].startswith(line)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fraction: 0.75", "fraction: 0.95"),
        ("fraction: 0.75", "fraction: 0.48"),
        ("20 Mbit/s", "199 Mbit/s"),
        ("[fab0]", "['fab*']"),
        ("kind: ethernet", "kind: roce"),
        ("management:\n  interfaces: [mgmt0]\n  line_rate: 20 Mbit/s\n  mtu: 1500\n", ""),
    ],
)
def test_values_that_the_wire_allows_are_not_doubted(load: Load, old: str, new: str) -> None:
    # Without a management network preflight has no paths to try there, and says so.
    found = [line for line in doubts(load(old, new)) if "criteria.preflight." not in line]
    assert found == []


def test_rdma_may_promise_the_line_rate_and_no_more(load: Load) -> None:
    spec = load("kind: ethernet", "kind: roce")
    for fraction, count in ((1.0, 0), (1.01, 1)):
        promise = busbw_of(spec).model_copy(update={"at_least_fraction": fraction})
        fabric = FabricCriterion(all_reduce_busbw=promise)
        criteria = spec.criteria.model_copy(update={"fabric": fabric})
        found = doubts(spec.model_copy(update={"criteria": criteria}))
        assert len(found) == count, found


def test_real_wires_carry_preamble_and_gap_too(load: Load) -> None:
    spec = load("fraction: 0.75", "fraction: 0.95")
    real = spec.model_copy(update={"emulated": ()})
    elsewhere = ("criteria.scaling.compute: ", "criteria.restart: ", "topology: ")
    found = [line for line in doubts(real) if not line.startswith(elsewhere)]
    assert [line.partition(" (")[0] for line in found] == [
        f"{FRACTION}: 0.95 is more than the wire allows, 0.941 of the line rate"
    ]


def test_a_spec_that_promises_nothing_is_doubtful(load: Load) -> None:
    spec = load("name: rack\n", "name: a rack\n")
    assert doubts(spec.model_copy(update={"criteria": Criteria()})) == [
        f"criteria: none is promised; known are {', '.join(Criteria.model_fields)}"
    ]


def test_sockets_of_real_nodes_are_doubtful(tmp_path: Path) -> None:
    assert changed(tmp_path, {}).topology is not None
    [doubt] = [one for one in doubts(changed(tmp_path, {"emulated": ""})) if "topology" in one]
    assert doubt.startswith("topology: ignored on nodes that are real: only the rack shows its")


def test_an_unconfirmed_page_is_doubtful(load: Load) -> None:
    [line] = doubts(load("name: rack\n", "name: rack\nconfirmed: false\n"))
    assert line.startswith("confirmed: false: a draft from the nodes or a profile")
    assert doubts(load("name: rack\n", "name: rack\nconfirmed: true\n")) == []
