"""AMD's accelerators from the JSON of amd-smi and rocm-smi, as several releases print it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.machine.amdsmi import parse_amd_smi, parse_rocm_smi, read_amd_smi
from tests.programs import write_program

STATIC: dict[str, Any] = {
    "gpu": 0,
    "asic": {
        "market_name": "AMD Instinct MI300X",
        "vendor_id": "0x1002",
        "device_id": "0x74a1",
        "asic_serial": "0x5A",
    },
    "bus": {"bdf": "0000:05:00.0", "max_pcie_width": 16},
    "vbios": {"name": "AMD MI300X_HW_SRIOV_CVS_1VF", "version": "022.040.003.041.000001"},
    "ras": {"eeprom_version": "N/A", "block_state": [{"block": "UMC", "status": "ENABLED"}]},
    "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
}
METRIC: dict[str, Any] = {
    "gpu": 0,
    "ecc": {"total_correctable_count": 4, "total_uncorrectable_count": 0},
    "ecc_blocks": {"UMC": {"correctable_count": 4, "uncorrectable_count": 0}, "SDMA": "N/A"},
    "throttle": {
        "prochot_violation_status": "NOT ACTIVE",
        "ppt_violation_status": "NOT ACTIVE",
        "socket_thermal_violation_status": "NOT ACTIVE",
        "vr_thermal_violation_status": "NOT ACTIVE",
        "hbm_thermal_violation_status": "NOT ACTIVE",
    },
}
OLD_RAS = {"ras": {"ecc_block_state": {"UMC": "DISABLED"}}}
WRONG = {
    "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 3},
    "ecc_blocks": {"UMC": {"uncorrectable_count": 2}, "XGMI_WAFL": {"uncorrectable_count": "1"}},
}


@pytest.mark.parametrize(
    ("static", "metric", "name", "value"),
    [
        ({}, {}, "name", "AMD Instinct MI300X OAM"),
        ({"asic": {"market_name": "AMD Instinct MI999"}}, {}, "name", "AMD Instinct MI999"),
        ({"asic": "N/A"}, {}, "name", None),
        ({}, {}, "pci_address", "0000:05:00.0"),
        ({}, {}, "memory_bytes", 196592 << 20),
        ({"vram": {"vram_size": {"value": 192, "unit": "GB"}}}, {}, "memory_bytes", 192 << 30),
        ({"vram": {"size": "N/A"}}, {}, "memory_bytes", None),
        ({}, {}, "ecc_enabled", True),
        (OLD_RAS, {}, "ecc_enabled", False),
        ({"ras": "N/A"}, {}, "ecc_enabled", None),
        ({}, {}, "ecc_uncorrected", 0),
        ({}, {}, "ecc_corrected", 4),
        ({}, WRONG, "ecc_uncorrected", 3),
        ({}, WRONG, "ecc_blocks", (("UMC", 2), ("XGMI_WAFL", 1))),
        ({}, {"ecc": {"total_uncorrectable_count": "N/A"}}, "ecc_uncorrected", None),
        ({}, {}, "throttled", ()),
        ({}, {"throttle": "N/A"}, "throttled", None),
        (
            {},
            {"throttle": {**METRIC["throttle"], "hbm_thermal_violation_status": "ACTIVE"}},
            "throttled",
            ("HbmThermal",),
        ),
        ({}, {}, "vbios", "022.040.003.041.000001"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_amd_smi_tells(
    static: dict[str, Any], metric: dict[str, Any], name: str, value: object, *, wrapped: bool
) -> None:
    lists = [[{**STATIC, **static}], [{**METRIC, **metric}]]
    [gpu] = parse_amd_smi(*({"gpu_data": one} if wrapped else one for one in lists))
    assert getattr(gpu, name) == value


@pytest.mark.parametrize("series", ["Card Series", "Card series"])
def test_what_rocm_smi_tells(series: str) -> None:
    card = {
        "Device ID": "0x74a1",
        series: "AMD Instinct MI300X OAM",
        "PCI Bus": "0000:05:00.0",
        "VRAM Total Memory (B)": "206141652992",
        "VRAM Total Used Memory (B)": "301989888",
    }
    other = {**card, "PCI Bus": "0000:26:00.0", "Device ID": "0x74A5"}
    first, second = parse_rocm_smi({"card0": card, "card1": other, "system": {"Driver": "6.8"}})
    assert (first.name, first.pci_address) == ("AMD Instinct MI300X OAM", "0000:05:00.0")
    assert (first.memory_bytes, first.ecc_uncorrected) == (206141652992, None)
    assert (second.index, second.name) == (1, "AMD Instinct MI325X")
    assert parse_rocm_smi([]) == parse_rocm_smi({}) == ()


def test_the_programs_are_asked_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "amd-smi is not installed" in read_amd_smi().why
    assert "rocm-smi is not installed" in read_amd_smi().why
    card = json.dumps({"card0": {"Card Series": "X", "PCI Bus": "0000:05:00.0"}})
    write_program(tmp_path / "rocm-smi", f"#!/bin/sh\necho WARNING: low power\necho '{card}'\n")
    assert [one.name for one in read_amd_smi().found or ()] == ["X"]
    parts = {"static": [STATIC], "metric": [METRIC]}
    texts = {name: json.dumps(one) for name, one in parts.items()}
    script = f"#!/bin/sh\n[ $1 = static ] && echo '{texts['static']}' || echo '{texts['metric']}'\n"
    write_program(tmp_path / "amd-smi", script)
    assert [one.ecc_corrected for one in read_amd_smi().found or ()] == [4]
