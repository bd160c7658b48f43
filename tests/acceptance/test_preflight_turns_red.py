"""Preflight on racks with many faults at once, on different nodes: each is found and named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.acceptance.certified import Certified, certify, spec_with
from tests.red import turns_red

PROMISES = """
    storage: {{}}
    limits: {{shm: 1 GiB, memlock: 128 KiB, open_files: 1024}}
    disk: [{{path: {scratch}, free: 1 MB}}]
"""


class Found:
    """Cases of a run of preflight, by test and node."""

    def __init__(self, done: Certified) -> None:
        self.done, self.cases = done, done.cases("preflight")

    def with_verdict(self, verdict: str) -> set[str]:
        return {name for name, case in self.cases.items() if case["verdict"] == verdict}

    def assert_culprits(self, starts: Mapping[str, str]) -> None:
        """Each of these cases has one culprit, which begins so."""
        for name, start in starts.items():
            measurements = self.cases[name]["measurements"]
            [culprit] = {m["culprit"] for m in measurements if m["verdict"] == "fail"}
            assert culprit.startswith(start), name

    def assert_noted(self, words: Mapping[str, str]) -> None:
        """The notes of each of these cases have these words."""
        for name, noted in words.items():
            notes = " ".join(m["note"] for m in self.cases[name]["measurements"])
            assert noted in notes, name


def _preflight(directory: Path, faults: str, *args: str, files: tuple[str, ...] = ()) -> Found:
    fault = f"--mnode-fault={faults}"
    return Found(certify(directory, fault, *args, files=("test_preflight.py", *files), cold=False))


def _with_storage(directory: Path) -> tuple[Path, str]:
    """Paths for datasets, checkpoints and scratch, and a spec that promises them."""
    base = directory / "shared"
    for name in ("datasets", "checkpoints", "scratch"):
        (base / name).mkdir(parents=True)
    for number in range(3):
        (base / "datasets" / f"part{number}.bin").write_bytes(bytes([number]) * 4096)
    paths = "".join(f"  {n}: {base / n}\n" for n in ("datasets", "checkpoints", "scratch"))
    promises = PROMISES.format(scratch=base / "scratch").strip("\n")
    return base, spec_with(
        directory,
        (r"(?m)^criteria:$", f"storage:\n{paths}\ncriteria:"),
        (r"(?m)^    limits: .*$", promises),
    )


@turns_red(
    "preflight",
    "test_interfaces_are_up",
    "test_first_node_is_reached",
    "test_every_node_is_reached",
    "test_names_are_found",
    "test_full_size_packets_pass",
    "test_clocks_agree",
    "test_nodes_are_the_same",
    "test_storage_can_be_used",
    "test_storage_is_shared",
    "test_datasets_are_the_same",
    "test_shared_memory_suffices",
    "test_memory_can_be_locked",
    "test_files_can_be_open",
    "test_disks_have_room",
    "test_nothing_ties_the_hands_of_backends",
)
def test_system_faults_are_found(tmp_path: Path) -> None:
    base, spec = _with_storage(tmp_path)
    faults = (
        f"mtu_hole:node1,port_dropped:node0,slow_names:node2,small_shm:node3,skewed_clock:node2:-2,"
        f"low_nofile:node1,low_memlock:node0,other_package:node3:numpy,"
        f"read_only_path:node1:{base}/checkpoints,full_disk:node3:{base}/scratch,"
        f"full_disk:node2:{base}/checkpoints,"
        f"other_code:node2:{base}/datasets/part1.bin,link_down:node3,wrong_hosts:node1:node1,"
        "small_buffers:node2,no_offloads:node3"
    )
    way = "--mnode-env=NCCL_ALGO=Ring GLOO_SOCKET_IFNAME=mgmt0"
    found = _preflight(tmp_path, faults, spec, way)
    assert found.with_verdict("fail") == {
        "test_interfaces_are_up[node3]",
        "test_every_node_is_reached[node3]",
        "test_names_are_found[node1]",
        *(f"test_nothing_ties_the_hands_of_backends[node{i}]" for i in range(4)),
        "test_first_node_is_reached[node0]",
        "test_every_node_is_reached[node0]",
        "test_names_are_found[node2]",
        "test_full_size_packets_pass[node1]",
        "test_clocks_agree[node2]",
        "test_nodes_are_the_same[node2-sysctl]",
        "test_nodes_are_the_same[node3-sysctl]",
        "test_nodes_are_the_same[node3-packages]",
        "test_storage_can_be_used[node1]",
        "test_storage_can_be_used[node2]",
        "test_storage_is_shared[node2]",
        "test_storage_can_be_used[node3]",
        "test_datasets_are_the_same[node2]",
        "test_shared_memory_suffices[node3]",
        "test_memory_can_be_locked[node0]",
        "test_files_can_be_open[node1]",
        "test_disks_have_room[node3]",
    }, found.done.run.output
    # Nodes that cannot reach the first node through another's fault are not blamed.
    assert found.with_verdict("inconclusive") == {
        *(f"test_first_node_is_reached[node{i}]" for i in (1, 2, 3)),
        "test_interfaces_run_at_their_speed[node3]",
        "test_full_size_packets_pass[node3]",
        "test_payloads_arrive_unchanged[node1]",  # full-size packets are lost
        "test_payloads_arrive_unchanged[node3]",
    }
    tied = "GLOO_SOCKET_IFNAME=mgmt0 (not the fabric's interface), NCCL_ALGO=Ring (one algorithm)"
    filtered = "connections to it are filtered on the management network, datagrams pass"
    hole = "its link to the fabric network, both ways"
    found.assert_culprits(
        {
            "test_first_node_is_reached[node0]": "node0 10.77.0.1",
            "test_every_node_is_reached[node0]": f"node0: {filtered}",
            "test_every_node_is_reached[node3]": "node3: fab0 has no carrier",
            "test_full_size_packets_pass[node1]": f"node1: {hole}",
            "test_storage_can_be_used[node1]": f"node1 {base}/checkpoints: read-only file system",
            "test_storage_can_be_used[node3]": f"node3 {base}/scratch: no space left on device",
            "test_storage_is_shared[node2]": f"node2 {base}/checkpoints is tmpfs",
            "test_nothing_ties_the_hands_of_backends[node3]": f"node3: {tied}",
        }
    )
    found.assert_noted(
        {
            "test_first_node_is_reached[node0]": "connections are filtered",
            "test_clocks_agree[node2]": "node2 is behind node",
            "test_nodes_are_the_same[node3-packages]": "+other",
            "test_nodes_are_the_same[node2-sysctl]": "net.ipv4.tcp_rmem: 4096 4096 4096, ",
            "test_datasets_are_the_same[node2]": "part1.bin",
            "test_names_are_found[node1]": "node1 resolves to 127.0.1.1",
            "test_names_are_found[node2]": "13 of 13 were late",
        }
    )
    packets = found.cases["test_full_size_packets_pass[node1]"]["measurements"][0]
    assert packets["value"] == 1400
    [skew] = found.cases["test_clocks_agree[node2]"]["measurements"]
    assert 1990 < skew["value"] < 2010
    assert [p for p in base.rglob("*") if p.name.startswith(".")] == []  # nothing is left behind


@turns_red("preflight", "test_interfaces_run_at_their_speed")
def test_link_faults_are_found(tmp_path: Path) -> None:
    code = Path(__file__).parents[2] / "pytest_mnode" / "measurement.py"
    faults = (
        f"one_way:node1+node2,interface_missing:node3,wrong_hosts:node0,slow_link:node0,"
        f"other_code:node1:{code}"
    )
    found = _preflight(tmp_path, faults, files=("test_mesh.py",))
    assert found.with_verdict("fail") == {
        "test_interfaces_are_up[node3]",
        "test_interfaces_run_at_their_speed[node0]",
        "test_every_node_is_reached[node1]",
        "test_every_node_is_reached[node2]",
        "test_every_node_is_reached[node3]",
        "test_names_are_found[node0]",
        "test_nodes_are_the_same[node1-code]",
    }, found.done.run.output
    assert found.with_verdict("inconclusive") == {
        "test_interfaces_run_at_their_speed[node3]",
        "test_interfaces_have_their_mtu[node3]",
        "test_full_size_packets_pass[node3]",
        "test_payloads_arrive_unchanged[node1]",  # no packet gets from it to node2
        "test_payloads_arrive_unchanged[node2]",
        "test_payloads_arrive_unchanged[node3]",
    }
    found.assert_culprits(
        {
            "test_interfaces_are_up[node3]": "node3 fab0 is not there",
            "test_every_node_is_reached[node3]": "node3: fab0 is not there",
            "test_every_node_is_reached[node1]": "path from node1 to node2 (one way)",
            "test_every_node_is_reached[node2]": "path from node1 to node2 (one way)",
            "test_interfaces_run_at_their_speed[node0]": "node0 fab0 (50 Mbit/s)",
        }
    )
    found.assert_noted(
        {
            "test_every_node_is_reached[node0]": "without node3",
            "test_names_are_found[node0]": "node1 resolves to 10.77.0.1",
            "test_nodes_are_the_same[node1-code]": "pytest_mnode/measurement.py",
        }
    )
    mesh = found.done.criterion("mesh")
    assert mesh["verdict"] == "inconclusive"
    assert {c["verdict"] for c in mesh["cases"]} == {"inconclusive"}
    assert "fab0 is not there" in mesh["cases"][0]["message"]


def test_routes_that_refuse_a_peer_or_leave_the_network_are_named_and_not_the_peer(
    tmp_path: Path,
) -> None:
    faults = "refused_route:node1+node3,other_route:node0+node2"
    found = _preflight(tmp_path, faults, "-k", "reached or payloads")
    ends = {f"test_every_node_is_reached[node{index}]" for index in (0, 1)}
    assert found.with_verdict("fail") == ends, found.done.run.output
    refused = "blackhole route to 10.78.0.4/32 (ip route del blackhole 10.78.0.4/32)"
    other = "its route to node2 leaves by mgmt0, not by fab0 (ip route get 10.78.0.3)"
    found.assert_culprits(
        {
            "test_every_node_is_reached[node1]": f"node1: {refused}",
            "test_every_node_is_reached[node0]": f"node0: {other}",
        }
    )
    assert found.with_verdict("inconclusive") == {
        f"test_payloads_arrive_unchanged[node{i}]" for i in range(4)
    }
    states = [node["state"] for node in found.done.certificate["coverage"]["nodes"]]
    assert states == ["failed", "failed", "not tested", "not tested"]


@turns_red("preflight", "test_payloads_arrive_unchanged")
def test_a_byte_changed_now_and_then_and_one_connection_a_minute_are_named(tmp_path: Path) -> None:
    """One round of payloads shows a single path of the node whose wire changes a byte, or none."""
    faults = "corrupt_payload:node0:6 MiB,few_connections:node1+node2"
    chosen = "reached or payloads or every_rank_is"
    found = _preflight(tmp_path, faults, "-k", chosen, files=("test_mesh.py",))
    ends = {f"test_every_node_is_reached[node{index}]" for index in (1, 2)}
    changed = "test_payloads_arrive_unchanged[node0]"
    assert found.with_verdict("fail") == {*ends, changed}, found.done.run.output
    found.assert_culprits(dict.fromkeys(ends, "path from node1 to node2 (one way)"))
    # Each of the three failures stops tests that need ranks.
    [case] = found.done.criterion("mesh")["cases"]
    assert (case["verdict"], " and 2 more" in case["message"]) == ("inconclusive", True), case


@turns_red("preflight", "test_temporary_files_can_be_written")
@pytest.mark.parametrize("where", ["/tmp", "/dev/shm"])
def test_a_node_that_cannot_write_temporary_files_is_the_one_failure(
    tmp_path: Path, where: str
) -> None:
    found = _preflight(tmp_path, f"read_only_path:node2:{where}", files=("test_mesh.py",))
    assert found.with_verdict("fail") == {"test_temporary_files_can_be_written[node2]"}
    culprit = f"node2 {where}: read-only file system"
    found.assert_culprits({"test_temporary_files_can_be_written[node2]": culprit})
    assert f"mesh inconclusive (not run: preflight failed (node2 {where}" in found.done.run.output
