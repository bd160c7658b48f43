"""Questions about what a node is and has, on surveys as values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.preflight.facts import (
    Accelerator,
    LastFacts,
    PlaceFacts,
    ProcessLimits,
    RdmaPort,
    RdmaRise,
    Sample,
    Seen,
    Survey,
    Token,
)
from pytest_mnode.criteria.preflight.machine import pci_links
from pytest_mnode.criteria.preflight.questions import devices, kernel, room, same, storage
from pytest_mnode.criteria.preflight.questions.answer import Answer, NotPromised
from pytest_mnode.logs.kernel_log import Event, Log, Severity
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import Part
from tests.criteria.preflight.made import (
    SOFTWARE,
    asked,
    culprits,
    healthy,
    interface,
    spec_of,
    verdicts,
    with_facts,
    with_node,
)
from tests.trees import GPU, MELLANOX, NIC, NVIDIA, SWITCH_PORT, Tree


def _same(part: Part) -> Any:
    def question(survey: Survey, spec: Spec, name: str) -> Answer:
        return same.same(survey, spec, name, part)

    return question


OTHER: dict[Part, dict[str, Any]] = {
    "code": {"code": {"train/main.py": "ffff", "train/new.py": "1"}},
    "python": {"python": "CPython 3.12.1"},
    "torch": {"torch": None},
    "packages": {"packages": {"numpy": "2.0.0", "torch": "2.6.0"}},
    "nccl": {"nccl": "2.20.5"},
    "driver": {"driver": "535.1"},
    "firmware": {"firmware": {"mlx5_0": "28.36.0"}},
    "kernel": {"kernel": "5.15.0"},
    "sysctl": {"sysctl": {**SOFTWARE.sysctl, "net.ipv4.tcp_rmem": "4096 8192 16384"}},
}


@pytest.mark.parametrize("part", same.PARTS)
def test_the_odd_one_out_is_named_with_both_values(tmp_path: Path, part: Part) -> None:
    spec = spec_of(tmp_path, f"{{same: [{part}]}}")
    assert verdicts(_same(part), healthy(), spec) == {}
    odd = with_facts(healthy(), 1, software=replace(SOFTWARE, **OTHER[part]))
    assert culprits(_same(part), odd, spec) == {"gpu1": f"gpu1 {part}"}
    [found] = asked(_same(part), odd, spec)["gpu1"]
    assert " on 3 of 4 nodes" in found.note
    none = healthy(2)
    for index in range(2):
        empty: Any = {} if part in ("code", "packages", "firmware", "sysctl") else None
        none = with_facts(none, index, software=replace(SOFTWARE, **{part: empty}))
    assert set(verdicts(_same(part), none, spec).values()) == {"inconclusive"}


def test_without_a_majority_all_differ(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{same: [kernel]}")
    other = replace(SOFTWARE, kernel="5.15.0")
    two = with_facts(healthy(2), 1, software=other)
    assert set(culprits(_same("kernel"), two, spec)) == {"gpu0", "gpu1"}
    [found] = asked(_same("kernel"), two, spec)["gpu0"]
    assert "6.1.0, 5.15.0 on gpu1, and no majority says who is right" in found.note
    assert isinstance(same.same(healthy(1), spec, "gpu0", "kernel"), NotPromised)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("setting", sorted(SOFTWARE.sysctl))
def test_a_kernel_setting_that_a_node_does_not_show_is_no_difference(
    tmp_path: Path, nodes: int, setting: str
) -> None:
    spec = spec_of(tmp_path, "{same: [sysctl]}")
    shown = {name: value for name, value in SOFTWARE.sysctl.items() if name != setting}
    some = with_facts(healthy(nodes), 1, software=replace(SOFTWARE, sysctl=shown))
    assert verdicts(_same("sysctl"), some, spec) == {}
    assert "1 not readable here" in asked(_same("sysctl"), some, spec)["gpu1"][0].note
    mute = with_facts(healthy(nodes), 1, software=replace(SOFTWARE, sysctl={}))
    expected = ["gpu1"] if nodes > 2 else ["gpu0", "gpu1"]  # nobody to compare with
    assert verdicts(_same("sysctl"), mute, spec) == dict.fromkeys(expected, "inconclusive")
    other = replace(SOFTWARE, sysctl={**SOFTWARE.sysctl, setting: "1"})
    odd = culprits(_same("sysctl"), with_facts(healthy(nodes), 1, software=other), spec)
    assert sorted(odd) == (["gpu1"] if nodes > 2 else ["gpu0", "gpu1"])  # no majority of two


def _place(key: str, path: str, **changes: Any) -> PlaceFacts:
    place = PlaceFacts(
        key=key,
        path=path,
        problem="",
        write_problem="",
        file_system="nfs4 filer:/x",
        size_bytes=10**12,
        free_bytes=10**11,
        token=None,
        samples=(),
    )
    return replace(place, **changes)


def _stored() -> Survey:
    survey = healthy()
    sample = (Sample("a.bin", 100, "d1"), Sample("b.bin", 100, "d2"))
    for index in range(4):
        token = Token("checkpoints", index, f"/ckpt/t{index}", "x")
        places = (
            _place("datasets", "/data", samples=sample),
            _place("checkpoints", "/ckpt", token=token),
        )
        survey = with_facts(survey, index, places=places)
        paths = survey.nodes[index].paths
        assert paths is not None
        seen = tuple(Seen("checkpoints", other, "") for other in range(4) if other != index)
        survey = with_node(survey, index, paths=replace(paths, seen=seen))
    return survey


def _with_place(survey: Survey, index: int, key: str, **changes: Any) -> Survey:
    facts = survey.nodes[index].facts
    assert facts is not None
    places = tuple(replace(p, **changes) if p.key == key else p for p in facts.places)
    return with_facts(survey, index, places=places)


@pytest.fixture
def stored(tmp_path: Path) -> Spec:
    return spec_of(tmp_path, "{storage: {}}")


def test_storage_that_is_well_passes(stored: Spec) -> None:
    for question in (storage.usable, storage.shared, storage.sample):
        assert verdicts(question, _stored(), stored) == {}


def test_a_path_that_cannot_be_used_is_told(stored: Spec) -> None:
    gone = _with_place(_stored(), 2, "datasets", problem="stale file handle")
    assert culprits(storage.usable, gone, stored) == {"gpu2": "gpu2 /data: stale file handle"}
    closed = _with_place(_stored(), 1, "checkpoints", write_problem="read-only file system")
    assert culprits(storage.usable, closed, stored) == {"gpu1": "gpu1 /ckpt: read-only file system"}
    assert verdicts(storage.shared, gone, stored) == {"gpu2": "inconclusive"}


def test_a_path_that_does_not_answer_in_time_is_not_told(stored: Spec) -> None:
    why = "no answer within 3 s"
    hung = _with_place(_stored(), 2, "datasets", problem=why, file_system=None)
    hung = with_facts(hung, 2, unread={"datasets": why})
    assert verdicts(storage.usable, hung, stored) == {"gpu2": "inconclusive"}
    [read] = [m for m in asked(storage.usable, hung, stored)["gpu2"] if m.value is None]
    assert (read.name, read.note) == ("datasets can be read", f"gpu2 /data: {why}")


def test_what_is_refused_to_root_by_a_file_server_is_not_told(stored: Spec) -> None:
    refused = {"write_problem": "permission denied", "refuses_root": True}
    squashed = _with_place(_stored(), 1, "checkpoints", **refused)
    assert verdicts(storage.usable, squashed, stored) == {"gpu1": "inconclusive"}
    written = asked(storage.usable, squashed, stored)["gpu1"][-1]
    assert written.name == "checkpoints can be written to"
    assert written.note == (
        "gpu1 /ckpt: permission denied to root, whom a file server may take for nobody "
        "(root_squash): ask as a user"
    )
    user = _with_place(_stored(), 1, "checkpoints", write_problem="permission denied")
    assert culprits(storage.usable, user, stored) == {"gpu1": "gpu1 /ckpt: permission denied"}


def test_one_file_system_by_other_addresses_is_told_by_its_files(stored: Spec) -> None:
    """As file servers are mounted that spread nodes over their addresses."""
    survey = _stored()
    for index in range(4):
        source = f"nfs4 10.9.0.{index + 1}:/data"
        survey = _with_place(survey, index, "datasets", file_system=source)
    assert verdicts(storage.shared, survey, stored) == {}
    datasets = asked(storage.shared, survey, stored)["gpu0"][0]
    assert datasets.note == (
        "gpu0: nfs4 10.9.0.1:/data, by other addresses elsewhere: whether it is one file system, "
        "its files show"
    )
    bare = survey
    for index in range(4):
        bare = _with_place(bare, index, "datasets", samples=())
    assert set(verdicts(storage.shared, bare, stored).values()) == {"inconclusive"}
    other = _with_place(survey, 3, "datasets", file_system="nfs4 10.9.0.4:/old")
    assert culprits(storage.shared, other, stored) == {"gpu3": "gpu3 /data"}


def test_another_file_system_of_the_same_name_is_found(stored: Spec) -> None:
    survey = _stored()
    paths = survey.nodes[3].paths
    assert paths is not None
    unseen = tuple(Seen("checkpoints", o, "no such file or directory") for o in range(3))
    survey = with_node(survey, 3, paths=replace(paths, seen=unseen))
    survey = _with_place(survey, 3, "checkpoints", file_system="ext4 /dev/sda1")
    assert culprits(storage.shared, survey, stored) == {"gpu3": "gpu3 /ckpt is ext4 /dev/sda1"}
    # Where nobody may write, the mount is compared.
    other = _with_place(_stored(), 3, "datasets", file_system="ext4 /dev/sda1")
    assert culprits(storage.shared, other, stored) == {"gpu3": "gpu3 /data"}


def test_files_that_differ_are_named(stored: Spec) -> None:
    changed = (Sample("a.bin", 100, "d1"), Sample("b.bin", 99, "d9"))
    found = _with_place(_stored(), 0, "datasets", samples=changed)
    assert culprits(storage.sample, found, stored) == {"gpu0": "gpu0 /data"}
    [sample] = asked(storage.sample, found, stored)["gpu0"]
    assert sample.value == 1
    assert "b.bin: d9 of 99 B, d2 of 100 B on 3 of 4 nodes" in sample.note


def test_room_and_limits(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        "{limits: {shm: 64 GiB, shm_free: 32 GiB, memlock: unlimited, open_files: 65536},"
        " disk: [{path: /tmp, free: 10 GB}]}",
    )
    shm = _place(room.SHM, room.SHM, size_bytes=64 << 30, free_bytes=40 << 30)
    survey = healthy(3)
    for index in range(3):
        survey = with_facts(survey, index, places=(shm, _place("disk /tmp", "/tmp")))
    questions = (room.shared_memory, room.locked_memory, room.open_files, room.disk)
    for question in questions:
        assert verdicts(question, survey, spec) == {}
    bad = with_facts(
        survey,
        1,
        places=(replace(shm, free_bytes=1 << 30), _place("disk /tmp", "/tmp", free_bytes=10**9)),
        limits=ProcessLimits(1 << 40, 1024),
    )
    for question in questions:
        assert verdicts(question, bad, spec) == {"gpu1": "fail"}
    lost = with_facts(
        survey,
        1,
        places=(_place(room.SHM, room.SHM, problem="not there", size_bytes=None, free_bytes=None),),
    )
    assert verdicts(room.shared_memory, lost, spec) == {"gpu1": "inconclusive"}


def _accelerator(index: int, **changes: Any) -> Accelerator:
    one = Accelerator(index, "H100", 80 * 10**9, True, 0, True, (), False, ())
    return replace(one, **changes)


@pytest.mark.parametrize(
    ("change", "verdict", "told"),
    [
        ({"model": "A100"}, "fail", "accelerator 1: A100"),
        ({"memory_bytes": 40 * 10**9}, "fail", ""),
        ({"ecc": False}, "fail", "accelerator 1: off"),
        ({"ecc": None}, "inconclusive", "accelerator 1 does not tell"),
        ({"ecc_errors": 3}, "fail", ""),
        ({"persistence": False}, "fail", "accelerator 1: off"),
        ({"throttling": ("HwThermalSlowdown",)}, "fail", "accelerator 1: HwThermalSlowdown"),
        ({"throttling": None}, "inconclusive", "accelerator 1 does not tell"),
        ({"mig": True}, "fail", "accelerator 1: on"),
        ({"mig": None}, "inconclusive", "accelerator 1 does not tell"),
        ({"remapped_rows": ("failed",)}, "fail", "accelerator 1: failed"),
        ({"remapped_rows": ("failed", "pending")}, "fail", "accelerator 1: failed, pending"),
        ({"remapped_rows": None}, "inconclusive", "accelerator 1 does not tell"),
    ],
)
def test_accelerators(tmp_path: Path, change: dict[str, Any], verdict: str, told: str) -> None:
    spec = spec_of(
        tmp_path,
        "{accelerators: {ecc: 'on', ecc_errors_at_most: 0, persistence: 'on', throttling: none, "
        "mig: 'off', remapped_rows: none}}",
        accelerators="2, model: H100, memory: 80 GB",
    )
    both = (_accelerator(0), _accelerator(1))
    survey = healthy(2)
    for index in range(2):
        survey = with_facts(survey, index, accelerators=both)
    assert verdicts(devices.accelerators, survey, spec) == {}
    found = with_facts(survey, 1, accelerators=(both[0], _accelerator(1, **change)))
    assert verdicts(devices.accelerators, found, spec) == {"gpu1": verdict}
    assert told in " ".join(m.note for m in asked(devices.accelerators, found, spec)["gpu1"])
    fewer = with_facts(survey, 1, accelerators=both[:1])
    assert culprits(devices.accelerators, fewer, spec) == {"gpu1": "gpu1 accelerators"}
    mute = with_facts(survey, 1, accelerators=None, unread={"accelerators": "no NVML"})
    assert verdicts(devices.accelerators, mute, spec) == {"gpu1": "inconclusive"}


@pytest.mark.parametrize(
    ("card", "slot", "told", "verdict"),
    [
        ({}, {}, "", None),
        ({"current_link_width": 8}, {}, "{0} x8 of 16", "fail"),
        ({}, {"max_link_width": 8}, "", None),  # the slot has no more; nothing was lost
        ({"current_link_width": 8}, {"max_link_width": 8}, "", None),
        ({"current_link_speed": "16.0 GT/s PCIe"}, {}, "{0} GT/s 16 of 32", "fail"),
        (
            {"current_link_speed": "16.0 GT/s PCIe"},
            {"max_link_speed": "16.0 GT/s PCIe"},
            "",
            None,
        ),
        ({"current_link_width": 255}, {}, "{0} does not tell its width", "inconclusive"),
        ({"current_link_speed": "Unknown"}, {}, "{0} does not tell its speed", "inconclusive"),
    ],
)
@pytest.mark.parametrize("kind", ["nic", "accelerator"])
def test_pcie_links(  # noqa: PLR0917  what is varied
    tmp_path: Path,
    card: dict[str, Any],
    slot: dict[str, Any],
    told: str,
    verdict: str | None,
    kind: str,
) -> None:
    full: dict[str, Any] = {"current_link_width": 16, "max_link_width": 16}
    full |= {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    tree = Tree(tmp_path)
    for bus, (device, vendor) in {"1b": (GPU, NVIDIA), "1c": (NIC, MELLANOX)}.items():
        odd = (bus == "1c") is (kind == "nic")
        port = f"pci0000:10/0000:10:{bus}.0"
        tree.pci(port, SWITCH_PORT, "0x8086", **{**full, **(slot if odd else {})})
        tree.pci(f"{port}/0000:{bus}:00.0", device, vendor, **{**full, **(card if odd else {})})
    tree.interface("fab0", "pci0000:10/0000:10:1c.0/0000:1c:00.0")
    spec = spec_of(tmp_path, "{pcie: full}", accelerators="1")
    survey = with_facts(healthy(2), 1, pci=pci_links(["fab*"], tmp_path))
    if kind == "accelerator" and "current_link_speed" in card:
        verdict = None  # it may save power
    found = asked(devices.pcie, survey, spec)["gpu1"]
    assert {str(m.verdict) for m in found} - {"pass"} == ({verdict} if verdict else set())
    if verdict:
        name = "fab0" if kind == "nic" else "accelerator 0000:1b:00.0"
        assert told.format(name) in " ".join(f"{m.culprit} {m.note}" for m in found)
    dumb = with_facts(healthy(2), 1, pci=None, unread={"pci": "denied"})
    assert {str(m.verdict) for m in asked(devices.pcie, dumb, spec)["gpu1"]} == {"inconclusive"}


def test_a_virtual_function_has_no_pcie_link_of_its_own(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    full: dict[str, Any] = {"current_link_width": 16, "max_link_width": 16}
    port = "pci0000:10/0000:10:01.0"
    tree.pci(port, SWITCH_PORT, "0x8086", **full)
    tree.pci(f"{port}/0000:1c:00.0", NIC, MELLANOX, **full)
    tree.pci(f"{port}/0000:1c:00.1", NIC, MELLANOX, current_link_width=0, max_link_width=0)
    tree.link(f"sys/devices/{port}/0000:1c:00.1/physfn", f"sys/devices/{port}/0000:1c:00.0")
    for name, function in (("fab0", 0), ("fab0v0", 1)):
        tree.interface(name, f"{port}/0000:1c:00.{function}")
    assert [link.name for link in pci_links(["fab*"], tmp_path)] == ["fab0"]


XID = Event(Severity.FAULT, "2026-11-22T06:54:23Z", "0000:1b:00", "Xid 79: GPU is lost")
AER = Event(Severity.CORRECTED, "[5.1]", "0000:18:00.0", "PCIe AER Corrected")
DOWN = Event(Severity.LINK_DOWN, "[9.1]", "eth2", "link down")


@pytest.mark.parametrize(
    ("log", "verdict", "culprit", "note"),
    [
        (Log(()), None, None, ""),
        (Log((), "[7200.5]"), None, None, "the log goes back to [7200.5] only"),
        (Log((AER,) * 3), None, None, ""),
        (Log((XID,)), "fail", "gpu1 0000:1b:00", "2026-11-22T06:54:23Z: Xid 79: GPU is lost"),
        (Log((AER,) * 4), "fail", "gpu1 0000:18:00.0", "0000:18:00.0 [5.1]: PCIe AER Corrected"),
        (Log((DOWN,) * 4), "fail", "gpu1 eth2", "eth2 [9.1]: link down"),
        (
            Log((DOWN, *(replace(DOWN, device=f"eth{i % 2}") for i in range(9)))),
            *("fail", "gpu1 eth0, eth1", "eth2 [9.1]: link down"),
        ),
        (Log(tuple(replace(DOWN, device=f"eth{i % 8}") for i in range(24))), None, None, ""),
        (None, "inconclusive", None, "dmesg: Operation not permitted"),
    ],
)
def test_the_kernel_log(
    tmp_path: Path, log: Log | None, verdict: str | None, culprit: str | None, note: str
) -> None:
    spec = spec_of(tmp_path, "{kernel_log: {corrected_at_most: 3}}")
    unread = {"kernel_log": "OSError: dmesg: Operation not permitted"}
    survey = with_facts(healthy(2), 1, kernel_log=log, unread=unread)
    found = asked(kernel.kernel_log, survey, spec)["gpu1"]
    assert {str(m.verdict) for m in found} - {"pass"} == ({verdict} if verdict else set())
    assert {m.culprit for m in found} - {None} == ({culprit} if culprit else set())
    assert note in " ".join(m.note for m in found)
    silent = spec_of(tmp_path, "{interfaces: {}}")
    assert isinstance(kernel.kernel_log(survey, silent, "gpu1"), NotPromised)


PORT = RdmaPort("mlx5_0", 1, "ACTIVE", "LinkUp", "RoCE", 400.0, ("RoCE v1", "RoCE v2"))


def _rdma(port: RdmaPort, rise: RdmaRise) -> Survey:
    survey = healthy(2)
    fine = RdmaRise("mlx5_0", 1, {}, 9, ())
    for index, (one, risen) in enumerate(((PORT, fine), (port, rise))):
        facts = with_facts(
            survey,
            index,
            rdma=(one,),
            interfaces=(interface("rocep1", "10.2.0.1", rdma_device="mlx5_0"),),
        )
        last = facts.nodes[index].last
        assert last is not None
        survey = with_node(facts, index, last=LastFacts(last.heard, (risen,)))
    return survey


def test_rdma_ports_and_their_errors(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{rdma: {gid_types: [RoCE v2], errors_at_most: 0}}", "roce", "rocep1")
    fine = RdmaRise("mlx5_0", 1, {}, 9, ())
    assert verdicts(devices.rdma_ports, _rdma(PORT, fine), spec) == {}
    assert verdicts(devices.rdma_errors, _rdma(PORT, fine), spec) == {}
    down = _rdma(replace(PORT, state="DOWN"), fine)
    assert culprits(devices.rdma_ports, down, spec) == {"gpu1": "gpu1 mlx5_0:1 DOWN"}
    first = _rdma(replace(PORT, gid_types=("RoCE v1",)), fine)
    assert culprits(devices.rdma_ports, first, spec) == {"gpu1": "gpu1 mlx5_0:1 has RoCE v1"}
    rising = _rdma(PORT, RdmaRise("mlx5_0", 1, {"symbol_error": 4}, 9, ()))
    assert culprits(devices.rdma_errors, rising, spec) == {"gpu1": "gpu1 mlx5_0:1 symbol_error +4"}
    unknown = _rdma(PORT, RdmaRise("mlx5_0", 1, {}, 9, ("link_downed",)))
    assert verdicts(devices.rdma_errors, unknown, spec) == {"gpu1": "inconclusive"}
    assert set(culprits(devices.rdma_ports, healthy(2), spec)) == {"gpu0", "gpu1"}  # none at all
    assert set(verdicts(devices.rdma_errors, healthy(2), spec).values()) == {"inconclusive"}


@pytest.mark.parametrize(
    ("promise", "change", "told"),
    [
        ("either", {"driver_is_open": False}, "nvidia_peermem is not loaded"),
        ("peermem", {}, "nvidia_peermem is not loaded"),
        ("dma-buf", {"driver_is_open": False, "peermem": "1"}, "not the open kernel module"),
        ("either", {"driver": None, "driver_is_open": False}, "no NVIDIA driver"),
    ],
)
def test_gpudirect(tmp_path: Path, promise: str, change: dict[str, Any], told: str) -> None:
    spec = spec_of(tmp_path, f"{{gpudirect: {promise}}}")
    whole = replace(SOFTWARE, peermem="550.54.15")
    survey = healthy(2)
    for index in range(2):
        survey = with_facts(survey, index, software=whole)
    assert verdicts(devices.gpudirect, survey, spec) == {}
    found = with_facts(survey, 1, software=replace(SOFTWARE, **change))
    [culprit] = culprits(devices.gpudirect, found, spec).values()
    assert told in culprit
