"""The NUMA map: hardware of each node with the ranks on it; equal nodes are shown once."""

from __future__ import annotations

from dataclasses import replace

from pytest_mnode.charts import Item
from pytest_mnode.criteria.placement.near import USED, machine_to_rows
from pytest_mnode.criteria.placement.numa_map import hardware_rows, numa_map
from pytest_mnode.evidence.row import RankRows, row
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.numa import Numa, NumaNode
from pytest_mnode.machine.pci import PciFunction, PciTree
from pytest_mnode.measurement import Measurement, at_most
from tests.checks.placement.made import placed

GPU = "0000:17:00.0"


def machine() -> Machine:
    return Machine(
        numa=Numa(
            nodes=(
                NumaNode(number=0, cpus=frozenset({0, 1}), memory_bytes=1 << 33),
                NumaNode(number=1, cpus=frozenset({2, 3})),
            )
        ),
        pci=PciTree(functions=(PciFunction(address=GPU, kind="0302", vendor="10de", numa_node=1),)),
        interfaces=(
            Interface(name="fab0", kind=Kind.PHYSICAL, numa_node=0),
            Interface(name="x", kind=Kind.PHYSICAL),
        ),
    )


def answered(out_of_place: float) -> Measurement:
    return Measurement("cpus", out_of_place, "", at_most(0))


def test_ranks_are_shown_on_the_hardware_of_their_nodes() -> None:
    def rank(number: int, cpus: set[int]) -> RankRows:
        facts = replace(placed(format_cpulist(cpus), GPU), machine=machine())
        read = (*facts.home.to_rows(), *facts.cpu_rows, row(USED, 1, device="fab0"))
        node = (*machine_to_rows(machine()), *hardware_rows(machine(), ("fab0", "x")))
        return RankRows(number, f"node{number}", (*read, *node))

    ranks = [rank(0, {2, 3}), rank(1, {2, 3}), rank(2, {1, 2}), rank(3, set())]
    found = numa_map(ranks, [*map(answered, (0, 0, 1, 0))])
    alike, both, nowhere = found.layouts
    assert (alike.names, both.names, nowhere.names) == (("node0", "node1"), ("node2",), ("node3",))
    zero, one, unknown = alike.places
    assert zero.items == (Item("CPUs", "0-1"), Item("memory", "8 GiB"), Item("NIC", "fab0"))
    assert one.items[:2] == (Item("CPUs", "2-3"), Item("accelerator", GPU))
    assert one.items[2] == Item(
        "rank", "local rank 0", f"CPUs 2-3, for {GPU}, sends over fab0", True
    )
    assert unknown.items == (Item("NIC", "x"),)
    assert [[i.good for i in place.items if i.kind == "rank"] for place in both.places] == [
        [False],
        [False],
        [],
    ]
    assert nowhere.places[-1].items[0].name == "local rank 0"
