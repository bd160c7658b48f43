"""Lines of the kernel log, composed in every form that its readers print."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from pytest_mnode.logs import kernel_log
from pytest_mnode.logs.kernel_log import Log, Severity, parse, since
from tests.programs import write_program

FORMS = {
    "kmsg": "3,1290,5123456,-;{}",
    "kmsg that goes on": "4,1290,5123456,c;{}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0",
    "kmsg with its caller": "3,1290,5123456,-,caller=T812;{}",
    "dmesg": "[    5.123456] {}",
    "dmesg with a thread": "[    5.123456][  T812] {}",
    "dmesg with a CPU": "[    5.123456][    C3] {}",
    "dmesg of util-linux 2.41": "[    5.123456] [    T812] {}",
    "dmesg -T with a thread": "[Sun Nov 22 06:54:23 2026] [    T812] {}",
    "dmesg -d": "[    5.123456 <    0.000012>] {}",
    "dmesg -e": "[Nov22 06:54] {}",
    "dmesg -x with a thread": "kern  :err   : [    5.123456][  T812] {}",
    "dmesg -x iso": "kern  :err   : 2026-11-22T06:54:23,123456+00:00 {}",
    "dmesg of long uptime": "[1234567.123456] {}",
    "dmesg -T": "[Sun Nov 22 06:54:23 2026] {}",
    "dmesg -x": "kern  :err   : [    5.123456] {}",
    "dmesg -r": "<3>[    5.123456] {}",
    "dmesg iso": "2026-11-22T06:54:23,123456+00:00 {}",
    "journalctl": "Nov 22 06:54:23 gpu-17.example kernel: {}",
    "rsyslog": "Nov 22 06:54:23 gpu-17.example kernel: [    5.123456] {}",
    "rsyslog with a thread": "Nov 22 06:54:23 gpu-17.example kernel: [    5.123456][  T812] {}",
    "journalctl short-precise": "Nov 22 06:54:23.123456 gpu-17.example kernel: {}",
    "journalctl short-iso since systemd 255": "2026-11-22T06:54:23+00:00 gpu17 kernel: {}",
    "journalctl short-iso": "2026-11-22T06:54:23+0000 gpu17 kernel: {}",
    "journalctl in Polish": "lis 22 06:54:23 gpu17 kernel: {}",
    "journalctl in French": "févr. 22 06:54:23 gpu17 kernel: {}",
    "journalctl in Chinese": "11月 22 06:54:23 gpu17 kernel: {}",
    "journalctl short-monotonic": "[    5.123456] gpu17 kernel: {}",
}
GPU, NIC = "0000:1b:00", "0000:18:00.0"
FAULT, CORRECTED, DOWN = Severity.FAULT, Severity.CORRECTED, Severity.LINK_DOWN
MACHINE, NVME = "machine", "nvme3"
_CALLED = {
    "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus.": "Xid 79: GPU has",
    "NVRM: Xid (PCI:0000:1b:00): 48, pid='<unknown>', DBE": "Xid 48: uncorrectable ECC",
    "NVRM: Xid (PCI:0000:1b:00): 74, pid=9, NVLink: fatal error": "Xid 74: NVLink error",
    "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 95, pid=9, Uncontained": "Xid 95: uncontained",
    "NVRM: Xid (PCI:0000:1b:00): 999, something new": "Xid 999: see NVIDIA",
}
"""Lines that have a text of their own in an event."""
EVENTS = (
    *((FAULT, GPU, line) for line in _CALLED),
    (FAULT, GPU, f"NVRM: Xid (PCI:{GPU}): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004505c6)"),
    (CORRECTED, GPU, f"NVRM: Xid (PCI:{GPU}): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0)"),
    (CORRECTED, GPU, f"NVRM: Xid (PCI:{GPU}): 121, pid=9, C2C Link corrected error"),
    (FAULT, f"{GPU}.0", f"NVRM: GPU {GPU}.0: GPU has fallen off the bus."),
    (FAULT, f"{GPU}.0", f"NVRM: GPU {GPU}.0: RmInitAdapter failed! (0x62:0xffff:2477)"),
    (FAULT, MACHINE, "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60"),
    (FAULT, f"{GPU}.0", f"nvidia {GPU}.0: probe with driver nvidia failed with error -1"),
    (
        FAULT,
        f"{GPU}.0",
        f"mlx5_core {GPU}.0: print_health_info:431:(pid 0): Health issue observed, High "
        "temperature, severity(2) CRITICAL:",
    ),
    (FAULT, f"{GPU}.0", f"NVRM: The NVIDIA GPU {GPU}.0"),
    (FAULT, f"{GPU}.0", rf"NVRM: The NVIDIA GPU {GPU}.0\x0aNVRM: (PCI ID: 10de:2330) installed"),
    (FAULT, f"{GPU}.0", f"amdgpu {GPU}.0: amdgpu: device lost from bus!"),
    (FAULT, f"{GPU}.0", f"amdgpu {GPU}.0: amdgpu: Fatal error during GPU init"),
    (FAULT, f"{GPU}.0", f"amdgpu {GPU}.0: amdgpu: GPU reset(3) failed"),
    (FAULT, f"{GPU}.0", f"amdgpu {GPU}.0: {{1}}uncorrectable hardware error(ERREVENT_ATHUB) found"),
    (FAULT, f"{GPU}.0", f"amdgpu {GPU}.0: 2 new uncorrectable hardware errors detected in umc"),
    (
        CORRECTED,
        f"{GPU}.0",
        f"amdgpu {GPU}.0: amdgpu: socket: 4, die: 0 10 correctable hardware errors detected in gfx",
    ),
    (FAULT, NIC, f"pcieport {NIC}: DPC: containment event, status:0x1f01 source:0x0000"),
    (FAULT, NIC, f"nvidia-nvswitch3: SXid (PCI:{NIC}): 20034, Fatal, Link 30 fault"),
    (CORRECTED, NIC, f"nvidia-nvswitch0: SXid (PCI:{NIC}): 20009, Non-fatal, Link 28 RX Short"),
    (CORRECTED, NIC, f"mlx5_core {NIC}: PCIe Bus Error: severity=Corrected, type=Physical Layer"),
    (CORRECTED, NIC, f"nvidia {NIC}: PCIe Bus Error: severity=Correctable, type=Data Link"),
    (FAULT, NIC, f"nvme {NIC}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Data"),
    (FAULT, NIC, f"pcieport {NIC}: AER: Uncorrected (Fatal) error received: {NIC}"),
    (FAULT, NIC, f"pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error received from {NIC}"),
    (FAULT, NIC, f"pcieport {NIC}: AER: Uncorrectable (Fatal) error received from 0000:00:00.0"),
    (FAULT, NIC, f"mlx5_core: probe of {NIC} failed with error -22"),
    (FAULT, NIC, f"mlx5_core {NIC}: probe with driver mlx5_core failed with error -5"),
    (FAULT, NIC, f"mlx5_core {NIC}: poll_health:800:(pid 0): device's health compromised - miss"),
    (FAULT, NIC, f"mlx5_core {NIC}: health_recover:9:(pid 5): health recovery flow aborted, PCI"),
    (FAULT, NIC, f"mlx5_core {NIC}: print_health_info:424:(pid 0): assert_var[0] 0x00000001"),
    (FAULT, NIC, f"mlx5_core {NIC}: print_health_info:430:(pid 0): synd 0x8: unrecoverable error"),
    (FAULT, NIC, f"mlx5_core {NIC}: wait_func:1:(pid 9): NOP(0x80d) timeout. Will cause a leak"),
    (FAULT, NIC, f"mlx5_core {NIC}: Port module event[error]: module 0, Cable error, High"),
    (FAULT, NIC, f"bnxt_en {NIC} ens1f0np0: Fatal firmware reset event, data1: 0x1, data2: 0x0"),
    (FAULT, NIC, f"bnxt_en {NIC} ens1f0np0: Firmware fatal reset event, data1: 0x1, data2: 0x0"),
    (FAULT, NIC, f"ice {NIC} ens1f0: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 5008 ms"),
    (FAULT, "ens1f0", "NETDEV WATCHDOG: ens1f0 (ice): transmit queue 12 timed out"),
    (FAULT, NVME, "nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10"),
    (FAULT, NVME, "nvme nvme3: Device not ready; aborting reset, CSTS=0x1"),
    (FAULT, NVME, "nvme nvme3: Disabling device after reset failure: -19"),
    (FAULT, NVME, "nvme nvme3: I/O tag 24 (1018) opcode 0x2 QID 7 timeout, reset controller"),
    (FAULT, "nvme3n1", "I/O error, dev nvme3n1, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1"),
    (FAULT, "nvme3n1", "blk_update_request: I/O error, dev nvme3n1, sector 8 op 0x1:(WRITE)"),
    (FAULT, "sdb", "critical medium error, dev sdb, sector 1234 op 0x0:(READ) flags 0x0"),
    (FAULT, "md0", "md/raid1:md0: Disk failure on sdb1, disabling device."),
    (FAULT, "dm-0", "EXT4-fs error (device dm-0): ext4_find_entry:1455: inode #2: comm bash"),
    (FAULT, "sda2", "XFS (sda2): Metadata corruption detected at xfs_agf_read_verify+0x4f"),
    (FAULT, "nvme3n1", "XFS (nvme3n1): log I/O error -5"),
    (FAULT, MACHINE, "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400"),
    (FAULT, MACHINE, "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 5: be00000000"),
    # As written if no EDAC driver decodes them.
    (CORRECTED, MACHINE, "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 8c00004000010091"),
    (FAULT, MACHINE, "{1}[Hardware Error]: event severity: fatal"),
    (CORRECTED, MACHINE, "{2}[Hardware Error]: event severity: corrected"),
    (CORRECTED, MACHINE, "mce: [Hardware Error]: Machine check events logged"),
    (FAULT, MACHINE, "[Hardware Error]: Uncorrected, software restartable error."),
    (CORRECTED, MACHINE, "[Hardware Error]: Corrected error, no action required."),
    (FAULT, MACHINE, "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx"),
    (FAULT, "GPU3", "NVRM: GPU3 knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's mask failed!"),
    (FAULT, f"{GPU}.0", f"amdgpu {GPU}.0: amdgpu: GPU reset begin!"),
    (FAULT, f"{GPU}.0", f"amdgpu {GPU}.0: GPU reset begin!. Source:  1"),
    (FAULT, NIC, f"mlx5_core {NIC} eth3: TX timeout detected"),
    (FAULT, NIC, f"bnxt_en {NIC} ens1f0np0: TX timeout detected, starting reset task!"),
    (FAULT, NIC, f"ice {NIC} ens1f0: tx_timeout: VSI_num: 9, Q 5, NTC: 0x44, HW_HEAD: 0x44"),
    (FAULT, NIC, f"ixgbe {NIC} eno1: Detected Tx Unit Hang"),
    (FAULT, NIC, f"mlx5_core {NIC} eth3: Error cqe on cqn 0x42c, ci 0x2f, TXQ-SQ 0x11a"),
    (FAULT, NIC, f"bnxt_en {NIC} ens1f0np0: Error (timeout: 500015) msg {{0x41 0x1f}} len:0"),
    (FAULT, NIC, f"ice {NIC}: HMC Error"),
    (FAULT, NIC, f"ena {NIC} eth0: Found a Tx that wasn't completed on time, qid 5, index 504."),
    (FAULT, NIC, f"pcieport {NIC}: pciehp: Slot(8): Link Down"),
    (FAULT, "CPU#12", "watchdog: BUG: soft lockup - CPU#12 stuck for 52s! [ksoftirqd/12:80]"),
    (FAULT, "CPU#3", "NMI watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]"),
    (FAULT, "cpu 2", "NMI watchdog: Watchdog detected hard LOCKUP on cpu 2"),
    (FAULT, MACHINE, "BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 33s!"),
    (FAULT, MACHINE, "rcu: INFO: rcu_preempt self-detected stall on CPU"),
    (FAULT, MACHINE, "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"),
    (FAULT, MACHINE, "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 0 } 6368"),
    (FAULT, MACHINE, "INFO: rcu_sched self-detected stall on CPU { 0}  (t=6000 jiffies g=791271)"),
    (FAULT, MACHINE, "INFO: task python3:4711 blocked for more than 122 seconds."),
    (FAULT, MACHINE, "INFO: task pt_data pin:77 blocked in I/O wait for more than 120 seconds."),
    (FAULT, MACHINE, "Memory failure: 0x1b3c5: recovery action for dirty LRU page: Recovered"),
    (FAULT, MACHINE, "Memory failure: 0x1b3c5: Sending SIGBUS to python3:4711 due to hardware"),
    (FAULT, MACHINE, "mce: Uncorrected hardware memory error in user-access at 12f4c0"),
    (FAULT, MACHINE, "BUG: unable to handle page fault for address: ffffb2c0"),
    (FAULT, "MC0", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"),
    (CORRECTED, "MC1", "EDAC MC1: 12 CE memory scrubbing error on CPU_SrcID#0"),
)
BENIGN = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.15",
    f"NVRM: Xid (PCI:{GPU}): 31, pid=12, name=python, MMU Fault",
    *(f"NVRM: Xid (PCI:{GPU}): {xid}, pid=12, name=python" for xid in (13, 43, 45, 63, 68, 69)),
    f"NVRM: Xid (PCI:{GPU} GPU-I:05): 43, pid=12, name=python",
    f"NVRM: Xid (PCI:{GPU}): 137, pid=12, name=python, NVLink: FLA privilege error",
    f"NVRM: Xid (PCI:{GPU}): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)",
    f"NVRM: The NVIDIA GPU {GPU}.0 (PCI ID: 10de:1b80)",  # is not supported
    f"amdgpu {GPU}.0: socket: 4, die: 0, 0 uncorrectable hardware errors detected in total in umc",
    f"amdgpu {GPU}.0: GPU reset begin!. Source:  5",  # a user asked for it
    f"amdgpu {GPU}.0: amdgpu: SMU is resumed successfully!",
    f"mlx5_core {NIC} eth3: TX timeout on queue: 7, SQ: 0x11a, CQ: 0x42c, SQ Cons: 0x9",
    "NVRM: GPU0 knvlinkCoreShutdownDeviceLinks_IMPL: Need to shutdown all links unilaterally",
    f"pcieport {NIC}: pciehp: Slot(8): Link Up",
    f"ice {NIC}: PTP init successful",
    f"ena {NIC} eth0: Local page cache is disabled for less than 16 channels",
    f"bnxt_en {NIC} ens1f0np0: renamed from eth0",
    "rcu: Hierarchical RCU implementation.",
    "rcu: INFO: rcu_tasks kthread starting",
    "watchdog: Delayed init of the lockup detector failed: -19",
    "workqueue: drm_fb_helper hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
    "INFO: lockdep is turned off.",
    "traps: python3[4711] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]",
    "soft offline: 0x1b3c5: page migrated",
    f"bnxt_en {NIC} ens1f0np0: Solicited firmware reset event, data1: 0x1, data2: 0x0",
    "NETDEV WATCHDOG: enxbe3af2b6059f (cdc_ether): transmit queue 0 timed out",
    "cdc_ether 1-14.2:2.0 enxbe3a: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5008 ms",
    "nvme nvme3: Shutdown timeout set to 10 seconds",
    "nvme nvme3: I/O 12 (I/O Cmd) QID 1 timeout, completion polled",
    "I/O error, dev nvme3n1, sector 2048 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 2",
    "I/O error, dev sda, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    "critical medium error, dev sr0, sector 1234 op 0x0:(READ) flags 0x0 phys_seg 1",
    "EXT4-fs (nvme3n1): mounted filesystem with ordered data mode. Quota mode: none.",
    "XFS (nvme3n1): Ending clean mount",
    f"NVRM: GPU {GPU}.0: is already bound to nvidia.",
    f"nvidia-nvswitch3: SXid (PCI:{NIC}): 28006, Severity 0 Engine instance 46 Sub-engine 00",
    f"nvidia-nvswitch3: SXid (PCI:{NIC}): 28006, Data {{0x00000000, 0x00000000, 0x00000000}}",
    f"pcieport {NIC}: DPC: enabled with IRQ 30",
    f"mlx5_core {NIC}: firmware version: 28.39.1002",
    f"mlx5_core {NIC}: Port module event: module 0, Cable plugged",
    f"mlx5_core {NIC}: print_health_info:430:(pid 0): synd 0x0: no error",
    f"mlx5_core {NIC}: mlx5_cmd_out_err:8:(pid 7): ACCESS_REG(0x805) failed, syndrome (0x5add95)",
    f"mlx5_core {NIC}: mlx5_cmd_check:7:(pid 9): CREATE_MKEY(0x200) failed, syndrome (0x35e6ec)",
    f"pcieport {NIC}: AER: enabled with IRQ 30",
    "{2}[Hardware Error]: It has been corrected by h/w and requires no further action",
    "{2}[Hardware Error]:   section_type: memory error",
    f"pcieport {NIC}: AER: Correctable error message received from {NIC}",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "MCE: In-kernel MCE decoding enabled.",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module skx_edac",
    "Command line: BOOT_IMAGE=/vmlinuz note=Xid",
    'audit: type=1400 comm="NVRM: Xid (PCI:0000:1b:00): 79"',
    f"mlx5_core {NIC} eth2: Link up",
    f"mlx5_core {NIC} eth3: Link down",  # the link was never up
)
USERS = (
    "Nov 22 06:54:23 gpu17 python[812]: {}",
    "Nov 22 06:54:23 gpu17 systemd: {}",
    "2026-11-22T06:54:23+0000 gpu17 exporter[9]: {}",
    "12,1291,5123457,-;{}",  # facility 1: a program wrote to /dev/kmsg
    "[    5.1] systemd[1]: Started {}",
    "{}",
)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_events_are_found_in_every_form(form: str) -> None:
    for severity, device, line in EVENTS:
        [event] = parse("\n".join([form.format("x: y"), form.format(line), form.format("z")]))
        assert (event.severity, event.device) == (severity, device), line
        assert event.what.startswith(_CALLED.get(line, ("Xid", "PCIe AER", line))), event
        assert event.when


def test_usual_lines_are_no_events() -> None:
    for form in FORMS.values():
        assert parse("\n".join(form.format(line) for line in BENIGN)) == (), form


@pytest.mark.parametrize("form", USERS)
def test_lines_written_by_programs_are_no_events(form: str) -> None:
    assert parse("\n".join(form.format(line) for _, _, line in EVENTS)) == ()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"mlx5_core {NIC} eth2: Link {{}}", "eth2"),
        (f"ixgbe {NIC} eno1: NIC Link is {{}} 10 Gbps", "eno1"),
        (f"igb {NIC} eno2: igb: eno2 NIC Link is {{}} 1000 Mbps Full Duplex", "eno2"),
        (f"igc {NIC} enp4s0: NIC Link is {{}} 2500 Mbps Full Duplex", "enp4s0"),
        (f"tg3 {NIC} em1: Link is {{}} at 1000 Mbps, full duplex", "em1"),
        (f"bnxt_en {NIC} ens1f0np0: NIC Link is {{}}, 100000 Mbps full duplex", "ens1f0np0"),
        ("e1000e: eno1 NIC Link is {} 1000 Mbps Full Duplex", "eno1"),
        (f"gve {NIC} ens11: Device link is {{}}.", "ens11"),
        ("mlx4_en: eth2: Link {}", "eth2"),
        ("bond0: link {}", "bond0"),
        ("bond0: (slave eth2): link status definitely {}, disabling slave", "eth2"),
        ("bond0: link status definitely {} for interface eth2, disabling it", "eth2"),
        ("bonding: bond0: link status definitely {} for interface eth2", "eth2"),
    ],
)
def test_a_link_that_was_up_and_went_down_is_an_event(line: str, name: str) -> None:
    states = ["Down", "Up", "Down", "Up"]
    if "definitely" in line:
        states = [state.lower() for state in states]
    for form in FORMS.values():
        [event] = parse("\n".join(form.format(line.format(state)) for state in states))
        assert (event.severity, event.device) == (DOWN, name), form


def test_systemd_networkd_sees_a_link_go_down() -> None:
    def line(form: str, state: str, name: str = "ens1f0") -> str:
        own = form.replace(" kernel: [    5.123456]", " kernel:").replace("[  T812]", "")
        return own.replace(" kernel: {}", " {}").format(f"systemd-networkd[812]: {name}: {state}")

    lost, gained = "Lost carrier", "Gained carrier"
    for form in FORMS.values():
        own = [line(form, state) for state in (lost, gained, lost, gained)]
        kernel = form.format(f"mlx5_core {NIC} ens1f0: Link down")
        for lines in (own, [*own[:3], kernel, own[3]]):
            [event] = parse("\n".join(lines))
            assert (event.severity, event.device) == (DOWN, "ens1f0"), form


def test_a_link_loss_reported_by_nic_and_bond_counts_once() -> None:
    nic, bond = f"mlx5_core {NIC} eth2: Link {{}}", "bond0: (slave eth2): link status definitely {}"
    states = ("up", "down", "up")
    lines = [f"[    5.1] {line.format(state)}" for state in states for line in (nic, bond)]
    assert [event.device for event in parse("\n".join(lines))] == ["eth2"]


def test_a_record_of_the_firmware_names_its_device_later() -> None:
    record = (
        "{3}[Hardware Error]: event severity: recoverable",
        "{3}[Hardware Error]:   section_type: PCIe error",
        f"{{3}}[Hardware Error]:   device_id: {NIC}",
        "{4}[Hardware Error]: event severity: corrected",
        f"{{5}}[Hardware Error]:   device_id: {NIC}",
    )
    expected = [(FAULT, NIC), (CORRECTED, MACHINE)]
    for form in FORMS.values():
        found = parse("\n".join(form.format(line) for line in record))
        assert [(event.severity, event.device) for event in found] == expected, form


def test_each_port_of_an_rdma_device_has_a_link_of_its_own() -> None:
    line = f"[    5.1] mlx4_core {NIC} mlx4_0: Port: {{}} Link {{}}"
    states = ((1, "ACTIVE"), (2, "DOWN"), (1, "DOWN"), (1, "INIT"), (1, "ACTIVE"))
    [event] = parse("\n".join(line.format(*state) for state in states))
    assert (event.severity, event.device) == (DOWN, "mlx4_0:1")


def test_the_time_since_boot_of_a_record_is_a_time_of_day() -> None:
    [event] = parse(FORMS["kmsg"].format(EVENTS[0][2]))
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    found = datetime.fromisoformat(event.when).timestamp()
    assert abs(found - (booted + 5.123456)) < 2.0


def test_the_time_that_a_log_covers() -> None:
    for form in FORMS.values():
        first, later = form.format("Linux version 6.8.0 (gcc)"), form.format("x: y")
        early = form.format("microcode: updated early")
        assert since("\n".join([early, first, later])) == "", form
        assert since(later), form
        assert since("\n".join([later] * 50 + [first])), form


Printing = Callable[..., None]
WHOLE = "[    0.000000] Linux version 6.8.0\n[    5.1] x: y"


@pytest.fixture
def printing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Printing:
    """Makes programs that print this text, and end with this status; there are no others."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(text: str, status: int = 0, names: Sequence[str] = ("dmesg", "journalctl")) -> None:
        for name in names:
            write_program(tmp_path / name, f"#!/bin/sh\nprintf '%s' '{text}'\nexit {status}\n")

    return make


@pytest.mark.parametrize("kind", ["pipe", "null", "file"])
def test_reading_ends_if_a_container_replaces_the_log(
    tmp_path: Path, printing: Printing, kind: str
) -> None:
    path = Path("/dev/null") if kind == "null" else tmp_path / "kmsg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("no log\n")
    printing(WHOLE)
    assert kernel_log.read(str(path)) == Log((), "")


def test_the_log_of_the_kernel_comes_before_that_of_programs(
    tmp_path: Path, printing: Printing
) -> None:
    printing("[    9.1] x: y")
    kmsg = tmp_path / "kmsg"
    kmsg.write_text("6,1,0,-;Linux version 6.8.0\n")
    assert kernel_log.read(str(kmsg)) == Log((), "")


def test_a_program_that_fails_is_not_believed(printing: Printing) -> None:
    printing("[    9.1] x: y", 1)
    with pytest.raises(OSError, match=r"dmesg: .*journalctl: "):
        kernel_log.read("/dev/null")
    printing(WHOLE, names=("journalctl",))
    assert kernel_log.read("/dev/null") == Log((), "")


@pytest.mark.parametrize("text", ["", "\n", "-- No entries --\n", "Hint: not seeing messages\n"])
def test_a_log_without_kernel_lines_is_unreadable(printing: Printing, text: str) -> None:
    assert since(text) is None
    printing(text)
    with pytest.raises(OSError, match="no line of the kernel"):
        kernel_log.read("/dev/null")


def test_times_of_events_are_known_where_the_log_has_zone_or_uptime() -> None:
    line = f"NVRM: Xid (PCI:{GPU}): 79, pid=1234, GPU has fallen off the bus."
    booted_s = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    at_s = datetime.fromisoformat("2026-11-22T06:54:23+00:00").timestamp()
    for form, text in FORMS.items():
        [event] = parse(text.format(line))
        if event.when.startswith("2026") and "kmsg" not in form:
            assert event.at_s == pytest.approx(at_s, abs=1), form
        elif " 22 " in event.when or "Nov" in event.when:
            assert event.at_s is None, form
        else:
            since_boot_s = 1234567.1 if "long" in form else 5.1
            assert event.at_s == pytest.approx(booted_s + since_boot_s, abs=2), form
