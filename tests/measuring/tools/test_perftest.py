"""perftest as nodes run it: real processes, with our programs in its place."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import detection
from pytest_mnode.logs.perftest import Perftest
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Bound, Measurement, Verdict
from pytest_mnode.measuring.tools import beside_nic, perftest, perftest_pairs
from pytest_mnode.measuring.tools.beside_nic import ToolPlacement, cuda_arguments, locate, run
from pytest_mnode.measuring.tools.perftest_pairs import PairResult, run_pairs
from pytest_mnode.spec.fabric import WriteBandwidthPromise, WriteLatencyPromise
from pytest_mnode.spec.inventory import Fabric
from tests.measuring.tools.local import FORKING, Local, device, fabric_of, program
from tests.recorded import Recorded
from tests.trees import MELLANOX, NIC, Tree, gpu_address, gpu_server

# Stands for ib_write_bw: the server creates a file for its port and waits for its client's file.
WRITE_BW = """\
    #!/bin/sh
    node=$NODE; port=; device=; last=
    while [ $# -gt 0 ]; do
      case $1 in
        -d) device=$2; shift ;;
        -p) port=$2; shift ;;
        -s|-D|-n) shift ;;
        -*) ;;
        *) last=$1 ;;
      esac
      shift
    done
    if [ -z "$last" ]; then
      touch "$DIR/listens-$port"
      for i in $(seq 300); do [ -e "$DIR/done-$port" ] && break; sleep 0.1; done
      rm -f "$DIR/done-$port" "$DIR/listens-$port"
      [ -e "$DIR/kill-$node-$device" ] && kill -9 $$
      exit 0
    fi
    if [ ! -e "$DIR/listens-$port" ]; then
      echo "Couldn't connect to $last:$port" >&2; exit 1
    fi
    rate=$(cat "$DIR/rate-$node-$device" 2>/dev/null || echo 387.42)
    if [ "$rate" = hangs ]; then exec sleep 60; fi
    sleep ${TAKES_S:-0}
    touch "$DIR/done-$port"
    if [ "$rate" = down ]; then echo " Port number 1 state is Down"; exit 1; fi
    if [ "$rate" = gone ]; then echo "ethernet_read_data: Couldn't read reports"; exit 1; fi
    if [ "$LATENCY" ]; then
      echo " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
      echo " 2       5000          3.06           41.35        $LATENCY    	     3.40"
    else
      echo "                    RDMA_Write BW Test"
      echo " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
      echo " 1048576    92000            0.00               $rate             0.046"
    fi
    echo "---------------------------------------------------------------------------------------"
"""

SHUT_OFF = """\
    #!/bin/sh
    for last; do :; done
    if [ "$last" = 127.0.0.1 ]; then echo "Couldn't connect to $last"; exit 1; fi
    exec sleep 60
"""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Local:
    monkeypatch.setattr("pytest_mnode.launchers.remote.node_process.subprocess", FORKING)
    program(tmp_path, "ib_write_bw", WRITE_BW)
    return Local(tmp_path)


@pytest.fixture
def fabric() -> Fabric:
    return fabric_of()


def write_bandwidth(**page: Any) -> WriteBandwidthPromise:
    return WriteBandwidthPromise.model_validate({"repeats": 1, **page})


def bound_of(promise: perftest_pairs.Promise) -> Bound:
    return perftest.bound_of(fabric_of(), promise)


def on_every(nodes: Local, *names: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(nodes.nodes, names)


def of_fabric(nodes: Local, fabric: Fabric) -> dict[str, tuple[str, ...]]:
    return perftest.of_fabric(perftest.devices_of(nodes), fabric)


def bandwidths(measurements: list[Measurement]) -> dict[str, tuple[float | None, Verdict | None]]:
    return {
        m.name.removeprefix("ib_write_bw "): (m.value, m.verdict)
        for m in measurements
        if m.unit == "Gbit/s"
    }


@pytest.mark.parametrize(
    ("kind", "mtu", "bound"),
    [
        ("roce", 9000, 384.0),
        ("roce", 4200, 384.0),
        ("roce", 1500, 359),
        ("infiniband", 4096, 384.0),
    ],
)
def test_headers_leave_less_of_small_packets(
    fabric: Fabric, kind: str, mtu: int, bound: float
) -> None:
    """Published of RoCE at an MTU of 1500 are 92.6 of 100 Gbit/s."""
    fabric = fabric.model_copy(update={"kind": kind, "mtu_bytes": mtu})
    assert perftest.bound_of(fabric, write_bandwidth()).limit == pytest.approx(bound, abs=0.5)


def test_devices_are_those_of_the_fabric_in_their_order(nodes: Local, fabric: Fabric) -> None:
    assert of_fabric(nodes, fabric)["n1"] == ("mlx5_9", "mlx5_10")


def test_ethernet_ports_beside_an_infiniband_fabric_are_not_measured(
    nodes: Local, fabric: Fabric
) -> None:
    rails = (device("mlx5_0", "InfiniBand", "ib0"), device("mlx5_1", "InfiniBand", "ib1"))
    nodes.devices = (*rails, device("mlx5_2", netdev="eno5"))
    page = {"kind": "infiniband", "interfaces": ("mlx5_*",), "nics_per_node": 2}
    assert of_fabric(nodes, fabric.model_copy(update=page))["n1"] == ("mlx5_0", "mlx5_1")
    by_interface = fabric.model_copy(update={**page, "interfaces": ("ib*",)})
    assert of_fabric(nodes, by_interface)["n1"] == ("mlx5_0", "mlx5_1")


def test_a_device_outside_of_the_fabric_is_named(nodes: Local, fabric: Fabric) -> None:
    other = fabric.model_copy(update={"interfaces": ("mlx6_*",)})
    found = {m.culprit for m in perftest.judge_devices(perftest.devices_of(nodes), other)}
    there = "no RDMA device of the fabric (mlx6_*); outside of the fabric it has mlx5_9, mlx5_10"
    assert f"n1 has {there}, mlx5_bond0" in found


def test_each_pair_and_rail_is_judged_and_named(nodes: Local, fabric: Fabric) -> None:
    (nodes.directory / "rate-n1-mlx5_9").write_text("211.07")
    (nodes.directory / "rate-n1-mlx5_10").write_text("down")
    devices = {**of_fabric(nodes, fabric), "n0": ("mlx5_9",)}
    promise = write_bandwidth()
    there = {**perftest.devices_of(nodes), "n0": (device("mlx5_9"),)}
    found = perftest.judge_devices(there, fabric.model_copy(update={"nics_per_node": 2}))
    assert [(m.culprit, m.verdict) for m in found][:2] == [
        ("n0 has mlx5_9", Verdict.FAIL),
        (None, Verdict.PASS),
    ]
    kept = perftest.judge(
        list(run_pairs(nodes, devices, promise, bound_of(promise))), fabric, promise
    )
    assert bandwidths(kept) == {
        "n0→n1 mlx5_9": (387.42, Verdict.PASS),
        "n1→n2 mlx5_9": (211.07, Verdict.FAIL),
        "n2→n0 mlx5_9": (387.42, Verdict.PASS),
        "n0→n1 mlx5_10": (None, Verdict.INCONCLUSIVE),
        "n1→n2 mlx5_10": (None, Verdict.INCONCLUSIVE),
        "n2→n0 mlx5_10": (None, Verdict.INCONCLUSIVE),
    }
    slow = next(m for m in kept if m.verdict is Verdict.FAIL)
    assert slow.culprit == "n1→n2 mlx5_9"
    assert slow.source == "fabric.line_rate 400 Gbit/s × at_least_fraction 0.96"
    missing = "no device for this rail on n0"
    reasons = [m.note for m in kept if m.value is None and m.unit]
    assert reasons == [missing, "Port number 1 state is Down", missing]


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (("mlx5_9", "mlx5_11"), ["mlx5_9", None, "mlx5_11"]),
        (("rdmap1s0", "rdmap2s0"), ["rdmap1s0", "rdmap2s0", None]),  # named otherwise: by place
    ],
)
def test_a_device_missing_in_the_middle_does_not_move_the_other_rails(
    names: tuple[str, ...], ends: list[str | None]
) -> None:
    whole = ("mlx5_9", "mlx5_10", "mlx5_11")
    found = list(perftest_pairs.rails(("n0", "n1"), {"n0": names, "n1": whole}))
    assert [(n0.device, n1.device) for n0, n1 in found] == list(zip(ends, whole, strict=True))


def test_a_killed_server_is_named(nodes: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perftest_pairs, "_FAILED_END_S", 60.0)
    (nodes.directory / "rate-n0-mlx5_9").write_text("gone")
    (nodes.directory / "kill-n1-mlx5_9").touch()
    [killed, *others] = run_pairs(
        nodes, on_every(nodes, "mlx5_9"), write_bandwidth(), bound_of(write_bandwidth())
    )
    assert killed.why == (
        "ethernet_read_data: Couldn't read reports; its server on n1: killed by signal 9"
    )
    assert [pair.value for pair in others] == [387.42, 387.42]


def test_a_pair_that_hangs_does_not_delay_the_others(
    nodes: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit ends once the other pairs are judged, however long they take."""
    (nodes.directory / "rate-n0-mlx5_9").write_text("hangs")
    monkeypatch.setattr(perftest_pairs, "_SPARE_S", 300.0)
    monkeypatch.setattr(perftest_pairs, "_FAILED_END_S", 0.0)
    judged, judge = [], perftest_pairs._judged

    def noted(*given: Any) -> Any:
        judged.append(given)
        if len(judged) == 2:
            monkeypatch.setattr(perftest_pairs, "_SPARE_S", -1e9)
        return judge(*given)

    monkeypatch.setattr(perftest_pairs, "_judged", noted)
    promise = write_bandwidth(duration="1 s")
    pairs = run_pairs(nodes, on_every(nodes, "mlx5_9"), promise, bound_of(promise))
    assert [(pair.sender, pair.value, pair.why) for pair in pairs] == [
        ("n0", None, "ib_write_bw to n1 port 18515 did not end within its time"),
        ("n1", 387.42, ""),
        ("n2", 387.42, ""),
    ]


def test_a_connection_without_an_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full listen queue drops requests, like a firewall."""
    monkeypatch.setattr(beside_nic, "_CONNECT_LIMIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        to = full.getsockname()
        connects = f"import socket; socket.create_connection({to})"
        with socket.create_connection(to):
            printed, placed = run("mlx5_0", "none", "host", [sys.executable, "-c", connects])
    assert (printed, placed.status) == ("", None)
    assert placed.problem == f"127.0.0.1 port {to[1]} did not answer a connection within 0.5 s"


def test_a_started_server_that_refuses_connections_is_not_waited_for(
    nodes: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program may take long to start, but not to listen."""
    monkeypatch.setattr(perftest_pairs, "_SERVER_LIMIT_S", 1e9)
    monkeypatch.setattr(perftest_pairs, "_LISTEN_LIMIT_S", 0.0)
    monkeypatch.setattr(perftest_pairs, "_FAILED_END_S", 0.0)
    program(nodes.directory, "ib_write_bw", SHUT_OFF)
    pairs = run_pairs(
        nodes, on_every(nodes, "mlx5_9"), write_bandwidth(), bound_of(write_bandwidth())
    )
    assert {pair.why for pair in pairs} == {"Couldn't connect to 127.0.0.1"}


TABLE = Perftest(bidirectional=False, rates_gbits_s=((1 << 20, 387.42),), closed=True)


@pytest.mark.parametrize(
    ("table", "value", "why"),
    [
        (TABLE, 387.42, ""),
        (replace(TABLE, bidirectional=True), 193.71, ""),  # the sum of both directions
        (replace(TABLE, bidirectional=None), None, "no title above its table"),
        (replace(TABLE, rates_gbits_s=((1 << 20, None),)), None, "no average in its table"),
        (replace(TABLE, rates_gbits_s=((2, 1.0), (4, 2.0))), None, "no average in its table"),
        (replace(TABLE, closed=False), None, "cut off"),
    ],
)
def test_the_rate_in_a_table_is_of_one_direction(
    table: Perftest, value: float | None, why: str
) -> None:
    found, reason = perftest_pairs._judged(table, None, write_bandwidth(), "n0")
    assert (found, reason.startswith(why)) == (value, True), reason
    assert bool(reason) is bool(why)


def test_the_typical_latency_is_judged(
    nodes: Local, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATENCY", "3.21")
    page = {"at_most": "5 us", "program": "ib_write_bw", "repeats": 1}
    promise = WriteLatencyPromise.model_validate(page)
    pairs = list(run_pairs(nodes, on_every(nodes, "mlx5_9"), promise, bound_of(promise)))
    for at_most_s, verdict in ((5e-6, Verdict.PASS), (3e-6, Verdict.FAIL)):
        promised = promise.model_copy(update={"at_most_s": at_most_s})
        found = [m for m in perftest.judge(pairs, fabric, promised) if m.unit == "µs"]
        assert [(m.value, m.verdict) for m in found] == [(3.21, verdict)] * 3
        assert found[0].source == f"fabric.write_latency.at_most {at_most_s * 1e6:g} µs"


def test_each_rail_is_measured_repeatedly_and_noisy_ones_more_often(
    nodes: Local, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nodes.directory / "rate-n2-mlx5_9").write_text("down")
    # A client that is refused, since its server does not listen yet, measures nothing.
    noisy = """
        {} "$@" || exit
        for last; do :; done
        if [ "$NODE $last" = "n0 127.0.0.1" ]; then
          n=$(cat $DIR/runs 2>/dev/null || echo 0); echo $((n + 1)) > $DIR/runs
          echo $((386 + n % 2 * 2)) > $DIR/rate-n0-mlx5_9
        fi
    """
    program(nodes.directory, "noisy", f"#!/bin/sh{noisy.format(nodes.directory / 'ib_write_bw')}")
    monkeypatch.setattr(detection, "LOOKS", (1, 2))
    promise = write_bandwidth(program="noisy", repeats=2, at_least_fraction=0.95)
    pairs = list(run_pairs(nodes, on_every(nodes, "mlx5_9"), promise, bound_of(promise)))
    assert [len(pair.repeats) for pair in pairs] == [4, 4, 0]
    found = perftest.judge(pairs, fabric, promise)[:3]
    assert found[1].value == pytest.approx(387.42)
    assert found[0].value == pytest.approx(387, abs=3)
    assert "mean of 4 runs" in found[0].note
    assert "detection limit 1.92 % less" in str(found[1])
    assert [m.verdict for m in found] == [Verdict.PASS, Verdict.PASS, Verdict.INCONCLUSIVE]


@pytest.mark.parametrize(
    ("slow", "culprits"),
    [
        ([("n1", "n2")], ["n1→n2 mlx5_9"]),
        ([("n0", "n1"), ("n1", "n2")], ["n1 mlx5_9 (sends and receives)"] * 2),
        ([("n0", "n1"), ("n2", "n3")], ["n0→n1 mlx5_9", "n2→n3 mlx5_9"]),
        (
            [("n0", "n1"), ("n1", "n2"), ("n2", "n3"), ("n3", "n0")],
            ["n0→n1 mlx5_9", "n1→n2 mlx5_9", "n2→n3 mlx5_9", "n3→n0 mlx5_9"],
        ),
    ],
)
def test_a_node_that_is_slow_in_both_of_its_pairs_is_named(
    fabric: Fabric, slow: list[tuple[str, str]], culprits: list[str]
) -> None:
    ring = [("n0", "n1"), ("n1", "n2"), ("n2", "n3"), ("n3", "n0")]
    pairs = [PairResult(*ends, "mlx5_9", 200.0 if ends in slow else 390.0) for ends in ring]
    pairs.append(PairResult("n1", "n2", "mlx5_10", None, "down"))
    judged = perftest.judge(pairs, fabric, write_bandwidth(binding="none"))
    assert [m.culprit for m in judged if m.verdict is Verdict.FAIL] == culprits


def noisy_pair(*values: float) -> PairResult:
    pair = None
    for value in values:
        pair = PairResult("n0", "n1", "mlx5_9", value).after(pair)
    assert pair is not None
    return pair


@pytest.mark.parametrize(
    ("values", "verdict", "words"),
    [
        # 390 with an interval of 0.32 %: 8.13 standard deviations of the logarithms.
        ((390.0, 389.8, 390.1), Verdict.PASS, "detection limit 1.84 % less"),
        (
            (390.0, 380.0, 392.0),
            Verdict.INCONCLUSIVE,
            "undecided: the bound is within its interval",
        ),
        (
            (380.0, 370.0, 382.0),
            Verdict.INCONCLUSIVE,
            "undecided: the bound is within its interval",
        ),
        ((380.0, 379.0, 381.0), Verdict.INCONCLUSIVE, "mean of 3 runs"),
        ((380.0, 379.8, 380.1), Verdict.FAIL, "mean of 3 runs"),
        ((390.0,), Verdict.PASS, "margin +6 Gbit/s"),
    ],
)
def test_noise_of_a_pair_sets_the_detection_limit(
    fabric: Fabric, values: tuple[float, ...], verdict: Verdict, words: str
) -> None:
    [found, *_] = perftest.judge([noisy_pair(*values)], fabric, write_bandwidth())
    assert found.verdict is verdict
    assert words in str(found)


def test_noise_of_latencies_sets_the_detection_limit(fabric: Fabric) -> None:
    promise = WriteLatencyPromise.model_validate({"at_most": "5 us", "binding": "none"})
    [found] = perftest.judge([noisy_pair(4.0, 4.0, 4.0)], fabric, promise)
    assert "detection limit 25 % more" in str(found)
    [found] = perftest.judge([noisy_pair(4.0, 4.1, 3.9)], fabric, promise)
    assert found.passed
    assert "detection limit 53.2 % more" in str(found)  # from 3.26 µs
    [found] = perftest.judge([noisy_pair(4.0, 4.6, 3.4)], fabric, promise)
    assert found.verdict is Verdict.INCONCLUSIVE


def test_a_program_that_is_missing_is_the_reason(nodes: Local, fabric: Fabric) -> None:
    promise = write_bandwidth(program="ib_no_bw")
    pairs = list(run_pairs(nodes, on_every(nodes, "mlx5_9"), promise, bound_of(promise)))
    why = "ib_no_bw cannot be run: No such file or directory"
    assert {pair.why for pair in pairs} == {f"client on {n}: {why}" for n in nodes.nodes}
    assert perftest.judge(pairs, fabric, promise)[-1].verdict is Verdict.INCONCLUSIVE


def _machine(root: Path, cpus: Mapping[int, str], nic: int) -> None:
    """A machine with mlx5_9 on this NUMA node."""
    tree = Tree(root)
    tree.numa(cpus)
    listed = ",".join(text for text in cpus.values() if text)
    tree.write("sys/devices/system/cpu/online", listed)
    tree.pci("pci0000:10/0000:10:01.0", NIC, MELLANOX, nic, cpus.get(nic, listed))
    tree.rdma("mlx5_9", "pci0000:10/0000:10:01.0")


def test_the_placement_of_client_and_server_is_judged(
    nodes: Local, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1's NIC is beside CPUs that this machine lacks: its programs cannot be near it."""
    monkeypatch.setenv("TAKES_S", "3")
    here = format_cpulist(os.sched_getaffinity(0))
    for name, nic in (("n0", 0), ("n1", 1), ("n2", 0)):
        _machine(nodes.root(name), {0: here, 1: "512-515"}, nic)
    promise = write_bandwidth()
    pairs = list(run_pairs(nodes, on_every(nodes, "mlx5_9"), promise, bound_of(promise)))
    healthy = pairs[2]
    assert healthy.client is not None
    assert healthy.client.cpus == frozenset(os.sched_getaffinity(0))
    assert set(healthy.client.memory_bytes or {}) == {0}
    assert healthy.client.place == "mlx5_9 on NUMA node 0"
    binding = perftest.judge(pairs, fabric, promise)[-1]
    assert (binding.value, binding.verdict) == (2, Verdict.FAIL)
    far = (
        f"CPUs {here}, memory on NUMA node 0, none of the CPUs beside mlx5_9 on NUMA node 1 may be "
        "used here; expected beside mlx5_9 on NUMA node 1"
    )
    culprits = [f"ib_write_bw {side} on n1: {far}" for side in ("server", "client")]
    assert binding.culprit == "; ".join(culprits)
    nobody = write_bandwidth(binding="none")
    judged = perftest.judge(pairs, fabric, nobody)
    assert {m.unit for m in judged} == {"Gbit/s"}


NEAR = ToolPlacement(
    place="mlx5_0 on NUMA node 1",
    near_cpus=frozenset({2, 3}),
    near_memory=frozenset({1}),
    cpus=frozenset({2, 3}),
    memory_bytes={1: 1 << 24},
    status=0,
)


@pytest.mark.parametrize(
    ("server", "verdict", "words"),
    [
        (NEAR, "pass", ""),
        (replace(NEAR, cpus=frozenset({2})), "pass", ""),
        (replace(NEAR, memory_bytes={0: 4096, 1: 1 << 24}), "pass", ""),
        (replace(NEAR, cpus=frozenset({0, 1})), "fail", "CPUs 0-1; expected beside mlx5_0"),
        (replace(NEAR, cpus=frozenset(range(4))), "fail", "CPUs 0-3 are not all near"),
        (replace(NEAR, memory_bytes={0: 1 << 24}), "fail", "memory on NUMA node 0; expected"),
        (
            replace(NEAR, near_cpus=None, unknown="numa_node is −1"),
            *("inconclusive", "server on n1: numa_node is −1"),
        ),
        (replace(NEAR, memory_bytes=None), "inconclusive", "its CPUs and memory were not observed"),
        (None, "inconclusive", "the program sent no report"),
    ],
)
def test_a_far_binding_is_named(
    fabric: Fabric, server: ToolPlacement | None, verdict: str, words: str
) -> None:
    pair = PairResult("n0", "n1", "mlx5_0", 390.0, client=NEAR, server=server)
    bandwidth, binding = perftest.judge([pair], fabric, write_bandwidth())
    assert bandwidth.verdict is Verdict.PASS
    assert str(binding.verdict) == verdict
    assert words in (binding.culprit or binding.note)
    assert ("server on n1" in (binding.culprit or "")) is (verdict == "fail")


@pytest.mark.parametrize(
    ("machine", "device", "near", "words"),
    [
        ("numa2-virtio-aligned-rxe-up", "rxe0", ({0, 1}, {0}), "rxe0 on NUMA node 0"),
        ("numa2-virtio-aligned-rxe-up", "rxe1", ({2, 3}, {1}), "rxe1 on NUMA node 1"),
        ("numa2-e1000e-siw", "siw1", ({2, 3}, {1}), "siw1 on NUMA node 1"),
        ("numa2-both-nics-on-node1", "rxe0", (None, None), "shows no RDMA device rxe0"),
        ("numa1-veth-rxe", "rxe0", ({0, 1, 2, 3}, {0}), "rxe0 on NUMA node 0"),
    ],
)
def test_numa_nodes_near_the_recorded_devices(
    recorded: Recorded,
    machine: str,
    device: str,
    near: tuple[set[int] | None, set[int] | None],
    words: str,
) -> None:
    placed, _ = locate(Machine.read(recorded(machine)), device)
    assert (placed.near_cpus, placed.near_memory) == near
    assert words in f"{placed.place} {placed.unknown}"


def test_a_device_without_affinity_has_no_near_cpus(tmp_path: Path) -> None:
    _machine(tmp_path, {0: "0-1", 1: "2-3"}, -1)
    placed, beside = locate(Machine.read(tmp_path), "mlx5_9")
    assert beside is None
    assert "does not know the NUMA node of mlx5_9" in placed.unknown


def test_a_device_beside_memory_without_cpus_is_near_the_next_cpus(tmp_path: Path) -> None:
    _machine(tmp_path, {0: "0-3", 1: "4", 2: "5-7", 3: ""}, 3)
    for one, row in enumerate(("10 20 20 40", "20 10 20 40", "20 20 10 15", "40 40 15 10")):
        Tree(tmp_path).write(f"sys/devices/system/node/node{one}/distance", row)
    placed, _ = locate(Machine.read(tmp_path), "mlx5_9")
    assert placed.near_cpus == frozenset({5, 6, 7})
    assert placed.near_memory == frozenset({2, 3})


OLD_HELP = "  --use_cuda=<cuda device id> Use CUDA specific device for GPUDirect RDMA testing\n"
NEW_HELP = f"{OLD_HELP}  --use_cuda_bus_id=<cuda full BUS id>\n  --use_cuda_dmabuf\n"


@pytest.mark.parametrize(
    ("help_text", "peermem", "arguments"),
    [
        (OLD_HELP, "live", ("--use_cuda=5",)),
        (OLD_HELP, "", ("--use_cuda=5",)),
        (NEW_HELP, "live", (f"--use_cuda_bus_id={gpu_address(5)}",)),
        (NEW_HELP, "", (f"--use_cuda_bus_id={gpu_address(5)}", "--use_cuda_dmabuf")),
        (NEW_HELP, "open", (f"--use_cuda_bus_id={gpu_address(5)}", "--use_cuda_dmabuf")),
    ],
)
def test_memory_of_the_gpu_beside_the_nic_is_used(
    tmp_path: Path, help_text: str, peermem: str, arguments: tuple[str, ...]
) -> None:
    tree = gpu_server(tmp_path)
    if peermem:
        tree.write("sys/module/nvidia_peermem/initstate", "live")
    if peermem == "open":
        tree.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module")
    machine = Machine.read(tmp_path)
    assert cuda_arguments(machine, "mlx5_5", help_text, tmp_path) == arguments


def test_without_cuda_or_a_gpu_gpu_memory_is_refused(tmp_path: Path, recorded: Recorded) -> None:
    program(tmp_path, "ib_plain_bw", "#!/bin/sh\necho '  -d, --ib-dev=<dev>'\n")
    argv = [str(tmp_path / "ib_plain_bw")]
    printed, placed = beside_nic.run("rxe0", "nic", "gpu", argv, tmp_path)
    assert (printed, placed.status) == ("", None)
    assert "it was built without CUDA" in placed.problem
    root = recorded("numa1-veth-rxe")
    with pytest.raises(ValueError, match="this node shows no NVIDIA GPU"):
        cuda_arguments(Machine.read(root), "rxe0", OLD_HELP, root)


def test_a_side_that_still_runs_is_ended() -> None:
    side = perftest_pairs._Side.__new__(perftest_pairs._Side)
    side._process = subprocess.Popen(["sleep", "40"])
    side._printed = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed by the side
    side.close()
    assert side._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kind", [WriteBandwidthPromise, WriteLatencyPromise])
def test_a_missing_program_is_inconclusive_with_the_remedy(kind: Any) -> None:
    promise = kind.model_validate({"at_most": "5 us"} if kind is WriteLatencyPromise else {})
    found = perftest.missing(("n1",), fabric_of(), promise)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"{promise.program} is not on the PATH of n1: install perftest" in found.note
