"""The sockets that nodes of the rack show: distribution of CPUs, and what a node sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.rack import Layout, Rack
from pytest_mnode.launchers.rack.plan import Link, Plan
from pytest_mnode.launchers.rack.sockets import board, why_not
from pytest_mnode.launchers.rack.sysfs_tree import accelerator_addresses, tree
from pytest_mnode.machine.numa import NumaCores, numa_cores, read_numa
from pytest_mnode.machine.sysfs import SysfsView
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from tests.launchers.on_nodes import output_on

GIB = 1 << 30


def machine(*cpus: int, threads: int = 1) -> list[NumaCores]:
    """NUMA nodes with these numbers of CPUs; CPU numbers of one core's threads are consecutive."""
    first, nodes = 0, []
    for number, count in enumerate(cpus):
        cores = [tuple(range(c, c + threads)) for c in range(first, first + count, threads)]
        nodes.append(NumaCores(number, 4 * GIB, tuple(cores)))
        first += count
    return nodes


@pytest.mark.parametrize(
    ("cpus", "nodes", "node", "expected"),
    [
        ((2,), 4, 3, [(0,), (1,)]),
        ((4,), 4, 0, [(0, 1), (2, 3)]),
        ((3,), 1, 0, [(0, 1), (2,)]),
        ((64,), 1, 0, [tuple(range(32)), tuple(range(32, 64))]),
        ((64,), 4, 1, [tuple(range(8, 16)), tuple(range(40, 48))]),  # separate cores
        ((64,), 16, 15, [(30, 31), (62, 63)]),
        ((16,), 16, 5, [tuple(range(8)), tuple(range(8, 16))]),  # too few: all show all
        ((8, 8), 2, 1, [(4, 5, 6, 7), (12, 13, 14, 15)]),  # the machine's own sockets
    ],
)
def test_cpus_are_distributed_over_nodes(
    cpus: tuple[int, ...], nodes: int, node: int, expected: list[tuple[int, ...]]
) -> None:
    shown = board(machine(*cpus), Layout(), node, nodes)
    assert [socket.cpus for socket in shown.sockets] == expected


@pytest.mark.parametrize(("cpus", "expected"), [(6, [(0, 1, 2, 3), (4, 5)]), (2, [(0,), (1,)])])
def test_threads_of_a_core_stay_together_if_there_are_enough_cores(
    cpus: int, expected: list[tuple[int, ...]]
) -> None:
    shown = board(machine(cpus, threads=2), Layout(), 0, 1)
    assert [socket.cpus for socket in shown.sockets] == expected


def test_memory_is_shown_on_its_numa_node() -> None:
    one = board(machine(4), Layout(), 0, 1)
    assert [(s.number, bool(s.size_bytes)) for s in one.sockets] == [(0, True), (1, False)]
    two = board(machine(4, 4), Layout(), 0, 1)
    assert [(s.number, bool(s.size_bytes)) for s in two.sockets] == [(0, True), (1, True)]
    # Only one of the machine's NUMA nodes has usable CPUs: the other socket has none of its memory.
    lone = [NumaCores(0, 4 * GIB, ()), NumaCores(1, 4 * GIB, ((4,), (5,)))]
    first, second = board(lone, Layout(), 0, 1).sockets
    assert (first.cpus, bool(first.size_bytes)) == ((4,), False)
    assert (second.cpus, bool(second.size_bytes)) == ((5,), True)


def test_nodes_take_turns() -> None:
    boards = [board(machine(4), Layout(), node, 3) for node in range(3)]
    assert [b.accelerators for b in boards] == [(0, 1), (1, 0), (0, 1)]
    assert [(b.fabric, b.management) for b in boards] == [(0, 1), (1, 0), (0, 1)]
    # A place keeps its number on any node: local rank 0 is beside the fabric's NIC.
    assert [list(accelerator_addresses(b)) for b in boards[:2]] == [
        ["0000:01:00.0", "0000:21:00.0"],
        ["0000:21:00.0", "0000:01:00.0"],
    ]


def test_one_cpu_cannot_show_two_sockets() -> None:
    assert why_not(machine(2), Layout()) is None
    why = "2 sockets need as many CPUs, but this process may use 1"
    assert why_not(machine(1), Layout()) == why
    plan = Plan(2, Link("fab0", 80), Link("mgmt0", 8), 1 << 20, Layout(), tuple(machine(1)), "/x")
    assert plan.board(0) is None
    assert {node.shown for node in plan.members()} == {SysfsView(missing=why)}


def test_a_layout_with_a_place_outside_all_sockets_is_refused() -> None:
    with pytest.raises(UsageError, match="rack: fabric on socket 2: there are 2"):
        Layout(fabric=2)
    with pytest.raises(UsageError, match="rack: 9 sockets: needs 1 to 8"):
        Layout(sockets=9)
    with pytest.raises(UsageError, match="a layout of sockets needs a directory"):
        Rack(1, layout=Layout())


def test_readers_find_the_planned_hardware_in_the_tree(tmp_path: Path) -> None:
    layout = Layout(sockets=3, accelerators=(0, 0, 1, 2))
    write(tmp_path, board(machine(8), layout, 0, 1))
    numa = read_numa(tmp_path)
    planned = [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [(n.number, sorted(n.cpus or ())) for n in numa.nodes] == list(enumerate(planned))
    assert [n.memory_bytes for n in numa.nodes] == [4 * GIB, 0, 0]
    assert (numa.distance(0, 0), numa.distance(0, 2)) == (10, 21)
    devices = tmp_path / "sys/bus/pci/devices"
    homes = {path.name: (path / "numa_node").read_text().strip() for path in devices.iterdir()}
    addresses = list(accelerator_addresses(board(machine(8), layout, 0, 1)))
    assert [homes[address] for address in addresses] == ["0", "0", "1", "2"]
    # The fabric's NIC is behind the port of the first accelerator, and the other link is not.
    assert (tmp_path / "sys/class/net/fab0/device").resolve().parent == (
        devices / addresses[0]
    ).resolve().parent
    assert (tmp_path / "sys/class/net/mgmt0/device/numa_node").read_text() == "1\n"
    # Ranks that bind themselves get the planned CPUs.
    found = numa_cores(tmp_path, usable=range(8))
    assert [[cpu for core in m.cores for cpu in core] for m in found] == planned


def write(root: Path, shown: object) -> None:
    made = tree(shown, "fab0", "mgmt0")  # type: ignore[arg-type]
    for name in (*made.files, *made.links):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in made.files.items():
        (root / name).write_text(f"{text}\n")
    for name, target in made.links.items():
        (root / name).symlink_to(target)


def test_a_machine_without_numa_information_is_one_numa_node(tmp_path: Path) -> None:
    assert numa_cores(tmp_path, usable=[3, 1]) == [NumaCores(0, 0, ((1,), (3,)))]


def test_only_the_node_itself_shows_its_sockets(mode: str, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU")
    tmp_path.chmod(0o755)
    place = tmp_path / "shown"
    with Rack(2, mode=mode, layout=Layout(), shown_at=place) as rack:
        lists = [output(rack, i, "sys/devices/system/node/node0/cpulist") for i in (0, 1)]
        assert lists[0] == lists[1]
        sides = [output(rack, i, "sys/class/net/fab0/device/numa_node") for i in (0, 1)]
        assert sides == ["0\n", "1\n"]
        # The other files of an interface are the node's real ones.
        assert output(rack, 0, "sys/class/net/fab0/operstate") == "up\n"
        assert rack.nodes[0].shown.sysfs_root == str(place)
        assert list(place.iterdir()) == []
        rack.ask(PowerOff("node1"))
        rack.ask(PowerOn("node1"))
        assert output(rack, 1, "sys/class/net/fab0/device/numa_node") == "1\n"
    assert list(place.iterdir()) == []
    assert str(place) not in Path("/proc/self/mountinfo").read_text()


def output(rack: Rack, index: int, file: str) -> str:
    node = rack.nodes[index]
    return output_on(rack, node, ["cat", f"{node.shown.sysfs_root}/{file}"])
