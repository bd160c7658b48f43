"""Ranks without an accelerator belong beside a fabric NIC: recorded and uneven machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.criteria.placement.binding import judge_cpus
from pytest_mnode.criteria.placement.rank_placement import beside_nic
from pytest_mnode.machine.fabric_nics import nic_of_rank, read_fabric_nics
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement
from pytest_mnode.rank.binding import shares
from tests.criteria.placement.made import GIB, MEMORY, placed, read
from tests.recorded import Recorded
from tests.trees import MELLANOX, NIC, Tree


def judged(machine: Machine, nics: str, cpus: str, memory: int) -> tuple[Measurement, Measurement]:
    """CPU and memory verdicts of a rank that may run on `cpus`, with all its memory on one node."""
    rank = beside_nic(machine, placed(cpus, None, memory_bytes={memory: GIB}), [nics], 0, 1)
    return judge_cpus(machine, rank), MEMORY(machine, rank)


@pytest.mark.parametrize(
    ("name", "nic", "cpus", "memory", "verdicts", "words"),
    [
        # eth0 is on node 1, eth1 on node 0
        ("numa2-e1000e-aligned", "eth0", "2-3", 1, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth0", "0-1", 0, "fail fail", "its NIC eth0 on NUMA node 1"),
        ("numa2-e1000e-aligned", "eth0", "2-3", 0, "pass fail", "numactl --membind=1"),
        ("numa2-e1000e-aligned", "eth0", "0-3", 1, "fail pass", "is not bound: it may run on all"),
        ("numa2-e1000e-aligned", "eth*", "0-1", 0, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth*", "2-3", 1, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth*", "1-2", 1, "fail pass", "which span NUMA nodes 0-1"),
        ("numa2-both-nics-on-node1", "eth*", "0-1", 0, "fail fail", "on NUMA node 1"),
        ("numa2-both-nics-on-node1", "eth*", "2", 1, "pass pass", ""),
        ("numa2-virtio-aligned-rxe-up", "rxe1", "2-3", 1, "pass pass", ""),
        ("numa2-virtio-aligned-rxe-up", "rxe1", "0-1", 1, "fail pass", "its NIC rxe1 on NUMA"),
        ("numa2-e1000e-siw", "siw0", "0-1", 0, "pass pass", ""),
        ("numa2-nics-no-affinity", "eth0", "0-1", 0, "inconclusive inconclusive", "NIC eth0 (numa"),
        ("numa1-plain", "eth0", "0-3", 0, "inconclusive inconclusive", "eth0 (numa_node is −1"),
        ("numa2-e1000e-aligned", "ib0", "0-1", 0, "inconclusive inconclusive", "shows no NIC of"),
    ],
)
def test_recorded_machines(  # noqa: PLR0917  one table
    recorded: Recorded, name: str, nic: str, cpus: str, memory: int, verdicts: str, words: str
) -> None:
    found = judged(read(recorded(name)), nic, cpus, memory)
    assert " ".join(str(m.verdict) for m in found) == verdicts
    assert words in "; ".join(m.note for m in found)
    assert all((m.culprit or "rank 0 on node0").startswith("rank 0 on node0") for m in found)


@pytest.fixture
def uneven(tmp_path: Path) -> Machine:
    """NUMA nodes with 4 CPUs, 1 CPU, 3 CPUs and a NIC, and memory and another NIC without CPUs."""
    tree = Tree(tmp_path)
    lists = {0: "0-3", 1: "4", 2: "5-7", 3: ""}
    tree.numa(lists)
    for one, row in enumerate(("10 20 20 40", "20 10 20 40", "20 20 10 15", "40 40 15 10")):
        tree.write(f"sys/devices/system/node/node{one}/distance", row)
    tree.write("sys/devices/system/cpu/online", "0-7")
    for bus, node in ((10, 2), (20, 3)):
        path = f"pci0000:{bus}/0000:{bus}:01.0"
        tree.pci(path, NIC, MELLANOX, node, lists[node])
        tree.interface(f"eth{node}", path)
    return read(tmp_path)


@pytest.mark.parametrize(
    ("nic", "cpus", "memory", "verdicts"),
    [
        ("eth2", "5-7", 2, "pass pass"),
        ("eth2", "5-7", 3, "pass pass"),  # memory without CPUs, nearest to these
        ("eth2", "4", 1, "fail fail"),
        ("eth2", "4-7", 2, "fail pass"),
        ("eth3", "5-7", 2, "pass pass"),  # its node has no CPUs: the nearest one with CPUs counts
        ("eth3", "0-3", 0, "fail fail"),
    ],
)
def test_four_uneven_nodes(
    uneven: Machine, nic: str, cpus: str, memory: int, verdicts: str
) -> None:
    found = judged(uneven, nic, cpus, memory)
    assert " ".join(str(m.verdict) for m in found) == verdicts


def test_several_nics_are_distributed_over_the_ranks_of_a_node(recorded: Recorded) -> None:
    root = recorded("numa2-virtio-aligned-rxe-up")
    nics = read_fabric_nics(["rxe*"], root)
    dealt = [nic_of_rank(nics, rank, 4) for rank in range(4)]
    assert [nic and nic.name for nic in dealt] == ["rxe0", "rxe0", "rxe1", "rxe1"]
    homes = [nic.numa_node for nic in dealt if nic]
    bound = shares(homes, {0: [(0,), (1,)], 1: [(2,), (3,)]}, True, "NIC")
    assert [share.cpus for share in bound] == [(0,), (1,), (2,), (3,)]
    [unknown] = shares([None], {0: [(0,)]}, True, "NIC")
    assert unknown.why == "the NUMA node of its NIC is not known"
    assert nic_of_rank((), 0, 1) is None
