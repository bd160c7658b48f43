"""Questions about what a node is and has, on surveys as values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.preflight.answers import (
    DirectoryFacts,
    LastFacts,
    Sample,
    Survey,
    Token,
    TokenSeen,
)
from pytest_mnode.criteria.preflight.judges import (
    devices,
    rdma,
    storage,
    system,
)
from pytest_mnode.criteria.preflight.judges.devices import pci_links
from pytest_mnode.criteria.preflight.orders import SHM
from pytest_mnode.logs.kernel_log import Event, Log, Severity
from pytest_mnode.machine.model import Limits, Machine
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.rdma import Port
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import Part
from tests.criteria.preflight.made import (
    SETTINGS,
    SOFTWARE,
    asked,
    culprits,
    healthy,
    interface,
    rdma_device,
    rdma_port,
    spec_of,
    verdicts,
    with_facts,
    with_node,
)
from tests.trees import GPU, MELLANOX, NIC, NVIDIA, SWITCH_PORT, Tree


def _same(part: Part) -> Any:
    def question(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
        return system.same(survey, spec, name, part)

    return question


OTHER: dict[Part, Any] = {
    "code": {"train/main.py": "ffff", "train/new.py": "1"},
    "python": "CPython 3.12.1",
    "torch": None,
    "packages": {"numpy": "2.0.0", "torch": "2.6.0"},
    "nccl": "2.20.5",
    "driver": "535.1",
    "firmware": "28.36.0",
    "kernel": "5.15.0",
    "sysctl": {**SETTINGS, "net.ipv4.tcp_rmem": "4096 8192 16384"},
}


def _having(survey: Survey, index: int, part: Part, value: Any) -> Survey:
    """With another value of a part on one node."""
    if part == "firmware":
        device = rdma_device(rdma_port(), firmware=value)
        return with_facts(survey, index, rdma=(device,))
    if part == "code":
        return with_facts(survey, index, code=value)
    if part == "sysctl":
        return with_facts(survey, index, settings=value)
    return with_facts(survey, index, software=replace(SOFTWARE, **{part: value}))


@pytest.mark.parametrize("part", system.PARTS)
def test_the_odd_one_out_is_named_with_both_values(tmp_path: Path, part: Part) -> None:
    spec = spec_of(tmp_path, f"{{same: [{part}]}}")
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


def test_without_a_majority_all_differ(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{same: [kernel]}")
    other = replace(SOFTWARE, kernel="5.15.0")
    two = with_facts(healthy(2), 1, software=other)
    assert set(culprits(_same("kernel"), two, spec)) == {"gpu0", "gpu1"}
    [found] = asked(_same("kernel"), two, spec)["gpu0"]
    assert "6.1.0, 5.15.0 on gpu1, and no majority says who is right" in found.note
    assert system.same(healthy(1), spec, "gpu0", "kernel") == []


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_a_kernel_setting_that_a_node_does_not_show_is_no_difference(
    tmp_path: Path, nodes: int, setting: str
) -> None:
    spec = spec_of(tmp_path, "{same: [sysctl]}")
    shown = {name: value for name, value in SETTINGS.items() if name != setting}
    some = with_facts(healthy(nodes), 1, settings=shown)
    assert verdicts(_same("sysctl"), some, spec) == {}
    assert "1 not readable here" in asked(_same("sysctl"), some, spec)["gpu1"][0].note
    mute = with_facts(healthy(nodes), 1, settings={})
    expected = ["gpu1"] if nodes > 2 else ["gpu0", "gpu1"]  # nobody to compare with
    assert verdicts(_same("sysctl"), mute, spec) == dict.fromkeys(expected, "inconclusive")
    other = {**SETTINGS, setting: "1"}
    odd = culprits(_same("sysctl"), with_facts(healthy(nodes), 1, settings=other), spec)
    assert sorted(odd) == (["gpu1"] if nodes > 2 else ["gpu0", "gpu1"])  # no majority of two


def _place(key: str, path: str, **changes: Any) -> DirectoryFacts:
    place = DirectoryFacts(
        key=key,
        path=path,
        file_system="nfs4 filer:/x",
        size_bytes=10**12,
        free_bytes=10**11,
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
        survey = with_facts(survey, index, directories=places)
        paths = survey.nodes[index].paths
        assert paths is not None
        seen = tuple(TokenSeen("checkpoints", other, "") for other in range(4) if other != index)
        survey = with_node(survey, index, paths=replace(paths, seen=seen))
    return survey


def _with_place(survey: Survey, index: int, key: str, **changes: Any) -> Survey:
    facts = survey.nodes[index].facts
    assert facts is not None
    places = tuple(replace(p, **changes) if p.key == key else p for p in facts.directories)
    return with_facts(survey, index, directories=places)


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
    hung = _with_place(_stored(), 2, "datasets", problem=why, file_system=None, timed_out=True)
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
        "gpu1 /ckpt: permission denied as root (root_squash?): rerun as an ordinary user"
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
        "gpu0: nfs4 10.9.0.1:/data, other addresses elsewhere: its files show whether it is one "
        "file system"
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
    unseen = tuple(TokenSeen("checkpoints", o, "no such file or directory") for o in range(3))
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
    shm = _place(SHM, SHM, size_bytes=64 << 30, free_bytes=40 << 30)
    survey = healthy(3)
    for index in range(3):
        survey = with_facts(survey, index, directories=(shm, _place("disk /tmp", "/tmp")))
    questions = (system.shared_memory, system.locked_memory, system.open_files, system.disk)
    for question in questions:
        assert verdicts(question, survey, spec) == {}
    bad = with_facts(
        survey,
        1,
        directories=(
            replace(shm, free_bytes=1 << 30),
            _place("disk /tmp", "/tmp", free_bytes=10**9),
        ),
        limits=Limits(1 << 40, 1024),
    )
    for question in questions:
        assert verdicts(question, bad, spec) == {"gpu1": "fail"}
    lost = with_facts(
        survey,
        1,
        directories=(_place(SHM, SHM, problem="not there", size_bytes=None, free_bytes=None),),
    )
    assert verdicts(system.shared_memory, lost, spec) == {"gpu1": "inconclusive"}


def _accelerator(index: int, **changes: Any) -> Accelerator:
    one = Accelerator(
        index=index,
        name="H100",
        memory_bytes=80 * 10**9,
        ecc_enabled=True,
        ecc_uncorrected=0,
        persistence=True,
        throttled=(),
        mig_enabled=False,
        remapped_rows_failed=False,
        remapped_rows_pending=False,
    )
    return replace(one, **changes)


@pytest.mark.parametrize(
    ("change", "verdict", "told"),
    [
        ({"name": "A100"}, "fail", "accelerator 1: A100"),
        ({"memory_bytes": 40 * 10**9}, "fail", ""),
        ({"ecc_enabled": False}, "fail", "accelerator 1: off"),
        ({"ecc_enabled": None}, "inconclusive", "accelerator 1 does not report it"),
        ({"ecc_uncorrected": 3}, "fail", ""),
        ({"persistence": False}, "fail", "accelerator 1: off"),
        ({"throttled": ("HwThermalSlowdown",)}, "fail", "accelerator 1: HwThermalSlowdown"),
        ({"throttled": None}, "inconclusive", "accelerator 1 does not report it"),
        ({"mig_enabled": True}, "fail", "accelerator 1: on"),
        ({"mig_enabled": None}, "inconclusive", "accelerator 1 does not report it"),
        ({"remapped_rows_failed": True}, "fail", "accelerator 1: failed"),
        (
            {"remapped_rows_failed": True, "remapped_rows_pending": True},
            "fail",
            "accelerator 1: failed, pending",
        ),
        ({"remapped_rows_pending": None}, "inconclusive", "accelerator 1 does not report it"),
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
        ({"current_link_width": 255}, {}, "{0} does not report its width", "inconclusive"),
        ({"current_link_speed": "Unknown"}, {}, "{0} does not report its speed", "inconclusive"),
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
    machine = Machine.read(tmp_path, ("pci", "interfaces", "rdma"))
    parts = {"pci": machine.pci, "interfaces": machine.interfaces, "rdma": machine.rdma}
    survey = with_facts(healthy(2), 1, **parts)
    if kind == "accelerator" and "current_link_speed" in card:
        verdict = None  # it may save power
    found = asked(devices.pcie, survey, spec)["gpu1"]
    assert {str(m.verdict) for m in found} - {"pass"} == ({verdict} if verdict else set())
    if verdict:
        name = "fab0" if kind == "nic" else "accelerator 0000:1b:00.0"
        assert told.format(name) in " ".join(f"{m.culprit} {m.note}" for m in found)
    dumb = with_facts(healthy(2), 1, unread={"pci": "denied"})
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
    assert [link.name for link in pci_links(Machine.read(tmp_path), ["fab*"])] == ["fab0"]


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
    found = asked(devices.kernel_log, survey, spec)["gpu1"]
    assert {str(m.verdict) for m in found} - {"pass"} == ({verdict} if verdict else set())
    assert {m.culprit for m in found} - {None} == ({culprit} if culprit else set())
    assert note in " ".join(m.note for m in found)
    silent = spec_of(tmp_path, "{interfaces: {}}")
    assert devices.kernel_log(survey, silent, "gpu1") == []


PORT = rdma_port("RoCE", ("IB/RoCE v1", "RoCE v2"))


def _rdma(before: Port, after: Port | None = None) -> Survey:
    """Two nodes, of which the second has this port, before and after."""
    survey = healthy(2)
    link = interface("rocep1", "10.2.0.1")
    for index, (one, then) in enumerate(((PORT, PORT), (before, after or before))):
        device = rdma_device(one, netdevs=("rocep1",))
        survey = with_facts(survey, index, rdma=(device,), interfaces=(link,))
        last = survey.nodes[index].last
        assert last is not None
        survey = with_node(survey, index, last=LastFacts(last.heard, (rdma_device(then),)))
    return survey


def _counting(**counters: int) -> Port:
    return replace(PORT, counters={**(PORT.counters or {}), **counters})


def test_rdma_ports_and_their_errors(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{rdma: {gid_types: [RoCE v2], errors_at_most: 0}}", "roce", "rocep1")
    assert verdicts(rdma.rdma_ports, _rdma(PORT), spec) == {}
    assert verdicts(rdma.rdma_errors, _rdma(PORT), spec) == {}
    down = _rdma(replace(PORT, state="DOWN"))
    assert culprits(rdma.rdma_ports, down, spec) == {"gpu1": "gpu1 mlx5_0:1 DOWN"}
    first = _rdma(rdma_port("RoCE", ("IB/RoCE v1",)))
    assert culprits(rdma.rdma_ports, first, spec) == {"gpu1": "gpu1 mlx5_0:1 has RoCE v1"}
    one_is_enough = _rdma(rdma_port("RoCE", (None, "RoCE v2")))
    assert verdicts(rdma.rdma_ports, one_is_enough, spec) == {}
    rising = _rdma(PORT, _counting(symbol_error=4))
    assert culprits(rdma.rdma_errors, rising, spec) == {"gpu1": "gpu1 mlx5_0:1 symbol_error +4"}
    set_back = _rdma(_counting(link_downed=3), PORT)
    assert verdicts(rdma.rdma_errors, set_back, spec) == {"gpu1": "inconclusive"}
    gone = _rdma(PORT, replace(PORT, device="mlx5_7"))
    assert verdicts(rdma.rdma_errors, gone, spec) == {"gpu1": "inconclusive"}
    assert set(culprits(rdma.rdma_ports, healthy(2), spec)) == {"gpu0", "gpu1"}  # none at all
    assert set(verdicts(rdma.rdma_errors, healthy(2), spec).values()) == {"inconclusive"}


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
    assert verdicts(rdma.gpudirect, survey, spec) == {}
    found = with_facts(survey, 1, software=replace(SOFTWARE, **change))
    [culprit] = culprits(rdma.gpudirect, found, spec).values()
    assert told in culprit
