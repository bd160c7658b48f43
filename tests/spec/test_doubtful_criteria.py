"""Doubts about promises that would hide a fault, or that the cluster cannot keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.spec import doubts
from tests.spec.conftest import changed


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
