"""Unrecorded kinds of machines: several NUMA nodes per socket, memory without CPUs, gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.checks.placement.nic import sending_nics
from pytest_mnode.criteria.placement.near import Home, candidate_nics
from pytest_mnode.machine.cpus import Cpus, parse_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.numa import Numa
from pytest_mnode.machine.process import Thread
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.copies import copy_nodes, nothing_far
from pytest_mnode.spec.devices import Near, NearDistance
from tests.checks.placement.made import (
    FAIL,
    GIB,
    INCONCLUSIVE,
    PASS,
    judge_cores,
    judge_cpus,
    judge_memory,
    judge_nics,
    nearest_nic,
    placed,
    read,
    thread,
    verdicts,
)
from tests.criteria.preflight.made import promising
from tests.trees import GPU, IB_NIC, MELLANOX, NIC, NVIDIA, SWITCH_PORT, Tree


def nodes(tree: Tree, cpus: Mapping[int, str], rows: Mapping[int, str], **memory_kb: int) -> None:
    """NUMA nodes with these CPU lists and distances. memory_kb: by "node1"; 1 GiB if absent."""
    for number, cpulist in cpus.items():
        folder = f"sys/devices/system/node/node{number}"
        tree.write(f"{folder}/cpulist", cpulist)
        tree.write(f"{folder}/distance", rows[number])
        kilobytes = memory_kb.get(f"node{number}", 1 << 20)
        tree.write(f"{folder}/meminfo", f"Node {number} MemTotal:  {kilobytes} kB")
    tree.write("sys/devices/system/node/online", ",".join(map(str, cpus)))


@pytest.fixture
def nps4(tmp_path: Path) -> Machine:
    """Two sockets of 4 NUMA nodes with 4 cores; a GPU on node 3; NICs on nodes 1 and 5."""
    tree = Tree(tmp_path)
    tree.cpus([[(c,) for c in range(s * 16, s * 16 + 16)] for s in (0, 1)])
    lists = {n: f"{4 * n}-{4 * n + 3}" for n in range(8)}
    rows = {
        n: " ".join("10" if n == m else "12" if n // 4 == m // 4 else "32" for m in lists)
        for n in lists
    }
    nodes(tree, lists, rows)
    tree.pci("pci0000:c0/0000:c0:01.0", SWITCH_PORT, "0x1022", 3, lists[3])
    tree.pci("pci0000:c0/0000:c0:01.0/0000:c1:00.0", GPU, NVIDIA, 3, lists[3])
    for bus, node in ((0x40, 1), (0xA0, 5)):
        path = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        tree.pci(path, IB_NIC, MELLANOX, node, lists[node])
        tree.rdma(f"mlx5_{node}", path)
    return read(tree.root)


@pytest.mark.parametrize("within", ["node", "socket", NearDistance(distance=12)])
def test_nobody_is_blamed_for_cpus_that_could_not_be_read(nps4: Machine, within: Near) -> None:
    """They are not those of the next NUMA node."""
    nodes = (replace(n, cpus=None) if n.number == 3 else n for n in nps4.numa.nodes)
    machine = replace(nps4, numa=Numa(nodes=tuple(nodes)))
    rank = placed("12-15", "0000:c1:00.0")
    assert judge_cpus(machine, replace(rank, other=Home("GPU", 3)), within).verdict is INCONCLUSIVE


def test_several_numa_nodes_per_socket(nps4: Machine) -> None:
    """A NIC on another NUMA node of the GPU's socket is nearest; one on the other socket is not."""
    gpu = "0000:c1:00.0"
    near, far = (placed("12-15", gpu, nics=(nic,)) for nic in ("mlx5_1", "mlx5_5"))
    assert nearest_nic(nps4, near).verdict is PASS
    wrong = nearest_nic(nps4, far)
    assert wrong.verdict is FAIL
    assert "uses mlx5_5 (SYS, NUMA distance 32); expected mlx5_1 (SYS, NUMA distance 12)" in (
        wrong.note
    )


@pytest.mark.parametrize(
    ("within", "cpus", "out"),
    [
        ("socket", "12-15", 0),
        ("socket", "4-7", 0),
        ("socket", "0-15", 0),
        ("socket", "15-16", 1),
        ("socket", "0-31", 16),
        ("node", "12-15", 0),
        ("node", "4-7", 4),
        (NearDistance(distance=12), "0-15", 0),
        (NearDistance(distance=12), "16-19", 4),
        (NearDistance(distance=11), "4-7", 4),
        (NearDistance(distance=32), "0-31", 0),
    ],
)
def test_how_far_is_near_is_promised(nps4: Machine, within: Near, cpus: str, out: int) -> None:
    assert judge_cpus(nps4, placed(cpus, "0000:c1:00.0"), within).value == out


def test_memory_of_the_socket_is_near(nps4: Machine) -> None:
    facts = placed("12-15", "0000:c1:00.0", memory_bytes={1: GIB, 3: GIB, 5: GIB // 20})
    assert judge_memory(nps4, facts).verdict is PASS
    assert judge_memory(nps4, facts, within="node").verdict is FAIL
    assert judge_memory(nps4, replace(facts, memory_bytes={3: GIB, 5: GIB})).verdict is FAIL


def test_all_of_one_socket_is_near_and_nothing_is_far(nps4: Machine) -> None:
    one = replace(nps4, numa=Numa(nodes=nps4.numa.nodes[:4]))
    one = replace(one, cpus=replace(nps4.cpus, online=frozenset(range(16))))
    unbound = judge_cpus(one, placed("0-15", "0000:c1:00.0"))
    assert unbound.verdict is PASS
    assert "nothing to place" in unbound.note
    assert "counts as near" in nothing_far(one.numa, None, one.cpus)
    assert not nothing_far(one.numa, None, one.cpus, "node")
    assert not nothing_far(nps4.numa, None, nps4.cpus)


def test_a_nic_on_another_node_of_the_socket_is_near(nps4: Machine) -> None:
    gpu = "0000:c1:00.0"

    def alone(nic: str, machine: Machine = nps4, *others: str | None) -> Verdict:
        facts = placed("12-15", gpu, nics=(f"{nic}:1",))
        assert judge_nics(machine, facts, (f"{nic}:1",)).verdict is PASS
        found = judge_nics(machine, facts, (f"{nic}:1",), [gpu, *others]).verdict
        assert found is not None
        return found

    assert alone("mlx5_1") is PASS
    assert alone("mlx5_5") is FAIL
    assert alone("mlx5_5", nps4, None) is PASS, "not known of all ranks, so no rank is blamed"
    unread = replace(nps4, cpus=replace(nps4.cpus, cpus=()))
    assert alone("mlx5_5", unread) is FAIL


@pytest.fixture(params=[0, 4], ids=["on the CPU's node", "on its memory's node"])
def superchip(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    """Two CPUs on nodes 0 and 1, each with a GPU whose memory is node 4 or 12, without CPUs."""
    tree = Tree(tmp_path)
    tree.cpus([[(c,) for c in range(s * 8, s * 8 + 8)] for s in (0, 1)])
    lists = {0: "0-7", 1: "8-15", 4: "", 12: ""}
    rows = {0: "10 40 80 120", 1: "40 10 120 80", 4: "80 120 10 160", 12: "120 80 160 10"}
    nodes(tree, lists, rows)
    own = request.param
    tree.pci("pci0009:00/0009:00:00.0", SWITCH_PORT, NVIDIA, 0, "0-7")
    tree.pci("pci0009:00/0009:00:00.0/0009:01:00.0", GPU, NVIDIA, own, "" if own else "0-7")
    tree.pci("pci0019:00/0019:00:00.0/0019:01:00.0", GPU, NVIDIA, 12 if own else 1, "")
    for host, node in (("0000", 0), ("0010", 1)):
        path = f"pci{host}:00/{host}:00:00.0/{host}:01:00.0"
        tree.pci(path, IB_NIC, MELLANOX, node, lists[node])
        tree.rdma(f"mlx5_{node}", path)
    return read(tree.root)


@pytest.mark.parametrize(
    ("memory", "verdict"),
    [
        ({0: GIB}, PASS),
        ({0: GIB // 10, 4: GIB}, PASS),
        ({1: GIB}, FAIL),
        ({12: GIB}, FAIL),
        ({0: GIB, 1: GIB}, FAIL),
        ({}, INCONCLUSIVE),
        (None, INCONCLUSIVE),
    ],
)
def test_device_memory_that_is_a_numa_node(
    superchip: Machine, memory: Mapping[int, int] | None, verdict: Verdict
) -> None:
    facts = placed("0-7", "0009:01:00.0", memory_bytes=memory)
    assert judge_memory(superchip, facts).verdict is verdict


def test_cpus_and_nics_beside_a_device_with_its_own_numa_node(superchip: Machine) -> None:
    facts = placed("0-7", "0009:01:00.0", nics=("mlx5_0",), memory_bytes={0: GIB})
    assert verdicts(superchip, facts) == (PASS, PASS, PASS)
    wrong = placed("8-15", "0009:01:00.0", nics=("mlx5_1",), memory_bytes={1: GIB})
    assert verdicts(superchip, wrong) == (FAIL, FAIL, FAIL)
    found = copy_nodes(superchip.numa, None, 0)
    assert not isinstance(found, str)
    assert (found.near, found.far) == (0, 1)  # not the GPU's memory


def test_a_memory_node_without_cpus_is_not_another_socket(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    nodes(tree, {0: "0-7", 1: ""}, {0: "10 20", 1: "20 10"})
    machine = read(tree.root).numa
    few = "this machine has memory on one NUMA node, so none is far"
    assert nothing_far(machine, None, Cpus()) == few


def test_a_guest_with_one_numa_node_and_devices_without_one(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.cpus([[(c,) for c in range(8)]])
    nodes(tree, {0: "0-7"}, {0: "10"})
    tree.pci("pci0000:00/0000:00:05.0", GPU, NVIDIA, -1, "0-7")
    tree.pci("pci0000:00/0000:00:06.0", NIC, "0x1af4", -1, "0-7")
    tree.interface("eth0", "pci0000:00/0000:00:06.0")
    machine = read(tree.root)
    facts = placed("0-7", "0000:00:05.0", nics=("eth0",), memory_bytes={0: GIB})
    # On one host bridge no NIC is nearer.
    assert verdicts(machine, facts) == (INCONCLUSIVE, INCONCLUSIVE, PASS)


def test_threads_that_cannot_be_read_may_share_a_core(nps4: Machine) -> None:
    first = placed("0-3", "0000:c1:00.0")

    def verdicts_of(threads: tuple[Thread, ...]) -> list[Verdict | None]:
        second = replace(first, cpus=parse_cpulist("4-7"), threads=threads)
        return [one.verdict for one in judge_cores(nps4, first, second)]

    known = thread("python", parse_cpulist("4-7"))
    assert verdicts_of((known,)) == [PASS, PASS]
    assert verdicts_of(()) == [INCONCLUSIVE] * 2, "a process has at least one thread"
    assert verdicts_of((known, replace(known, cpus_allowed=None))) == [INCONCLUSIVE] * 2
    assert verdicts_of((known, replace(known, cpus_allowed=parse_cpulist("0")))) == [FAIL] * 2


def two_sockets(root: Path, *nics: tuple[str, int]) -> Tree:
    """Two CPUs a socket, a GPU on the first, NICs on the NUMA node of each, and a bond of two."""
    tree = Tree(root)
    tree.cpus([[(0,), (1,)], [(2,), (3,)]])
    tree.numa({0: "0-1", 1: "2-3"})
    tree.pci("pci0000:10/0000:10:01.0/0000:11:00.0", GPU, NVIDIA, 0, "0-1")
    for i, (name, node) in enumerate(nics, 2):
        path = f"pci0000:{i}0/0000:{i}0:01.0/0000:{i}1:00.0"
        tree.pci(path, NIC, MELLANOX, node, "")
        tree.interface(name, path)
    tree.interface("bond0")
    tree.write("sys/devices/virtual/net/bond0/bonding/slaves", "ens0 ens1")
    return tree


@pytest.mark.parametrize(
    ("named", "used", "expected"),
    [
        ("bond0", ("bond0", "ens0", "ens1"), ("bond0",)),
        ("bond0.100", ("bond0", "bond0.100", "ens0", "ens1"), ("bond0.100",)),
        ("ens*", ("bond0", "ens0", "ens1"), ("ens0", "ens1")),
        ('"*"', ("bond0", "ens0", "ens1"), ("bond0",)),
        ("bond0", ("bond0", "ens0", "ens1", "eno1"), ("bond0", "eno1")),
        ("bond0", ("eno1",), ("eno1",)),
        ("bond0", ("ens0",), ("ens0",)),
        ("mlx5_bond_0", ("mlx5_bond_0:1",), ("mlx5_bond_0:1",)),
    ],
)
def test_a_bond_over_two_sockets_is_one_nic(
    tmp_path: Path, named: str, used: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """The bond's links count its bytes too; one link is nearer or farther than the bond."""
    tree = two_sockets(tmp_path, ("ens0", 0), ("ens1", 1), ("eno1", 1))
    tree.interface("bond0.100")
    machine = read(tree.root)
    spec = promising("{interfaces: {}}", "ethernet", named)
    found = sending_nics(machine, used, spec)
    assert found == expected
    facts = placed("0-1", "0000:11:00.0", nics=found)
    if found in (("bond0",), ("bond0.100",)) and named != '"*"':
        assert judge_nics(machine, facts, candidate_nics(machine, found, spec)).verdict is PASS


@pytest.mark.parametrize(
    ("nodes", "verdict"), [((1, 1), FAIL), ((0, 1), PASS), ((1, 0), PASS), ((0, 0), PASS)]
)
def test_the_only_nic_is_a_bond_on_the_socket_without_accelerators(
    tmp_path: Path, nodes: tuple[int, int], verdict: Verdict
) -> None:
    tree = two_sockets(tmp_path, ("ens0", nodes[0]), ("ens1", nodes[1]))
    facts = placed("0-1", "0000:11:00.0", nics=("bond0",))
    found = judge_nics(read(tree.root), facts, ("bond0",), ["0000:11:00.0"])
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("listed", "cpus", "verdict"),
    [
        ("0-7", "0-3", PASS),
        ("0-7", "0-7", FAIL),
        ("0-7", "4-7", FAIL),
        ("4-7", "4-7", INCONCLUSIVE),
    ],
)
def test_local_cpus_that_contradict_the_numa_node(
    tmp_path: Path, listed: str, cpus: str, verdict: Verdict
) -> None:
    """An unbound rank fails even if its device on node 0 lists all CPUs as local."""
    tree = Tree(tmp_path)
    tree.cpus([[(c,) for c in range(4)], [(c,) for c in range(4, 8)]])
    tree.numa({0: "0-3", 1: "4-7"})
    tree.pci("pci0000:10/0000:10:01.0", GPU, NVIDIA, 0, listed)
    facts = placed(cpus, "0000:10:01.0")
    assert judge_cpus(read(tree.root), facts).verdict is verdict
