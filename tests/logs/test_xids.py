"""Xids and SXids as drivers write them: whom they accuse, and what they ask for."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.kernel_log import parse
from pytest_mnode.logs.xids import XIDS, Action

SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "
FIVE = "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
FAULTS = (
    (
        48,
        "pid=91237, name=python3, Ch 00000010, An uncorrectable double bit error (DBE)",
        "reset the GPU",
    ),
    (48, "pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error", "reset the GPU"),
    (64, "pid=1896, name=python, Row Remapper: Fatal error, unable to remap row", "reset the GPU"),
    (
        74,
        "pid=0, name=, NVLink: fatal error detected on link 11(0x10000, 0x0, 0x0)",
        "reset the GPU",
    ),
    (79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "reboot the node"),
    (79, "GPU has fallen off the bus.", "reboot the node"),
    (92, "pid=77, name=python, High single-bit ECC error rate", "contact support"),
    (
        94,
        "pid=1234, name=python3, Ch 00000008, Contained: SM (0x1). RST: No, D-RST: No",
        "restart the program",
    ),
    (95, "pid=1234, name=python3, Ch 00000008, Uncontained: LTC TAG (0x2,0x0)", "reset the GPU"),
    (
        109,
        "pid=17978, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x5",
        "reset the GPU",
    ),
    (
        119,
        "pid=4711, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
        "reset the GPU",
    ),
    (120, "pid=0, name=, GSP task timeout @ pc:0x4a2, task: 1", "reset the GPU"),
    (122, "pid=12, name=x, SPI PMU RPC read fail", "contact support"),
    (140, "pid=12, name=x, Unrecovered ECC error", "reset the GPU"),
    (143, "pid=12, name=nvidia-persiste, GPU initialization failure", "reset the GPU"),
    (144, f"SAW_MVB Fatal XC0 i0 Link 00 {FIVE}", "reset the GPU"),
    (149, f"NETIR_LINK_EVT Fatal XC0 i0 Link -1 {FIVE}", "reset the GPU"),
    (150, f"MSE_WATCHDOG Fatal XC0 i0 Link 00 {FIVE}", "reset the GPU"),
    (
        154,
        "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "reset the GPU",
    ),
    (
        154,
        "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "reboot the node",
    ),
    (
        154,
        "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x3 (Drain P2P)",
        Action.DRAIN,
    ),
    (
        154,
        "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        Action.DRAIN_AND_RESET,
    ),
    (154, "GPU recovery action changed from 0x0 (None) to 0x2", "reboot the node"),
    (154, "GPU recovery action changed from 0x0 (None) to 0x63 (New)", "contact support"),
    (156, "Resource Retirement Event", "reset the GPU"),
    (157, "Resource Retirement Failure", "contact support"),
    (158, "pid=0, name=, GPU Fatal Timeout", "reset the GPU"),
    (159, "pid=5, name=python3, CHI Non-Data Error", Action.RESET_IF_UVM),
    (161, "Channel Retirement Failure", "contact support"),
    (999, "pid=5, name=python3, something new", "contact support"),
)
CORRECTED = (
    (121, "pid=9, C2C Link corrected error", ""),
    (145, f"RLW_RXPIPE Nonfatal XC0 i0 Link 13 {FIVE}", ""),
    (149, f"NETIR_BER_EVENT Nonfatal XC0 i0 Link 00 {FIVE}", ""),
    (160, "Channel Retirement Event", "contact support"),
    (163, "PSHC disengaged", "check cooling"),
)
NOBODYS = (
    (13, "pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0)"),
    (31, "pid=1, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT"),
    (43, "pid=1, name=python3, Ch 00000008"),
    (45, "pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149"),
    (63, "pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."),
    (68, "pid=1, name=ffmpeg, video decoder"),
    (126, "pid=1, name=python3, Ch 0000000a"),
    (137, "pid=1, name=python3, NVLink: FLA privilege error"),
    (154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"),
    (162, "PSHC reengaged"),
)


def events(number: int, text: str, gpu: str = "PCI:0000:1b:00") -> list[tuple[str, str, str]]:
    found = parse(f"[    5.1] NVRM: Xid ({gpu}): {number}, {text}")
    return [(str(one.severity), one.device, one.action) for one in found]


@pytest.mark.parametrize(("number", "text", "action"), FAULTS)
def test_failing_devices_are_accused_and_ask_for_an_action(
    number: int, text: str, action: str
) -> None:
    for gpu in ("PCI:0000:1b:00", "PCI:0000:1b:00 GPU-I:05", "0000:1b:00"):
        assert events(number, text, gpu) == [("fault", "0000:1b:00", action)]


@pytest.mark.parametrize(("number", "text", "action"), CORRECTED)
def test_corrected_errors_do_not_count_as_failures(number: int, text: str, action: str) -> None:
    assert events(number, text) == [("corrected", "0000:1b:00", action)]


@pytest.mark.parametrize(("number", "text"), NOBODYS)
def test_what_programs_cause_accuses_nobody(number: int, text: str) -> None:
    assert events(number, text) == []


@pytest.mark.parametrize(
    ("line", "severity", "action"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", "fault", Action.RESET_FABRIC),
        ("24007, Fatal, Link 44 sourcetrack timeout error (First)", "fault", Action.RESET_FABRIC),
        ("23013, Fatal, Link 12 something", "fault", Action.REBOOT),
        ("22013, Non-fatal, Link 63 Minion Link DLREQ interrupt", "corrected", ""),
        ("20012, Non-fatal, Link 2 DL interrupt", "corrected", Action.CHECK_CABLES),
        ("12028, Non-fatal, Link 32 egress non-posted PRIV error", "corrected", Action.RESTART_VM),
    ],
)
def test_switches_say_what_was_fatal(line: str, severity: str, action: str) -> None:
    [one] = parse(f"[    5.1] {SWITCH}{line}")
    assert (one.severity, one.device, one.action) == (severity, "0000:05:00.0", action)


def test_the_table_has_own_words_for_each() -> None:
    assert all(one.words for one in XIDS.values())
    assert {13, 31, 43, 45} <= {number for number, one in XIDS.items() if one.blame == "nobody"}
