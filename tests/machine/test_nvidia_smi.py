"""NVIDIA's accelerators from what `nvidia-smi -q` prints, in the words of several drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.checks.node.accelerators import AcceleratorsAreAsPromised
from pytest_mnode.machine.model import read_accelerators
from pytest_mnode.machine.nvidia_smi import _sections, parse_query, read_nvidia_smi
from pytest_mnode.machine.nvml import Accelerator
from tests.criteria.preflight.made import asked, everyone, healthy, promising, with_facts
from tests.programs import write_program

HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Sat Nov 28 20:15:01 2026
Driver Version                            : 570.86.15
CUDA Version                              : 12.8

Attached GPUs                             : 2
"""
GPU = """GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Product Architecture                  : Hopper
    Persistence Mode                      : Enabled
    Addressing Mode                       : HMM
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-5a
    VBIOS Version                         : 96.00.89.00.01
    GSP Firmware Version                  : 570.86.15
    GPU Recovery Action                   : None
    PCI
        Bus Id                            : 00000000:1B:00.0
    Fan Speed                             : N/A
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 546 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 5
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 1
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 5
            DRAM Uncorrectable            : 1
            SRAM Threshold Exceeded       : No
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 1
        Channel Repair Pending            : No
        TPC Repair Pending                : No
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2559 bank(s)
            High                          : 1 bank(s)
            Partial                       : 0 bank(s)
            Low                           : 0 bank(s)
            None                          : 0 bank(s)
    Processes                             : None
"""
MIG = """    MIG Device
        Index                             : 0
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 9
        FB Memory Usage
            Total                         : 40448 MiB
    Utilization
"""
V100 = (
    GPU[: GPU.index("    ECC Errors\n")]
    + """    Ecc Errors
    ECC Errors
        Volatile
            Single Bit
                Device Memory             : 0
                Total                     : 4
            Double Bit
                Device Memory             : 0
                Total                     : 0
    Retired Pages
        Single Bit ECC                    : 2
        Double Bit ECC                    : 0
        Pending Page Blacklist            : No
    Remapped Rows                         : N/A
"""
)
SECOND = GPU.replace("1B", "43").replace("GPU-5a", "GPU-5b")
LOST = "Unable to determine the device handle for GPU1: 0000:43:00.0: Unknown Error\n"
LOST_ALONE = "Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.  Reboot it.\n"


def test_a_healthy_gpu() -> None:
    first, second = parse_query(HEAD + GPU + "\n" + SECOND)
    assert first == Accelerator(
        index=0,
        uuid="GPU-5a",
        pci_address="0000:1b:00.0",
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=81559 << 20,
        ecc_enabled=True,
        ecc_uncorrected=0,
        ecc_corrected=5,
        ecc_uncorrected_ever=2,
        sram_exceeded=False,
        remapped_rows_pending=False,
        remapped_rows_failed=False,
        banks_without_spare=0,
        recovery="none",
        vbios="96.00.89.00.01",
        gsp="570.86.15",
        throttled=(),
        persistence=True,
        mig_enabled=False,
    )
    assert (second.index, second.pci_address, second.uuid) == (1, "0000:43:00.0", "GPU-5b")


PROMISE = promising(
    "{accelerators: {ecc: 'on', ecc_errors_at_most: 0, persistence: 'on', throttling: none, "
    "mig: 'off', remapped_rows: none, sram_threshold: kept, recovery: none}}",
    accelerators="1",
)


def judged(printed: str) -> tuple[set[str], str]:
    """Verdicts other than pass, and what is said, of a node whose nvidia-smi prints this."""
    survey = everyone(healthy(2), accelerators=parse_query(HEAD + GPU))
    survey = with_facts(survey, 1, accelerators=parse_query(HEAD + printed))
    found = asked(AcceleratorsAreAsPromised, survey, PROMISE)
    assert {str(one.verdict) for one in found["gpu0"]} == {"pass"}
    every = found["gpu1"]
    return {str(one.verdict) for one in every} - {"pass"}, " ".join(one.note for one in every)


@pytest.mark.parametrize(
    ("line", "instead", "verdict", "words"),
    [
        ("SEC-DED    : 0", "SEC-DED    : 3", "fail", "accelerator 0: SRAM SEC-DED 3"),
        ("DRAM Uncorrectable            : 0", "DRAM Uncorrectable : 2", "fail", "DRAM 2"),
        ("Threshold Exceeded       : No", "Threshold Exceeded       : Yes", "fail", "exceeded"),
        ("        Pending                           : No\n", "        Pending : Yes\n", "fail", ""),
        ("Failure Occurred        : No", "Failure Occurred        : Yes", "fail", "failed"),
        ("None                          : 0", "None : 2", "fail", "no spare row left in 2 banks"),
        ("Channel Repair Pending            : No", "Channel Repair Pending : Yes", "fail", "chan"),
        ("Recovery Action                   : None", "Recovery Action : Reset", "fail", "reset"),
        (
            "Recovery Action                   : None",
            "Recovery Action : GPU Reset",
            "fail",
            "reset",
        ),
        ("HW Slowdown                       : Not", "HW Slowdown : ", "fail", "HwSlowdown"),
        ("SEC-DED    : 0", "SEC-DED    : ERR!", "inconclusive", "reset it, then diagnose"),
        ("SEC-DED    : 0", "SEC-DED    : Unknown Error", "inconclusive", "reset it"),
        ("Persistence Mode                      : E", "Persistence : E", "inconclusive", "report"),
        ("GPU Recovery Action                   : None\n", "\n", "inconclusive", "not report it"),
        ("81559 MiB", "GPU requires reset", "fail", "nvidia-smi --gpu-reset"),
        ("81559 MiB", "[GPU requires restart]", "fail", "nvidia-smi --gpu-reset"),
        (": NVIDIA H100 80GB HBM3", ": GPU is lost", "fail", "power-cycle the node"),
        ("Clocks Event Reasons", "Clocks Throttle Reasons", None, ""),
        ("SRAM Correctable              : 0", "SRAM Correctable : N/A", None, ""),
        ("    Processes                             : None\n", MIG, None, ""),
    ],
)
def test_what_a_line_of_it_means(line: str, instead: str, verdict: str | None, words: str) -> None:
    assert line in GPU
    verdicts, said = judged(GPU.replace(line, instead))
    assert verdicts == ({verdict} if verdict else set())
    assert words in said


def test_pages_are_retired_before_ampere() -> None:
    [gpu] = parse_query(HEAD + V100)
    assert (gpu.ecc_uncorrected, gpu.ecc_corrected, gpu.pages_pending) == (0, 4, False)
    assert gpu.remapped_rows_failed is None
    verdicts, said = judged(V100.replace("Blacklist            : No", "Blacklist : Yes"))
    assert "fail" in verdicts
    assert "retirement of a page pending" in said


def test_a_gpu_that_is_lost_is_named() -> None:
    first, second = parse_query(LOST + HEAD + GPU)
    assert (first.answers, second.answers, second.pci_address) == (True, False, "0000:43:00.0")
    assert "Unknown Error" in second.problem
    assert parse_query("\n".join(f"  {line}" for line in GPU.splitlines())) == parse_query(GPU)
    [alone] = parse_query(LOST_ALONE)
    assert (alone.pci_address, alone.gone) == ("0000:1b:00.0", True)
    verdicts, said = judged(LOST_ALONE)
    assert verdicts == {"fail", "inconclusive"}
    assert "power-cycle" in said


@pytest.mark.parametrize(
    ("printed", "status", "why"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "reboot, or reload it"),
        ("No devices were found", 6, "the driver took none"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            9,
            "modp",
        ),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "/dev/nvidia*"),
        ("Unable to determine the device handle for GPU 0: Unknown Error", 255, "power-cycle"),
        (HEAD.strip(), 0, "no GPU"),
        ("", 0, "no GPU"),
    ],
)
def test_why_it_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, status: int, why: str
) -> None:
    write_program(tmp_path / "nvidia-smi", f"#!/bin/sh\ncat <<'E'\n{printed}\nE\nexit {status}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    answer = read_nvidia_smi()
    assert answer.found is None
    assert why in answer.why


def test_a_damaged_inforom_is_said_beside_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = HEAD + GPU + "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"
    write_program(tmp_path / "nvidia-smi", f"#!/bin/sh\ncat <<'E'\n{printed}\nE\nexit 14\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    [gpu] = read_nvidia_smi().found or ()
    assert (gpu.inforom_valid, gpu.ecc_uncorrected) == (False, 0)


def test_it_is_asked_where_nvml_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "nvidia-smi", f"#!/bin/sh\ncat <<'E'\n{HEAD + GPU}\nE\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    [gpu] = read_accelerators(tmp_path)
    assert [gpu] == list(read_nvidia_smi().found or ())


def test_the_first_of_two_fields_of_one_name_counts() -> None:
    lines = ["GPU 00000000:17:00.0", "    ECC", "        Total : 1", "        Total : 2"]
    [(address, fields)] = _sections(lines)
    assert (address, fields) == ("00000000:17:00.0", {("ECC", "Total"): "1"})
