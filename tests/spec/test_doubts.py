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


def doubtful(directory: Path, criterion: str, changes: dict[str, str]) -> list[str]:
    """Doubts about one criterion, without its key. Keys of changes: "." is the criterion's."""
    key = f"criteria.{criterion}"
    absolute = {
        (key + name).rstrip(".") if name.startswith(".") else name: value
        for name, value in changes.items()
    }
    found = [line for line in doubts(changed(directory, absolute)) if line.startswith(key)]
    return [line.removeprefix(key).lstrip(".: ") for line in found]


DOUBTS: list[tuple[str, dict[str, str], list[str]]] = [
    ("scaling", {".explained_from": "0.7"}, ["explained_from: 0.7 lets a cluster pass t"]),
    ("scaling", {".at_least_efficiency": "1"}, ["at_least_efficiency: 1 is more than clo"]),
    ("scaling", {".at_most_uncertainty": "0.1"}, ["at_most_uncertainty: 0.1 is more than"]),
    ("scaling", {".dtype": "bfloat16"}, ["dtype: bfloat16, but accelerators.per_node is"]),
    ("scaling", {"nodes": "1"}, ["promised for nodes: 1, which has no other node to scale to"]),
    ("scaling", {".parts_within": "0.06"}, ["parts_within: 0.06 of a step may be unattr"]),
    ("scaling", {".parts_within": "0.05"}, []),
    ("scaling", {".explained_fraction": "0.4"}, ["explained_fraction: 0.4 lets a loss pa"]),
    ("scaling", {".explained_fraction": "0.5"}, []),
    ("scaling", {".fabric_fraction": "0.4"}, ["fabric_fraction: 0.4 calls a fabric at ha"]),
    ("scaling", {".fabric_fraction": "0.5"}, []),
    ("scaling", {".elsewhere_fraction": "0.3"}, ["elsewhere_fraction: 0.3 lets more than"]),
    ("scaling", {".elsewhere_fraction": "0.2"}, []),
    ("restart", {".tolerance": "0.06"}, ["tolerance: 0.06 is more than 0.05"]),
    ("restart", {".tolerance": "0.05"}, []),
    ("restart", {".resharded_tolerance": "0.99"}, ["resharded_tolerance: 0.99 is more than"]),
    ("restart", {".resharded_tolerance": "0.05"}, []),
    # Nodes on one machine share its directories.
    ("restart", {"storage": "{datasets: /data}"}, []),
    ("restart", {"emulated": "", "storage": ""}, ["promised, and storage.checkpoints names no"]),
    (
        "restart",
        {"emulated": "", "storage": "{datasets: /data}"},
        ["promised, and storage.checkpoints names no directory that all nodes see"],
    ),
    ("restart", {"emulated": "", "storage": "{checkpoints: /shared}"}, []),
    ("restart", {"nodes": "1"}, ["kills: node, with node_loss spare, for nodes: 1, which has"]),
    (
        "restart",
        {"nodes": "1", ".node_loss": "fewer"},
        ["kills: node, with node_loss fewer, for nodes: 1"],
    ),
    ("restart", {"nodes": "1", ".node_loss": "rebooted"}, []),
    ("restart", {"nodes": "1", ".kills": "[rank, preemption]"}, []),
    ("gang", {".": "{}"}, []),
    ("gang", {".": "{nodes: 3, among: [a, b, c], settle: 2 s, clock_skew: 7 s}"}, []),
    ("gang", {".settle": "1 d"}, ["settle: 1 d is no less than runs, 15 s: half a ga"]),
    ("gang", {".clock_skew": "8 s"}, ["clock_skew: 8 s either way is no less than runs, 15 s"]),
    ("gang", {".waits": "2 s"}, ["clock_skew: 1 s either way is no less than waits, 2 s: ranks"]),
    (
        "gang",
        {".": "{runs: 100 ms, together: 50 ms, clock_skew: 10 ms}"},
        ["runs: 0.1 s is less than 1 s: a gang may start and end between two polls"],
    ),
    ("fabric", {".write_bandwidth": "{at_least_fraction: 0.51}"}, []),
    (
        "fabric",
        {".read_bandwidth": "{at_least_fraction: 0.5}"},
        ["read_bandwidth.at_least_fraction: 0.5: a port at half its speed passes"],
    ),
    (
        "fabric",
        {".failover": "{ports: [mgmt0, fab1], at_least_fraction: 0.5, within: 1 s}"},
        ["failover.ports: mgmt0 is of management, and is taken down"],
    ),
    ("launch", {".rendezvous.ranks": "129"}, []),  # ranks share processors
    ("preflight", {".names.within": "10 s"}, ["names.within: 10 s: torchrun sta"]),
    ("preflight", {".clocks.skew": "1 min"}, ["clocks.skew: 1 min: logs of two"]),
    ("preflight", {".speed.at_least_fraction": "0.5"}, ["speed.at_least_fraction: 0.5: a link"]),
    ("preflight", {".rdma": "{}"}, ["rdma: given, but fabric.kind is ethernet"]),
    ("preflight", {".gpudirect": "either"}, ["gpudirect: given, but accelerators.per_node is 0"]),
    ("preflight", {".accelerators": "{}"}, ["accelerators: given, but accelerators.per_node is 0"]),
    ("preflight", {".same": "[nccl]"}, ["same: nccl, but accelerators.per_node is 0"]),
    ("preflight", {".payload.size": "64 KiB"}, ["payload.size: 64 KiB: a wire that changes a"]),
    (
        "preflight",
        {".storage": "{writable: [datasets]}", "storage": "{datasets: /data}"},
        ["storage.writable: datasets: preflight will write"],
    ),
    (
        "preflight",
        {".rdma": "{gid_types: [IB, RoCE v2]}", "fabric.kind": "roce"},
        ["rdma.gid_types: IB, which ports of roce do not have"],
    ),
    ("preflight", {".rdma": "{gid_types: [RoCE v2]}", "fabric.kind": "roce"}, []),
]


@pytest.mark.parametrize(("criterion", "changes", "lines"), DOUBTS)
def test_a_promise_that_would_hide_a_fault_is_doubtful(
    tmp_path: Path, criterion: str, changes: dict[str, str], lines: list[str]
) -> None:
    found = doubtful(tmp_path, criterion, changes)
    assert len(found) == len(lines), found
    for line, begins in zip(found, lines, strict=True):
        assert line.startswith(begins)


@pytest.mark.parametrize(("nodes", "count"), [("16", 1), ("17", 0), ("", 0)])
def test_more_ranks_than_accelerators_are_doubtful(tmp_path: Path, nodes: str, count: int) -> None:
    eight = {"accelerators.per_node": "8", "criteria.scaling.compute": "", "nodes": nodes}
    ranks = {".rendezvous": "{ranks: 129, within: 1 s}"}
    expected = "rendezvous.ranks: 129, but 16 nodes × 8 accelerators have no more than 128"
    assert doubtful(tmp_path, "launch", eight | ranks) == [expected] * count
