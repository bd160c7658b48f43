"""The acceptance suite over ssh on two guests: passes, and fails with named culprits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.certified import PORTS
from tests.machines import pages
from tests.machines.accepting import certified
from tests.machines.bed import Machines
from tests.red import turns_red

PATHS = ("node0→node1", "node1→node0")
PERFTEST = "test_rdma_by_perftest_is_as_promised"
WRITES = f"test_fabric.py::{PERFTEST}[write_bandwidth]"
SENDS = f"test_fabric.py::{PERFTEST}[send_bandwidth]"


def test_healthy_guests_pass(machines: Machines, shared: Path) -> None:
    fabric = [f"test_fabric.py::{name}" for name in (PERFTEST, PORTS)]
    page = pages.one_rail()
    promises = page["criteria"]["fabric"]
    # A retransmission in one of three is no fault. Runs of guests differ so much that three tell
    # no more than that it works; closer bounds would take up to twelve.
    promises["write_bandwidth"] |= {"repeats": 3, "at_least_fraction": 0.005}
    promises["read_bandwidth"] = promises["write_bandwidth"] | {"repeats": 1}
    promises["write_latency"] = {"at_most": "1 s", "iterations": 100, "repeats": 1}
    done = certified(machines, shared, page, "test_preflight.py", *fabric)
    assert set(done.run.outcomes().values()) == {"passed", "skipped"}, done.run.output
    for name in ("preflight", "fabric"):
        assert done.criterion(name)["verdict"] == "pass", done.run.output
    found = done.measurements("fabric")
    rates = [found[f"ib_write_bw {path} rxe0"] for path in PATHS]
    print(*(f"{rate['value'] / 0.04:.0%} of the line" for rate in rates))
    assert all(0.004 < rate["value"] < 0.042 for rate in rates), rates
    reads = [found[f"ib_read_bw {path} rxe0"] for path in PATHS]
    assert all(0.0002 < rate["value"] < 0.042 for rate in reads), reads
    latencies = [found[f"ib_write_lat {path} rxe0"] for path in PATHS]
    assert all(0 < latency["value"] < 1e6 for latency in latencies), latencies
    assert found["packets lost, worst fabric port"]["verdict"] == "pass"


@pytest.fixture
def unwell(machines: Machines) -> Iterator[Machines]:
    """Guests with faults: node0's port is down; node1's MTU is too small."""
    machines.guest("node0", "ip link set fab0 down")
    machines.guest("node1", "ip link set fab0 mtu 1500")
    yield machines
    machines.guest("node0", "ip link set fab0 up")
    machines.guest("node1", "ip link set fab0 mtu 4200")


@turns_red(
    "preflight",
    "test_interfaces_have_their_mtu",
    "test_rdma_ports_are_active",
    "test_rdma_devices_can_be_opened",
)
def test_each_fault_is_named_by_its_test(unwell: Machines, shared: Path) -> None:
    page = pages.one_rail()
    page["criteria"]["preflight"]["rdma"]["gid_types"] = ["RoCE v1"]
    done = certified(unwell, shared, page, "test_preflight.py")
    assert done.criterion("preflight")["verdict"] == "fail", done.run.output
    failed = {
        f"{one['name']}: {one['culprit']}"
        for case in done.criterion("preflight")["cases"]
        for one in case["measurements"]
        if one["verdict"] == "fail"
    }
    assert failed == {
        "fabric interfaces that are up: node0 rxe0:1 is DOWN",
        "nodes reached both ways on the fabric network: node0: rxe0:1 is DOWN",
        "fabric interface MTU: node1 fab0 (MTU 1500)",
        "RDMA ports that are ACTIVE: node0 rxe0:1 DOWN",
        "ports without a GID of RoCE v1: node1 rxe0:1 has RoCE v2",
        "RDMA ports whose device can be opened: node0 rxe0:1 DOWN",
    }, done.run.output


@pytest.fixture
def one_slow_rail(machines: Machines) -> Iterator[Machines]:
    """node1 receives little over its second rail."""
    machines.set_rail_rate("node1", "fab1", 1.0)
    yield machines
    machines.set_rail_rate("node1", "fab1", None)


@turns_red("fabric", PERFTEST)
def test_a_slow_direction_of_one_rail_is_named(one_slow_rail: Machines, shared: Path) -> None:
    page = pages.two_rails()
    page["criteria"]["fabric"]["write_bandwidth"] |= {
        "at_least_fraction": 0.05,
        "arguments": ["-u", "20", "-t", "2"],
    }
    done = certified(one_slow_rail, shared, page, WRITES)
    found = done.measurements("fabric")
    for path, rail in itertools.product(PATHS, (0, 1)):
        slow = (path, rail) == (PATHS[0], 1)
        one = found[f"ib_write_bw {path} rxe{rail}"]
        if slow or rail == 0:  # node1's answers over the slow rail delay what node0 sends
            assert one["verdict"] == ("fail" if slow else "pass"), done.run.output
            assert one["culprit"] == (f"{path} rxe{rail}" if slow else None)


@contextmanager
def flapping(machines: Machines, name: str, nic: str) -> Iterator[None]:
    """The cable of a guest's NIC is disconnected for 200 ms every 5 s."""
    over = threading.Event()

    def flap() -> None:
        while not over.wait(5.0):
            machines.set_carrier(name, nic, False)
            time.sleep(0.2)
            machines.set_carrier(name, nic, True)

    with ThreadPoolExecutor() as pool:
        flaps = pool.submit(flap)
        try:
            yield
        finally:
            over.set()
            flaps.result()


@pytest.fixture
def firewalled(machines: Machines) -> Iterator[Machines]:
    """Guests whose perftest port is blocked; node1 also has other faults.

    node1 has no ib_send_bw, its second device has another name, and its first link flaps.
    """
    rules = {"node0": "dport 18516 drop", "node1": "dport 18515 reject with tcp reset"}
    for name, rule in rules.items():
        chain = "add chain inet t c { type filter hook input priority 0; }"
        rules_of = f"add table inet t; {chain}; add rule inet t c tcp {rule}"
        machines.guest(name, f"nft '{rules_of}'")
    machines.guest("node1", "rdma link del rxe1; rdma link add rxe7 type rxe netdev fab1")
    machines.guest("node1", "mv /usr/bin/ib_send_bw /tmp")
    with flapping(machines, "node1", "fab0"):
        yield machines
    machines.guest("node1", "mv /tmp/ib_send_bw /usr/bin")
    for name in machines.names:
        machines.guest(name, "nft delete table inet t")
    machines.guest("node1", "rdma link del rxe7; rdma link add rxe1 type rxe netdev fab1")


def test_a_firewall_missing_parts_and_a_flapping_link_are_named(
    firewalled: Machines, shared: Path
) -> None:
    page = pages.two_rails()
    promises = page["criteria"]["fabric"]
    promises["send_bandwidth"] = promises["write_bandwidth"]
    done = certified(firewalled, shared, page, WRITES, SENDS, f"test_fabric.py::{PORTS}")
    assert done.criterion("fabric")["verdict"] == "fail"
    found = done.measurements("fabric")
    assert found["RDMA devices of node0"]["verdict"] == "pass"
    absent = found["RDMA devices of node1"]
    assert absent["culprit"] == "node1 has rxe0; outside of the fabric it has rxe7"
    why = {
        "ib_write_bw": (":18515", "port 18516 did not answer a connection"),
        "ib_send_bw": tuple(
            f"{side} on node1: ib_send_bw cannot be run: No such file"
            for side in ("its server", "client")
        ),
    }
    for program, words in why.items():
        for path, expected in zip(PATHS, words, strict=True):
            one = found[f"{program} {path} rxe0"]
            assert one["verdict"] == "inconclusive"
            assert expected in one["note"], f"{one['note']}\n{done.run.output}"
            one = found[f"{program} {path} rxe1"]
            assert one["verdict"] == "inconclusive"
            assert one["note"] == "no device for this rail on node1"
    flaps = found["carrier changes, worst fabric port"]
    assert flaps["verdict"] == "fail"
    assert flaps["culprit"].startswith("node1 fab0 carrier_changes +")
