"""Readers accept any content of attributes; content that is no value gives None."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.machine.cgroup import read_cpu_limits, read_memory_rooms, read_oom_kills
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.process import read_process
from tests.trees import Tree, gpu_server

PARTS = ("interfaces", "rdma", "pci", "cpus", "numa")
_NONSENSE = (b"", b"\n", b"-1\n", b"N/A\n", b"\xff\xfe\x00", b"9" * 5000, b"0x", b"4: ", b"<x>\n")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree = gpu_server(tmp_path_factory.mktemp("nonsense"))
    for path in ("proc/7/status", "proc/7/numa_maps", "proc/7/task/7/status", "proc/7/task/7/stat"):
        tree.write(path, "")
    tree.write("proc/7/cgroup", "")
    return tree


@pytest.mark.parametrize("content", _NONSENSE, ids=repr)
def test_invalid_content_in_every_attribute_gives_unknown_values(
    tree: Tree, content: bytes
) -> None:
    for path in tree.root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(content)
    machine = Machine.read(tree.root, PARTS)
    read_process(7, tree.root)
    read_cpu_limits(7, tree.root)
    read_oom_kills(tree.root)
    read_memory_rooms(tree.root)
    numbers = [value for value in _values(machine) if isinstance(value, int)]
    known = {number for number in numbers if not isinstance(number, bool)}
    assert not any(number < 0 for number in known), "−1 is unknown"
    assert all(port.active is None for d in machine.rdma or () for port in d.ports)
    assert all(function.numa_node is None for function in machine.pci.functions)
    assert machine.cpus.online in (None, frozenset())


def test_folders_in_place_of_files_give_unknown_values(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    for path in [p for p in tree.root.rglob("*") if p.is_file() and not p.is_symlink()]:
        path.unlink()
        path.mkdir()
    machine = Machine.read(tree.root, PARTS)
    assert machine.cpus.online is None
    assert all(port.active is None for d in machine.rdma or () for port in d.ports)


def test_circular_and_broken_links_give_unknown_values(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.interface("eth0")
    tree.link("sys/class/net/gone", "sys/devices/nowhere")
    tree.link("sys/class/net/eth0/device", "sys/class/net/eth0/device")
    machine = Machine.read(tmp_path, PARTS)
    assert machine.interfaces is not None
    (eth0,) = machine.interfaces
    assert (eth0.numa_node, eth0.pci_address) == (None, None)


def _values(value: Any) -> Iterator[object]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _values(getattr(value, field.name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _values(inner)
    elif isinstance(value, (tuple, frozenset)):
        for inner in value:
            yield from _values(inner)
    else:
        yield value
