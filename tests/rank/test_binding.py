"""How a rank binds itself: to which CPUs and memory, and when it does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.agent.elastic import numa_options
from pytest_mnode.launchers.rack import Layout
from pytest_mnode.launchers.rack.sockets import board, why_not
from pytest_mnode.launchers.rack.sysfs_tree import accelerator_addresses
from pytest_mnode.machine.numa import numa_cores
from pytest_mnode.machine.sysfs import SysfsView
from pytest_mnode.protocol.messages import BindingOrder, RankStart
from pytest_mnode.rank import accelerators, binding, mempolicy
from pytest_mnode.rank.binding import Binding, Share, shares
from tests.launchers.test_sockets import write
from tests.trees import Tree


@pytest.fixture
def shown(tmp_path: Path) -> SysfsView:
    """A node that shows two sockets over the CPUs of this machine, with two accelerators."""
    machine = numa_cores()
    if why_not(machine, Layout()):
        pytest.skip("one CPU")
    node = board(machine, Layout(), 0, 1)
    write(tmp_path, node)
    return SysfsView(str(tmp_path), tuple(accelerator_addresses(node)))


def in_thread(call: Callable[[], Any]) -> Any:
    """Affinity and memory policy belong to a thread: a separate thread keeps pytest's unchanged."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def bound(
    order: BindingOrder, local_rank: int = 0, local_size: int = 2
) -> tuple[Binding, set[int]]:
    def bind() -> tuple[Binding, set[int]]:
        done = binding.bind(order, local_rank, local_size, by_torch=False)
        return done, set(os.sched_getaffinity(0))

    done: tuple[Binding, set[int]] = in_thread(bind)
    return done


def cpus_of(shown: SysfsView, number: int) -> set[int]:
    nodes = numa_cores(Path(shown.sysfs_root))
    return {cpu for core in nodes[number].cores for cpu in core}


def test_each_rank_beside_its_own_accelerator(shown: SysfsView) -> None:
    for rank in (0, 1):
        done, cpus = bound(BindingOrder("auto", shown), rank)
        assert (done.by, done.numa_node) == ("pytest-mnode", rank)
        assert cpus == set(done.cpus) == cpus_of(shown, rank)
        assert f"of NUMA node {rank}, bound by pytest-mnode" in done.text


def test_ranks_of_real_nodes_are_bound_unless_switched_off(
    shown: SysfsView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a GPU whose NUMA node is its own memory, without CPUs (GH200)."""
    real = SysfsView(shown.sysfs_root)
    tree = Tree(Path(shown.sysfs_root))
    for number, row in ((0, "10 40 80"), (1, "40 10 120"), (2, "80 120 10")):
        tree.write(f"sys/devices/system/node/node{number}/distance", row)
    tree.write("sys/devices/system/node/node2/cpulist", "")
    tree.write("sys/devices/system/node/online", "0-2")
    for home in (0, 1, 2):
        monkeypatch.setattr(binding, "homes_of", lambda _, size, home=home: [home] * size)
        done, cpus = bound(BindingOrder("auto", real), 0, 1)
        assert (done.by, done.numa_node) == ("pytest-mnode", home % 2)
        assert cpus == cpus_of(shown, home % 2)
        assert bound(BindingOrder("none", real), 0, 1)[0].by == ""


def test_a_launcher_may_bind_ranks_elsewhere(shown: SysfsView) -> None:
    given = tuple(tuple(sorted(cpus_of(shown, number))) for number in (1, 0))
    for rank in (0, 1, 2):
        done, cpus = bound(BindingOrder("auto", shown, RankStart(given)), rank, 3)
        assert cpus == set(given[rank % 2])
        assert done.numa_node == rank % 2, "the CPUs are still those beside its accelerator"


def test_a_launcher_may_leave_ranks_unbound(shown: SysfsView) -> None:
    done, cpus = bound(BindingOrder("auto", shown, RankStart(((),))))
    assert cpus == set(os.sched_getaffinity(0))
    assert "not bound: the launcher binds no ranks on this node" in done.text


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (BindingOrder("none", SysfsView("/nowhere", ("0000:01:00.0",))), "--mnode-numa-bind=none"),
        (BindingOrder("auto"), "the NUMA node of its accelerator is not known"),
        (BindingOrder("auto", SysfsView(missing="one CPU")), "one CPU"),
        (BindingOrder("node"), "the NUMA node of its accelerator is not known"),
        (
            BindingOrder("exclusive", SysfsView("/nowhere", ("0000:01:00.0",))),
            "the NUMA node of its accelerator is not known",
        ),
    ],
)
def test_no_rank_binds_without_a_request_or_a_known_target(
    order: BindingOrder, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerators, "_cuda_address", lambda _: None)
    done, cpus = bound(order)
    assert (done.by, done.why) == ("", why)
    assert cpus == set(os.sched_getaffinity(0))


def test_memory_is_bound_to_an_existing_numa_node() -> None:
    numbers = [memory.number for memory in numa_cores() if memory.size_bytes]

    def policy() -> str:
        mempolicy.prefer(numbers[0])
        # A page first touched under the new policy shows the policy.
        fresh = bytearray(1 << 22)
        fresh[:: 1 << 12] = b"x" * 1024
        return Path("/proc/thread-self/numa_maps").read_text()

    if not numbers or not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel without NUMA")
    assert f"prefer:{numbers[0]}" in in_thread(policy)
    with pytest.raises(OSError, match="set_mempolicy"):
        in_thread(lambda: mempolicy.prefer(1023))


def nvml(index: int, name: str = "NVIDIA H100") -> Any:
    return SimpleNamespace(
        uuid=f"GPU-{index}f3a-77", pci_address=f"0000:{index + 1:02x}:00.0", name=name
    )


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]),
        ("2,0", ["0000:03:00.0", "0000:01:00.0"]),
        ("GPU-1f3a,GPU-0", ["0000:02:00.0", "0000:01:00.0"]),
        ("1,-1,0", ["0000:02:00.0"]),
        ("GPU-,0", []),  # an ambiguous prefix
        ("MIG-4c7e,0", []),
        ("", []),
        ("7", []),
    ],
)
def test_devices_are_numbered_like_in_cuda(
    visible: str | None, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert accelerators.visible_addresses([nvml(0), nvml(1), nvml(2)], visible) == found
    mixed = [nvml(0), nvml(1, "NVIDIA T4")]
    assert accelerators.visible_addresses(mixed, None) == [None, None]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert accelerators.visible_addresses(mixed, "1") == ["0000:02:00.0"]


def test_torch_binds_if_it_can_and_no_rank_is_bound_twice(
    shown: SysfsView, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from torch.numa.binding import AffinityMode, NumaOptions

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/numactl")
    assert numa_options(BindingOrder("node"), 8, None) == NumaOptions(AffinityMode.NODE)
    assert numa_options(BindingOrder("exclusive"), 8, None) == NumaOptions(AffinityMode.EXCLUSIVE)
    default = NumaOptions(AffinityMode.SOCKET)
    assert numa_options(BindingOrder("auto"), 8, default) is default  # the setting of users' jobs
    assert numa_options(BindingOrder("none"), 8, default) is None
    assert numa_options(BindingOrder("node"), 4, default) is None  # not one device per rank
    assert numa_options(BindingOrder("auto", shown), 8, default) is None  # the rack binds
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert numa_options(BindingOrder("node"), 8, default) is None
    done = in_thread(lambda: binding.bind(BindingOrder("node"), 0, 8, by_torch=True))
    assert done.by == "torch"
    assert set(done.cpus) == set(os.sched_getaffinity(0))


CORES: dict[int, list[tuple[int, ...]]] = {0: [(0,), (1,), (2,)], 1: [(4, 5), (6, 7)]}


def cpus(homes: list[int | None], exclusive: bool = True) -> list[tuple[int, ...]]:
    return [share.cpus for share in shares(homes, CORES, exclusive)]


def test_ranks_beside_one_node_get_separate_cores() -> None:
    assert cpus([0, 1, 0, 1]) == [(0, 1), (4, 5), (2,), (6, 7)]
    assert cpus([0]) == [(0, 1, 2)]


def test_ranks_get_all_cores_of_the_node_on_request() -> None:
    assert cpus([0, 1, 0], exclusive=False) == [(0, 1, 2), (4, 5, 6, 7), (0, 1, 2)]


def test_ranks_share_cores_with_a_message_if_there_are_too_few() -> None:
    assert shares([1, 1, 1, 0], CORES, True) == [
        Share((4, 5), 1, shared_with=(2,)),
        Share((6, 7), 1),
        Share((4, 5), 1, shared_with=(0,)),
        Share((0, 1, 2), 0),
    ]


def test_ranks_with_unknown_devices_are_not_bound() -> None:
    unknown, nowhere = shares([None, 3], CORES, True)
    assert (unknown.cpus, nowhere.cpus) == ((), ())
    assert unknown.why == "the NUMA node of its accelerator is not known"
    assert nowhere.why == "this rank may use no CPU of NUMA node 3, where its accelerator is"


def test_without_nvml_homes_are_those_of_pci_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of MI300X, which NVML does not know; without initializing HIP."""
    tree = Tree(tmp_path)
    for index in range(8):
        tree.pci(f"pci0000:{index:02x}/0000:{index:02x}:00.0", "0x120000", "0x1002", index // 4)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    shown = SysfsView(str(tmp_path))
    assert accelerators.homes_of(shown, 8) == [0] * 4 + [1] * 4
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "7,0")
    assert accelerators.homes_of(shown, 2) == [1, 0]
