"""Judges of equal software, memory, open files and disks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pytest_mnode.checks.node.disk import SHM, DisksHaveRoom
from pytest_mnode.checks.node.limits import (
    FilesCanBeOpen,
    MemoryCanBeLocked,
    SharedMemorySuffices,
)
from pytest_mnode.checks.node.same import PARTS, NodesAreTheSame, Part
from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.machine.process import Limits
from tests.criteria.preflight.made import (
    SETTINGS,
    SOFTWARE,
    Judge,
    asked,
    culprits,
    directory,
    everyone,
    everywhere,
    healthy,
    interface,
    promising,
    rdma_device,
    rdma_port,
    verdicts,
    with_facts,
)


def _same(part: Part) -> Judge:
    return partial(judged, NodesAreTheSame, part=part)


OTHER: dict[Part, Any] = {
    "code": {"train/main.py": "ffff", "train/new.py": "1"},
    "python": "CPython 3.12.1",
    "torch": None,
    "packages": {"numpy": "2.0.0", "torch": "2.6.0"},
    "nccl": "2.20.5",
    "driver": "535.1",
    "firmware": "28.36.0",
    "kernel": "5.15.0",
    "cpu": "1 × Intel(R) Xeon(R) Platinum 8480C",
    "microcode": "0x2b0004d0",
    "sysctl": {**SETTINGS, "net.ipv4.tcp_rmem": "4096 8192 16384"},
}


def _having(survey: Survey, index: int, part: Part, value: Any) -> Survey:
    """The survey with another value of one field on one node."""
    fields: dict[str, Any] = {
        "firmware": {"rdma": (rdma_device(rdma_port(), firmware=value),)},
        "code": {"code": value},
        "sysctl": {"settings": value},
    }
    other = {"software": replace(SOFTWARE, **{part: value})} if part not in fields else {}
    return with_facts(survey, index, **fields.get(part, other))


@pytest.mark.parametrize("part", PARTS)
def test_the_deviating_node_is_named_with_both_values(part: Part) -> None:
    spec = promising(f"{{same: [{part}]}}")
    well = healthy()
    for index in range(4 if part == "firmware" else 0):
        well = _having(well, index, part, "28.39.1002")
    assert verdicts(_same(part), well, spec) == {}
    odd = _having(well, 1, part, OTHER[part])
    assert culprits(_same(part), odd, spec) == {"gpu1": f"gpu1 {part}"}
    [found] = asked(_same(part), odd, spec)["gpu1"]
    assert " on 3 of 4 nodes" in found.note
    none = healthy(2)
    for index in range(2):
        empty: Any = {} if part in ("code", "packages", "sysctl") else None
        none = _having(none, index, part, empty)
    assert set(verdicts(_same(part), none, spec).values()) == {"inconclusive"}


def test_settings_of_the_interfaces_of_rdma_devices_are_compared() -> None:
    spec = promising("{same: [sysctl]}", "roce", '"mlx5_*"')
    survey = everywhere(healthy(3), rdma_port("RoCE"), interfaces=(interface("fab0", "10.2.0.1"),))
    names = ("fab0.arp_ignore", "fab0.rp_filter", "x.arp_ignore")  # x is of no RDMA device
    for index, value in enumerate("010"):
        own = {f"net.ipv4.conf.{name}": value for name in names}
        survey = with_facts(survey, index, settings=SETTINGS | own)
    assert culprits(_same("sysctl"), survey, spec) == {"gpu1": "gpu1 sysctl"}
    assert asked(_same("sysctl"), survey, spec)["gpu1"][0].value == 2


def test_without_a_majority_all_nodes_are_named() -> None:
    spec = promising("{same: [kernel]}")
    other = replace(SOFTWARE, kernel="5.15.0")
    two = with_facts(healthy(2), 1, software=other)
    assert set(culprits(_same("kernel"), two, spec)) == {"gpu0", "gpu1"}
    [found] = asked(_same("kernel"), two, spec)["gpu0"]
    assert "6.1.0, 5.15.0 on gpu1, and no majority says who is right" in found.note
    assert judged(NodesAreTheSame, healthy(1), spec, "gpu0", "kernel") == []


@pytest.mark.parametrize("state", ["unreadable: Permission denied", "not there"])
def test_a_value_that_no_node_can_read_is_inconclusive(state: str) -> None:
    survey = everyone(healthy(3), code={"train/main.py": state, "train/more.py": "0a1b"})
    found = verdicts(_same("code"), survey, promising("{same: [code]}"))
    assert set(found.values()) == {"inconclusive"}


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_kernel_setting_hidden_on_a_node_is_no_difference(nodes: int) -> None:
    same, spec, setting = _same("sysctl"), promising("{same: [sysctl]}"), min(SETTINGS)
    shown = {name: value for name, value in SETTINGS.items() if name != setting}
    some = with_facts(healthy(nodes), 1, settings=shown)
    assert verdicts(same, some, spec) == {}
    assert "1 unreadable here" in asked(same, some, spec)["gpu1"][0].note
    # Of two nodes neither can be compared with another.
    odd = ["gpu1"] if nodes > 2 else ["gpu0", "gpu1"]
    mute = with_facts(healthy(nodes), 1, settings={})
    assert verdicts(same, mute, spec) == dict.fromkeys(odd, "inconclusive")
    other = with_facts(healthy(nodes), 1, settings={**SETTINGS, setting: "1"})
    assert sorted(culprits(same, other, spec)) == odd


def test_an_offload_of_one_node_that_is_off_is_a_difference() -> None:
    spec = promising("{same: [sysctl]}")
    survey = healthy(3)
    for index in range(3):
        links = tuple(
            replace(one, offloads={"tso": index != 1, "gro": True})
            for one in survey.nodes[index].machine.interfaces or ()
        )
        survey = with_facts(survey, index, interfaces=links)
    assert culprits(_same("sysctl"), survey, spec) == {"gpu1": "gpu1 sysctl"}
    [odd] = asked(_same("sysctl"), survey, spec)["gpu1"]
    assert "tso: disabled, enabled on 2 of 3 nodes" in odd.note


def test_free_space_and_limits() -> None:
    spec = promising(
        "{limits: {shm: 64 GiB, shm_free: 32 GiB, memlock: unlimited, open_files: 65536},"
        " disk: [{path: /tmp, free: 10 GB}]}",
    )
    shm = directory(SHM, SHM, size_bytes=64 << 30, free_bytes=40 << 30)
    survey = everyone(healthy(3), directories=(shm, directory("disk /tmp", "/tmp")))
    full = (replace(shm, free_bytes=1 << 30), directory("disk /tmp", "/tmp", free_bytes=10**9))
    bad = with_facts(survey, 1, directories=full, limits=Limits(1 << 40, 1024))
    for question in (SharedMemorySuffices, MemoryCanBeLocked, FilesCanBeOpen, DisksHaveRoom):
        assert verdicts(question, survey, spec) == {}
        assert verdicts(question, bad, spec) == {"gpu1": "fail"}
    without_inodes = (replace(shm, free_files=2), directory("disk /tmp", "/tmp", free_files=2))
    few = with_facts(survey, 1, directories=without_inodes)
    for question in (SharedMemorySuffices, DisksHaveRoom):
        assert verdicts(question, few, spec) == {"gpu1": "fail"}
    [_, free] = asked(SharedMemorySuffices, few, spec)["gpu1"]
    assert (free.value, "2 free inodes" in free.note) == (0, True)
    absent = replace(shm, problem="not there", size_bytes=None, free_bytes=None)
    lost = with_facts(survey, 1, directories=(absent,))
    assert verdicts(SharedMemorySuffices, lost, spec) == {"gpu1": "inconclusive"}


@pytest.mark.parametrize(
    ("limits", "memlock", "capability"),
    [
        (Limits(8 << 20, 1024, ipc_lock=False, admin=False), "fail", "fail"),
        (Limits(8 << 20, 1024, ipc_lock=True, admin=False), "pass", "pass"),
        (Limits(8 << 20, 1024, ipc_lock=True, admin=True), "fail", "pass"),  # root of the host
        (Limits(None, 1024, ipc_lock=False, admin=False), "pass", "fail"),
        (Limits(8 << 20, 1024), "fail", "inconclusive"),
        (None, "inconclusive", "inconclusive"),
    ],
)
def test_a_container_may_lock_memory_by_its_capability(
    limits: Limits | None, memlock: str, capability: str
) -> None:
    spec = promising("{limits: {memlock: unlimited, ipc_lock: true}}")
    found = asked(MemoryCanBeLocked, with_facts(healthy(2), 1, limits=limits), spec)["gpu1"]
    assert [one.verdict for one in found] == [memlock, capability]
    assert judged(MemoryCanBeLocked, healthy(2), promising("{limits: {}}"), "gpu1") == []
