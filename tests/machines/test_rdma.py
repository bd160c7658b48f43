"""Real RDMA: judgements of ports, perftest's writes and counters of two guests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_mnode.checks.node.mtu import InterfacesHaveTheirMtu
from pytest_mnode.checks.node.rdma import RdmaDevicesCanBeOpened, RdmaPortsAreActive
from pytest_mnode.criteria.port_counters.judging import judge
from pytest_mnode.criteria.port_counters.reading import PortReading
from pytest_mnode.criteria.port_counters.rises import PortReadings, rises
from pytest_mnode.criteria.preflight.answers import NodeFacts, NodeSurvey, Survey
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.logs.perftest import Perftest, read_perftest
from pytest_mnode.machine.encoding import decode
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec
from tests.machines import pages
from tests.machines.bed import Machines

LIMIT_S = 240.0
ROCE_BYTES = 4096
READ = """
from pytest_mnode.machine.encoding import encode
from pytest_mnode.machine.model import Machine
print(encode(Machine.read(parts=("interfaces", "rdma", "verbs"), limit_s=120)))
"""
LISTENING = "ss -Htln sport = :18515 | grep -q ."
# Interfaces may have more addresses than a port has GIDs: the last address gets none.
MANY = """
ip address flush dev fab0 scope global
for i in $(seq 1100); do printf 'address add fd00::%x/128 dev fab0 nodad\\n' $i; done >/tmp/many
ip -6 -batch /tmp/many
ip address add {}/24 dev fab0
"""
ROCE = "rdma link add rxe0 type rxe netdev fab0"
IWARP = "modprobe siw && rdma link del rxe0 && rdma link add rxe0 type siw netdev fab0"


@pytest.fixture
def spec() -> Spec:
    return Spec.model_validate(pages.one_rail())


@pytest.fixture
def whole(machines: Machines) -> Iterator[Machines]:
    """Guests whose RDMA devices are recreated after the test."""
    yield machines

    def renew(name: str) -> None:
        machines.set_carrier(name, "fab0", True)
        machines.guest(
            name, f"rdma link del rxe0 || true; ip link set fab0 mtu 4200 up; {ROCE}", LIMIT_S
        )

    with ThreadPoolExecutor() as pool:
        list(pool.map(renew, machines.names))


def python(machines: Machines, name: str, *argv: str) -> str:
    project = Path(__file__).parents[2]
    words = " ".join(f"'{word}'" for word in argv)
    command = f"cd /tmp && PYTHONPATH={project} {sys.executable} {words}"
    return machines.guest(name, command, LIMIT_S).strip().rpartition("\n")[2]


def faults(machines: Machines, spec: Spec) -> dict[str, list[str]]:
    """Culprits of preflight judges, by node."""

    def look(name: str) -> NodeSurvey:
        machine = decode(Machine, python(machines, name, "-c", READ))
        facts = NodeFacts(
            machine=machine,
            tcp_port=0,
            udp_port=0,
            master_problem="",
            rails={},
            code=None,
            directories=(),
        )
        node = machines.node(name)
        return NodeSurvey(node.index, name, node.address, facts=facts)

    with ThreadPoolExecutor() as pool:
        survey = Survey(tuple(pool.map(look, machines.names)))
    judges = (RdmaPortsAreActive, RdmaDevicesCanBeOpened, InterfacesHaveTheirMtu)
    return {
        name: [blamed(one) for ask in judges for one in judged(ask, survey, spec, name) if bad(one)]
        for name in machines.names
    }


def plug(machines: Machines, name: str, carrier: int) -> None:
    """Disconnect (0) or connect (1) a guest's fabric cable, and wait until the guest sees it."""
    machines.set_carrier(name, "fab0", bool(carrier))
    file = "/sys/class/net/fab0/carrier"
    machines.guest(name, f"until [ $(cat {file}) = {carrier} ]; do sleep 0.1; done", LIMIT_S)


def bad(one: Measurement) -> bool:
    return one.verdict is not Verdict.PASS


def blamed(one: Measurement) -> str:
    return f"{one.name}: {one.culprit} {one.note}"


def test_faults_of_ports_are_named_with_node_and_port(whole: Machines, spec: Spec) -> None:
    address = whole.rack.plan.address(0, "fab0")
    whole.guest("node0", MANY.format(address), LIMIT_S)
    found = faults(whole, spec)
    whole.guest("node0", "ip -6 address flush dev fab0 scope global", LIMIT_S)
    [missing] = found["node0"]
    assert f"node0 rxe0:1 has no RoCE v2 GID for {address}" in missing
    assert found["node1"] == []
    whole.guest("node0", "ip link set fab0 down")
    plug(whole, "node1", 0)
    found = faults(whole, spec)
    for name in whole.names:
        assert f"{name} rxe0:1 DOWN" in found[name][0], found
    plug(whole, "node1", 1)
    whole.guest("node0", f"ip link set fab0 up; {IWARP}")
    whole.guest("node1", "rdma link del rxe0; ip link set fab0 mtu 1500")
    found = faults(whole, spec)
    assert "node0 rxe0:1 is iWARP, not RoCE" in found["node0"][0], found
    assert "node1: RDMA devices are missing" in found["node1"][0], found


def perftest(machines: Machines, sender: str, *, kill: bool = False) -> Perftest:
    """The client's output for writes of three seconds; kill: kill the server halfway."""
    receiver = next(name for name in machines.names if name != sender)
    program = "ib_write_bw -d rxe0 -F -s 65536 -D 4 -u 18 --report_gbits"
    established = "ss -Htn state established sport = :18515 | grep -q ."
    until = f"until {established}; do sleep 0.1; done; sleep 1"
    server = f"{program} & {until}; kill -9 $!" if kill else program
    client = f"{program} {receiver} 2>&1 || true"
    with ThreadPoolExecutor() as pool:
        served = pool.submit(machines.guest, receiver, f"({server}) 2>&1 || true", LIMIT_S)
        machines.guest(receiver, f"until {LISTENING}; do sleep 0.1; done", LIMIT_S)
        found = read_perftest(machines.guest(sender, client, LIMIT_S))
        served.result()
    return found


def rate_mbits_s(found: Perftest) -> float:
    assert found.why_incomplete is None, found
    [(size, rate)] = found.rates_gbits_s
    assert size == 65536
    assert rate is not None
    return rate * 1e3


def counters(machines: Machines) -> dict[str, PortReading | str]:
    argv = ("-P", "-m", "pytest_mnode.criteria.port_counters.reading", "rxe0")
    return {name: decode(PortReading, python(machines, name, *argv)) for name in machines.names}


def risen(before: PortReadings, after: PortReadings, spec: Spec) -> list[Measurement]:
    return judge([*rises(before, after, spec.fabric.interfaces)], spec.fabric)


def rise(before: PortReading | str, after: PortReading | str, port: str, counter: str) -> int:
    assert isinstance(before, PortReading)
    assert isinstance(after, PortReading)
    first, then = before.ports[port][counter], after.ports[port][counter]
    assert first is not None
    assert then is not None
    return then - first


def test_writes_are_counted_and_a_slow_direction_is_slow(whole: Machines) -> None:
    before = counters(whole)
    rate = rate_mbits_s(perftest(whole, "node0"))
    after = counters(whole)
    sent = rise(before["node0"], after["node0"], "rxe0:1", "sent_pkts")
    assert sent * ROCE_BYTES >= 1 << 20
    # RDMA packets are packets of the interface below, which sends almost no others.
    packets = rise(before["node0"], after["node0"], "fab0", "tx_packets")
    assert sent <= packets <= 1.1 * sent + 100
    assert rise(before["node1"], after["node1"], "rxe0:1", "rcvd_pkts") > 0.9 * sent
    assert rate < 42
    whole.set_rate("node1", 2.0, "tx")
    slow = rate_mbits_s(perftest(whole, "node1"))
    assert slow < 2.5
    assert rate > 2 * slow
    whole.set_rate("node1", 40.0, "tx")


def test_a_killed_server_is_no_result(whole: Machines) -> None:
    assert perftest(whole, "node0", kill=True).why_incomplete is not None


def test_losses_and_a_flapping_link_are_judged_over_the_load(whole: Machines, spec: Spec) -> None:
    before = counters(whole)
    chain = "add table ip t; add chain ip t c { type filter hook input priority 0; }"
    drop = "add rule ip t c udp dport 4791 numgen random mod 100 < 8 drop"
    whole.guest("node1", f"nft '{chain}; {drop}'")
    for _ in range(3):  # a connection may fail before it has lost many packets
        perftest(whole, "node0")
    whole.guest("node1", "nft delete table ip t")
    lossy = counters(whole)
    found = {one.name: one for one in risen(before, lossy, spec)}
    assert found["carrier changes, worst fabric port"].verdict is Verdict.PASS
    lost = found["packets lost, worst fabric port"]
    assert lost.verdict is Verdict.FAIL, (before, lossy)
    assert "rxe0:1" in str(lost.culprit), lost
    plug(whole, "node1", 0)
    plug(whole, "node1", 1)
    flapped = risen(lossy, counters(whole), spec)
    [carrier] = [one for one in flapped if one.name.startswith("carrier")]
    assert carrier.verdict is Verdict.FAIL
    assert "node1 fab0" in str(carrier.culprit)
