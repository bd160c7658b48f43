"""CPUs and NUMA nodes, compared with the output of hwloc and lscpu on the same machines."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mnode.machine.cpus import format_cpulist, parse_cpulist, read_cpus
from pytest_mnode.machine.numa import read_numa
from tests.recorded import NAMES, Recorded
from tests.trees import Tree, gpu_server


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("0", {0}),
        ("", set()),
        ("\n", set()),
        (" 0-1 , 4 ", {0, 1, 4}),
        ("3-1", None),
        ("0-", None),
        ("0,,1", None),
        ("-1", None),
        ("N/A", None),
        ("0-99999999", None),
        (None, None),
    ],
)
def test_a_cpu_list_is_read_or_refused_as_a_whole(
    text: str | None, numbers: set[int] | None
) -> None:
    assert parse_cpulist(text) == numbers


@settings(deadline=None, max_examples=60)
@given(st.frozensets(st.integers(0, 5000)))
def test_a_cpu_list_reads_back(numbers: frozenset[int]) -> None:
    assert parse_cpulist(format_cpulist(numbers)) == numbers


@settings(deadline=None, max_examples=60)
@given(st.text() | st.text(alphabet="0123456789-, "))
def test_any_text_is_a_cpu_list_or_none(text: str) -> None:
    parse_cpulist(text)


def test_a_written_cpu_list_is_as_short_as_possible() -> None:
    assert format_cpulist([8, 0, 1, 2, 3, 10, 11]) == "0-3,8,10-11"
    assert not format_cpulist([])


def _hwloc(root: Path) -> ElementTree.Element:
    return ElementTree.parse(root / "cmd/lstopo-io-all.xml").getroot()


def _mask(element: ElementTree.Element) -> frozenset[int]:
    bits = int("".join(part[2:] for part in element.attrib["cpuset"].split(",")), 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)


@pytest.mark.parametrize("name", NAMES)
def test_nodes_and_sockets_are_those_that_hwloc_found(recorded: Recorded, name: str) -> None:
    root = recorded(name)
    hwloc = _hwloc(root)
    numa, cpus = read_numa(root), read_cpus(root)
    expected = {
        int(e.attrib["os_index"]): (_mask(e), int(e.attrib["local_memory"]))
        for e in hwloc.iter("object")
        if e.get("type") == "NUMANode"
    }
    assert {n.number: (n.cpus, n.memory_bytes) for n in numa.nodes} == expected
    packages = [e for e in hwloc.iter("object") if e.get("type") == "Package"]
    assert set(cpus.packages.values()) == {_mask(e) for e in packages}
    cores = [e for e in hwloc.iter("object") if e.get("type") == "Core"]
    assert cpus.cores(cpus.online or ()) == {_mask(e) for e in cores}


@pytest.mark.parametrize("name", NAMES)
def test_cpus_are_those_that_lscpu_found(recorded: Recorded, name: str) -> None:
    root = recorded(name)
    printed = json.loads((root / "cmd/lscpu.json").read_text())["cpus"]
    cpus, numa = read_cpus(root), read_numa(root)
    assert cpus.online == frozenset(entry["cpu"] for entry in printed if entry["online"])
    for entry, cpu in zip(printed, cpus.cpus, strict=True):
        siblings = frozenset((entry["cpu"],))
        assert (cpu.number, cpu.package, cpu.siblings) == (entry["cpu"], entry["socket"], siblings)
        assert numa.nodes_of([cpu.number]) == {entry["node"]}
    assert cpus.isolated == frozenset()


def test_distances_and_memory_of_a_recorded_machine(recorded: Recorded) -> None:
    numa = read_numa(recorded("numa2-e1000e-aligned"))
    assert [dict(node.distances) for node in numa.nodes] == [{0: 10, 1: 21}, {0: 21, 1: 10}]
    assert numa.nodes[0].memory_bytes == 514384 * 1024
    assert numa.distance(0, 1) == 21
    assert (numa.distance(0, None), numa.distance(7, 0), numa.distance(0, 7)) == (None, None, None)
    assert numa.nodes_of({1, 2, 99}) == {0, 1}


def test_the_largest_cache_of_a_cpu(recorded: Recorded) -> None:
    assert read_cpus(recorded("numa2-e1000e-aligned")).cpus[1].cache_bytes == 16 << 20


def test_a_row_of_distances_lists_online_nodes(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.numa({0: "0-3", 8: "4-7"}, far=40)  # as POWER numbers them
    numa = read_numa(tmp_path)
    assert (numa.distance(0, 8), numa.distance(8, 8)) == (40, 10)
    tree.write("sys/devices/system/node/node0/distance", "10")
    assert read_numa(tmp_path).distance(0, 8) is None


def test_threads_of_a_core_and_memory_without_cpus(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    cpus = read_cpus(tmp_path)
    assert cpus.cores({0, 32, 5}) == {frozenset({0, 32}), frozenset({5, 37})}
    tree.write("sys/devices/system/node/node2/cpulist", "")
    numa = read_numa(tmp_path)
    assert [node.number for node in numa.with_cpus] == [0, 1]
    assert numa.nodes[2].cpus == frozenset()


def test_missing_files_give_none_or_empty_values(tmp_path: Path) -> None:
    cpus = read_cpus(tmp_path)
    assert (cpus.online, cpus.isolated, cpus.cpus) == (None, None, ())
    assert read_numa(tmp_path).nodes == ()
    (tmp_path / "sys/devices/system/cpu/cpu0/topology").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/cpu0/topology/physical_package_id").write_text("-1\n")
    assert read_cpus(tmp_path).cpus[0].package is None


def test_this_machine_has_a_cpu() -> None:
    assert read_cpus().online
