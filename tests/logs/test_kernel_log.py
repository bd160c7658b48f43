"""Lines of the kernel log, composed in every form that its readers print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mnode.logs import kernel_log
from pytest_mnode.logs.kernel_log import Log, Severity, parse, since

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
    "journalctl short-monotonic": "[    5.123456] gpu17 kernel: {}",
}
GPU, NIC = "0000:1b:00", "0000:18:00.0"
FAULT, CORRECTED, DOWN = Severity.FAULT, Severity.CORRECTED, Severity.LINK_DOWN
EVENTS = {
    f"NVRM: Xid (PCI:{GPU}): 79, pid=1234, GPU has fallen off the bus.": (
        FAULT,
        GPU,
        "Xid 79: GPU",
    ),
    f"NVRM: Xid (PCI:{GPU}): 48, pid='<unknown>', DBE": (FAULT, GPU, "Xid 48: uncorrectable ECC"),
    f"NVRM: Xid (PCI:{GPU}): 74, pid=9, NVLink: fatal error": (FAULT, GPU, "Xid 74: NVLink error"),
    f"NVRM: Xid (PCI:{GPU} GPU-I:05): 95, pid=9, Uncontained": (
        FAULT,
        GPU,
        "Xid 95: uncontained",
    ),
    f"NVRM: GPU {GPU}.0: GPU has fallen off the bus.": (FAULT, f"{GPU}.0", "NVRM: GPU"),
    f"NVRM: GPU {GPU}.0: RmInitAdapter failed! (0x62:0xffff:2477)": (
        *(FAULT, f"{GPU}.0"),
        "NVRM: GPU",
    ),
    f"pcieport {NIC}: DPC: containment event, status:0x1f01 source:0x0000": (
        *(FAULT, NIC),
        "pcieport",
    ),
    f"NVRM: Xid (PCI:{GPU}): 999, something new": (FAULT, GPU, "Xid 999: see NVIDIA"),
    f"nvidia-nvswitch3: SXid (PCI:{NIC}): 20034, Fatal, Link 30 fault": (
        FAULT,
        NIC,
        "nvidia-nvswitch3: SXid",
    ),
    f"mlx5_core {NIC}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)": (
        *(CORRECTED, NIC),
        "PCIe AER Corrected",
    ),
    f"nvidia {GPU}.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction": (
        *(FAULT, f"{GPU}.0"),
        "PCIe AER Uncorrected (Non-Fatal)",
    ),
    f"pcieport {NIC}: AER: Uncorrected (Fatal) error received: {NIC}": (FAULT, NIC, "PCIe AER"),
    f"mlx5_core {NIC}: poll_health:800:(pid 0): device's health compromised - miss count": (
        *(FAULT, NIC),
        "mlx5_core",
    ),
    f"mlx5_core {NIC}: health_recover:9:(pid 5): health recovery flow aborted, PCI is dead": (
        *(FAULT, NIC),
        "mlx5_core",
    ),
    f"mlx5_core {NIC}: print_health_info:424:(pid 0): assert_var[0] 0x00000001": (
        *(FAULT, NIC),
        "mlx5_core",
    ),
    f"mlx5_core {NIC}: print_health_info:430:(pid 0): synd 0x8: unrecoverable hardware error": (
        *(FAULT, NIC),
        "mlx5_core",
    ),
    f"mlx5_core {NIC}: wait_func:1151:(pid 9): cmd[3]: CREATE_CQ(0x400) timeout. "
    "Will cause a leak of a command resource": (*(FAULT, NIC), "mlx5_core"),
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400": (
        *(FAULT, "machine"),
        "mce",
    ),
    "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 5: be00000000800400": (
        *(FAULT, "machine"),
        "mce",
    ),
    # As written if no EDAC driver decodes them.
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 8c00004000010091": (
        *(CORRECTED, "machine"),
        "mce",
    ),
    f"nvidia-nvswitch0: SXid (PCI:{NIC}): 20009, Non-fatal, Link 28 RX Short Error Rate": (
        *(CORRECTED, NIC),
        "nvidia-nvswitch0: SXid",
    ),
    f"NVRM: Xid (PCI:{GPU}): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)": (
        *(CORRECTED, GPU),
        "Xid 145",
    ),
    f"NVRM: Xid (PCI:{GPU}): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004505c6)": (
        *(FAULT, GPU),
        "Xid 149",
    ),
    "{1}[Hardware Error]: event severity: fatal": (FAULT, "machine", "{1}[Hardware"),
    "{2}[Hardware Error]: event severity: corrected": (CORRECTED, "machine", "{2}[Hardware"),
    "mce: [Hardware Error]: Machine check events logged": (CORRECTED, "machine", "mce"),
    "[Hardware Error]: Uncorrected, software restartable error.": (FAULT, "machine", "[Hardware"),
    "[Hardware Error]: Corrected error, no action required.": (CORRECTED, "machine", "[Hardware"),
    f"nvidia {GPU}.0: PCIe Bus Error: severity=Correctable, type=Data Link": (
        *(CORRECTED, f"{GPU}.0"),
        "PCIe AER Correctable",
    ),
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0": (FAULT, "MC0", "EDAC"),
    "EDAC MC1: 12 CE memory scrubbing error on CPU_SrcID#0": (CORRECTED, "MC1", "EDAC"),
}
BENIGN = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.15",
    f"NVRM: Xid (PCI:{GPU}): 31, pid=12, name=python, MMU Fault",
    f"NVRM: Xid (PCI:{GPU}): 43, pid=12, name=python",
    f"NVRM: Xid (PCI:{GPU} GPU-I:05): 43, pid=12, name=python",
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
    for line, (severity, device, what) in EVENTS.items():
        [event] = parse("\n".join([form.format("x: y"), form.format(line), form.format("z")]))
        assert (event.severity, event.device) == (severity, device), line
        assert event.what.startswith(what), event
        assert event.when


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_usual_lines_are_no_events(form: str) -> None:
    assert parse("\n".join(form.format(line) for line in BENIGN)) == ()


@pytest.mark.parametrize("form", USERS)
def test_lines_written_by_programs_are_no_events(form: str) -> None:
    assert parse("\n".join(form.format(line) for line in EVENTS)) == ()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
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
        ("mlx4_en: eth2: Link {}", "eth2"),
        ("bond0: link {}", "bond0"),
        ("bond0: (slave eth2): link status definitely {}, disabling slave", "eth2"),
        ("bond0: link status definitely {} for interface eth2, disabling it", "eth2"),
        ("bonding: bond0: link status definitely {} for interface eth2", "eth2"),
    ],
)
def test_a_link_that_was_up_and_went_down_is_an_event(form: str, line: str, name: str) -> None:
    states = ["Down", "Up", "Down", "Up"]
    if "definitely" in line:
        states = [state.lower() for state in states]
    [event] = parse("\n".join(form.format(line.format(state)) for state in states))
    assert (event.severity, event.device) == (DOWN, name)


def test_a_link_loss_reported_by_nic_and_bond_counts_once() -> None:
    nic, bond = f"mlx5_core {NIC} eth2: Link {{}}", "bond0: (slave eth2): link status definitely {}"
    states = ("up", "down", "up")
    lines = [f"[    5.1] {line.format(state)}" for state in states for line in (nic, bond)]
    assert [event.device for event in parse("\n".join(lines))] == ["eth2"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_time_that_a_log_covers(form: str) -> None:
    first, later = form.format("Linux version 6.8.0 (gcc)"), form.format("x: y")
    assert since("\n".join([form.format("microcode: updated early"), first, later])) == ""
    assert since(later)
    assert since("\n".join([later] * 50 + [first]))


@pytest.mark.parametrize("kind", ["pipe", "null", "file"])
def test_reading_ends_if_a_container_replaces_the_log(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/null") if kind == "null" else tmp_path / "kmsg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("no log\n")
    assert since(kernel_log._kmsg(str(path))) is None


@pytest.mark.parametrize("text", ["", "\n", "-- No entries --\n", "Hint: not seeing messages\n"])
def test_a_log_without_kernel_lines_is_unreadable(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    assert since(text) is None
    monkeypatch.setattr(kernel_log, "_kmsg", lambda: "")
    monkeypatch.setattr(kernel_log, "_output", lambda _: text)
    with pytest.raises(OSError, match="the log shows no line of the kernel"):
        kernel_log.read()
    first = "[    0.000000] Linux version 6.8.0\n[    5.1] x: y"
    monkeypatch.setattr(kernel_log, "_output", lambda _: first)
    assert kernel_log.read() == Log((), "")
