"""Accelerators, PCIe links and the kernel log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node.accelerators import AcceleratorsAreAsPromised
from pytest_mnode.checks.node.kernel_log import KernelLogHasNoFailures, _device
from pytest_mnode.checks.node.pcie import PcieLinksAreFull, pci_links
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.logs.kernel_log import Event, Log, Severity
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.pci import PciFunction, PciTree, full_address
from pytest_mnode.measurement import Verdict
from tests.criteria.preflight.made import (
    H100,
    asked,
    culprits,
    everyone,
    healthy,
    promising,
    verdicts,
    with_facts,
    with_node,
)
from tests.trees import GPU, MELLANOX, NIC, NVIDIA, SWITCH_PORT, Tree

STATES = promising(
    "{accelerators: {ecc: 'on', ecc_errors_at_most: 0, persistence: 'on', throttling: none, "
    "mig: 'off', remapped_rows: none}}",
    accelerators="2, model: H100, memory: 80 GB",
)
TWO_GPUS = everyone(healthy(2), accelerators=(H100, replace(H100, index=1)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "A100"}, "A100"),
        ({"persistence": False}, "off"),
        ({"throttled": ("HwThermalSlowdown",)}, "HwThermalSlowdown"),
        ({"mig_enabled": True}, "on"),
        ({"remapped_rows_failed": True, "remapped_rows_pending": True}, "failed, pending"),
        ({"banks_without_spare": 2}, "no spare row left in 2 banks"),
        ({"pages_pending": True}, "retirement of a page pending"),
    ],
)
def test_the_state_of_an_accelerator_is_shown(change: dict[str, Any], words: str) -> None:
    found = with_facts(TWO_GPUS, 1, accelerators=(H100, replace(H100, index=1, **change)))
    assert verdicts(AcceleratorsAreAsPromised, found, STATES) == {"gpu1": "fail"}
    notes = " ".join(m.note for m in asked(AcceleratorsAreAsPromised, found, STATES)["gpu1"])
    assert f"accelerator 1: {words}" in notes


def test_accelerators_that_are_missing_or_do_not_answer() -> None:
    fewer = with_facts(TWO_GPUS, 1, accelerators=(H100,))
    assert culprits(AcceleratorsAreAsPromised, fewer, STATES) == {"gpu1": "gpu1 accelerators"}
    lost = with_facts(TWO_GPUS, 1, accelerators=(H100, Accelerator(index=1)))
    count, *_ = asked(AcceleratorsAreAsPromised, lost, STATES)["gpu1"]
    assert (count.value, count.culprit) == (1, "gpu1 accelerator 1")
    assert "accelerator 1: does not answer" in count.note
    mute = with_facts(TWO_GPUS, 1, accelerators=None, unread={"accelerators": "no NVML"})
    assert verdicts(AcceleratorsAreAsPromised, mute, STATES) == {"gpu1": "inconclusive"}
    amd = PciTree(functions=(PciFunction(address="0000:1b:00.0", kind="1200", vendor="1002"),))
    count, other = asked(AcceleratorsAreAsPromised, with_facts(mute, 1, pci=amd), STATES)["gpu1"]
    assert (str(count.verdict), count.value) == ("fail", 1)  # of two, by PCI
    assert str(other.verdict) == "inconclusive"
    assert "of AMD: no NVML" in other.note


def test_an_accelerator_that_only_pci_shows_is_named() -> None:
    on_pci = PciTree(
        functions=tuple(
            PciFunction(address=f"0000:{bus}:00.0", kind="0302", vendor="10de")
            for bus in ("1b", "43")
        )
    )
    one = replace(H100, pci_address="0000:1b:00.0")
    found = with_facts(TWO_GPUS, 1, accelerators=(one,), pci=on_pci)
    count, *_ = asked(AcceleratorsAreAsPromised, found, STATES)["gpu1"]
    assert (count.value, count.culprit) == (1, "gpu1 accelerator 0000:43:00.0")
    # A driver that only tells of a lost one was not asked about the others.
    lost = Accelerator(index=0, pci_address="0000:1b:00.0", problem="GPU is lost", gone=True)
    found = with_facts(TWO_GPUS, 1, accelerators=(lost,), pci=on_pci)
    count, *_ = asked(AcceleratorsAreAsPromised, found, STATES)["gpu1"]
    assert (count.value, count.culprit) == (1, "gpu1 accelerator 0")


FULL: dict[str, Any] = {"current_link_width": 16, "max_link_width": 16}
PCIE = promising("{pcie: full}", accelerators="1")


@pytest.mark.parametrize(
    ("card", "slot", "words", "verdict"),
    [
        ({}, {}, "", None),
        ({"current_link_width": 8}, {}, "{0} x8 of 16", "fail"),
        ({}, {"max_link_width": 8}, "", None),  # the slot is no wider: nothing was lost
        ({"current_link_width": 8}, {"max_link_width": 8}, "", None),
        ({"current_link_speed": "16.0 GT/s PCIe"}, {}, "{0} GT/s 16 of 32", "fail"),
        ({"current_link_speed": "16.0 GT/s PCIe"}, {"max_link_speed": "16.0 GT/s PCIe"}, "", None),
        ({"current_link_width": 255}, {}, "{0} does not report its width", "inconclusive"),
        ({"current_link_speed": "Unknown"}, {}, "{0} does not report its speed", "inconclusive"),
    ],
)
@pytest.mark.parametrize("kind", ["nic", "accelerator"])
def test_pcie_links(  # noqa: PLR0917  what is varied
    tmp_path: Path,
    card: dict[str, Any],
    slot: dict[str, Any],
    words: str,
    verdict: str | None,
    kind: str,
) -> None:
    full = FULL | {f"{which}_link_speed": "32.0 GT/s PCIe" for which in ("current", "max")}
    tree = Tree(tmp_path)
    for bus, (device, vendor) in {"1b": (GPU, NVIDIA), "1c": (NIC, MELLANOX)}.items():
        odd = (bus == "1c") is (kind == "nic")
        port = f"pci0000:10/0000:10:{bus}.0"
        tree.pci(port, SWITCH_PORT, "0x8086", **{**full, **(slot if odd else {})})
        tree.pci(f"{port}/0000:{bus}:00.0", device, vendor, **{**full, **(card if odd else {})})
    tree.interface("fab0", "pci0000:10/0000:10:1c.0/0000:1c:00.0")
    machine = Machine.read(tmp_path, ("pci", "interfaces"))
    survey = with_facts(healthy(2), 1, pci=machine.pci, interfaces=machine.interfaces)
    if kind == "accelerator" and "current_link_speed" in card:
        verdict = None  # the link may be slower to save power
    found = asked(PcieLinksAreFull, survey, PCIE)["gpu1"]
    assert {str(m.verdict) for m in found} - {"pass"} == ({verdict} if verdict else set())
    if verdict:
        name = "fab0" if kind == "nic" else "accelerator 0000:1b:00.0"
        assert words.format(name) in " ".join(f"{m.culprit} {m.note}" for m in found)


def test_pcie_links_that_cannot_be_read_are_inconclusive() -> None:
    dumb = with_facts(healthy(2), 1, unread={"pci": "denied"})
    assert {m.verdict for m in asked(PcieLinksAreFull, dumb, PCIE)["gpu1"]} == {
        Verdict.INCONCLUSIVE
    }


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((16, 16, 16), ""),
        ((8, 16, 16), "switch 0000:11:00.0 above accelerator 0000:13:00.0 x8 of 16"),
        ((8, 16, 8), ""),  # its slot has no more
        ((0, 16, 16), ""),  # not known
    ],
)
def test_the_link_of_a_switch_above_accelerators(
    tmp_path: Path, ends: tuple[int, int, int], words: str
) -> None:
    width, switch, slot = ends
    tree = Tree(tmp_path)
    root = "pci0000:10/0000:10:01.0"
    tree.pci(root, SWITCH_PORT, "0x8086", current_link_width=width, max_link_width=slot)
    up = f"{root}/0000:11:00.0"
    tree.pci(up, SWITCH_PORT, "0x1000", current_link_width=width, max_link_width=switch)
    for port in (0, 1):
        below = f"{up}/0000:12:0{port}.0"
        tree.pci(below, SWITCH_PORT, "0x1000", **FULL)
        tree.pci(f"{below}/0000:1{port + 3}:00.0", GPU, NVIDIA, **FULL)
    survey = with_facts(healthy(1), 0, pci=Machine.read(tmp_path, ("pci",)).pci)
    widths, _ = judged(
        PcieLinksAreFull, survey, promising("{pcie: full}", accelerators="2"), "gpu0"
    )
    assert (widths.value, widths.note) == (bool(words), words)


def test_a_virtual_function_has_no_pcie_link_of_its_own(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    port = "pci0000:10/0000:10:01.0"
    tree.pci(port, SWITCH_PORT, "0x8086", **FULL)
    tree.pci(f"{port}/0000:1c:00.0", NIC, MELLANOX, **FULL)
    tree.pci(f"{port}/0000:1c:00.1", NIC, MELLANOX, current_link_width=0, max_link_width=0)
    tree.link(f"sys/devices/{port}/0000:1c:00.1/physfn", f"sys/devices/{port}/0000:1c:00.0")
    for name, function in (("fab0", 0), ("fab0v0", 1)):
        tree.interface(name, f"{port}/0000:1c:00.{function}")
    assert [link.name for link in pci_links(Machine.read(tmp_path), ["fab*"])] == ["fab0"]
    tree.interface("bond0")
    tree.write("sys/class/net/bond0/bonding/slaves", "fab0")
    assert [link.name for link in pci_links(Machine.read(tmp_path), ["bond0"])] == ["fab0"]


XID = Event(Severity.FAULT, "2026-11-22T06:54:23Z", "0000:1b:00", "Xid 79: GPU is lost")
GSP = Event(Severity.FAULT, "[7.1]", "0000:1b:00", "Xid 119: GSP", action="reset the GPU")
LOST = Event(Severity.FAULT, "[8.1]", "0000:1b:00", "Xid 79: bus", action="reboot the node")
AER = Event(Severity.CORRECTED, "[5.1]", "0000:18:00.0", "PCIe AER Corrected")
DOWN = Event(Severity.LINK_DOWN, "[9.1]", "eth2", "link down")


@pytest.mark.parametrize(
    ("since", "passed_at", "verdict"),
    [
        ("boot", None, "fail"),
        ("boot", "2026-11-22T07:00:00+00:00", "fail"),
        ("last_pass", None, "fail"),
        ("last_pass", "2026-11-22T06:50:00+00:00", "fail"),
        ("last_pass", "2026-11-22T06:54:23+00:00", "fail"),
        ("last_pass", "2026-11-22T07:00:00+00:00", "pass"),
        ("2026-11-22", None, "fail"),
        ("2026-11-22T08:00:00+01:00", None, "pass"),
        ("2026-11-23", None, "pass"),
    ],
)
def test_failures_are_judged_since_the_time_promised(
    since: str, passed_at: str | None, verdict: str
) -> None:
    """An Xid of 06:54:23 UTC."""
    spec = promising(f"{{kernel_log: {{since: {since}}}}}")
    xid = replace(XID, at_s=datetime.fromisoformat("2026-11-22T06:54:23+00:00").timestamp())
    survey = with_facts(healthy(2), 1, kernel_log=Log((xid,)))
    survey = with_node(survey, 1, passed_at=passed_at)
    faults = asked(KernelLogHasNoFailures, survey, spec)["gpu1"][0]
    assert (str(faults.verdict), bool(faults.value)) == (verdict, verdict == "fail")
    assert ("1 events before" in faults.note) == (verdict == "pass")
    undated = with_facts(survey, 1, kernel_log=Log((replace(XID, at_s=None),)))
    assert str(asked(KernelLogHasNoFailures, undated, spec)["gpu1"][0].verdict) == "fail"


@pytest.mark.parametrize(
    ("log", "verdict", "culprit", "note"),
    [
        (Log(()), None, None, ""),
        (Log((), "[7200.5]"), None, None, "the log goes back to [7200.5] only"),
        (Log((AER,) * 3), None, None, ""),
        (Log((XID,)), "fail", "gpu1 0000:1b:00", "2026-11-22T06:54:23Z: Xid 79: GPU is lost"),
        (
            Log((LOST, GSP, replace(GSP, device="0000:43:00"))),
            *("fail", "gpu1 0000:1b:00: reboot the node, 0000:43:00: reset the GPU"),
            "0000:43:00 asks to reset the GPU; ",
        ),
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
    log: Log | None, verdict: str | None, culprit: str | None, note: str
) -> None:
    spec = promising("{kernel_log: {corrected_at_most: 3}}")
    unread = {"kernel_log": "OSError: dmesg: Operation not permitted"}
    survey = with_facts(healthy(2), 1, kernel_log=log, unread=unread)
    found = asked(KernelLogHasNoFailures, survey, spec)["gpu1"]
    assert {str(m.verdict) for m in found} - {"pass"} == ({verdict} if verdict else set())
    assert {m.culprit for m in found} - {None} == ({culprit} if culprit else set())
    assert note in " ".join(m.note for m in found)
    assert judged(KernelLogHasNoFailures, survey, promising("{interfaces: {}}"), "gpu1") == []


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("0000:17:00", "0000:17:00 (accelerator 3)"),  # of an Xid
        ("0000:18:00", "0000:18:00"),
        ("nvme0", "nvme0"),
    ],
)
def test_a_device_of_the_kernel_log_has_the_number_of_its_accelerator(
    address: str, name: str
) -> None:
    assert _device(address, {full_address("0000:17:00.0"): 3, None: 4}) == name
