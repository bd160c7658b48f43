"""Accelerators, from a stand-in for NVML with the requested devices and NVML's errors."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.machine.cpus import parse_cpulist as listed
from pytest_mnode.machine.nvml import Accelerator, read_nvml


class NVMLError(Exception):
    """The exception of NVML's Python binding."""


class Status(ctypes.Structure):
    """That of SRAM's errors, as far as it is read."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("volatileUncParity", ctypes.c_ulonglong),
        ("bThresholdExceeded", ctypes.c_uint),
    )


def field(value: int, status: int = 0) -> SimpleNamespace:
    """The value of a field."""
    return SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=value))


class Nvml:
    """Two devices; functions in `missing` do not exist, those in `failing` raise."""

    c_nvmlEccSramErrorStatus_v1_t = Status
    nvmlEccSramErrorStatus_v1 = 1

    def __init__(self, *, failing: tuple[str, ...] = (), answers: dict[str, Any] | None = None):
        self.failing = failing
        self.shut_down = 0
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetUUID": "GPU-5a",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:1B:00.0"),
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=85520809984),
            "nvmlDeviceGetEccMode": [1, 1],
            "ecc": ((7, 9), (0, 2)),  # corrected, uncorrected; each since the start, and ever
            "sram": 0,
            "parity": 0,
            "nvmlDeviceGetMemoryErrorCounter": 0,
            "gsp": b"",
            "nvmlDeviceGetRowRemapperHistogram": SimpleNamespace(none=0),
            "nvmlDeviceGetRetiredPagesPendingStatus": 0,
            "nvmlDeviceGetVbiosVersion": "96.00.89.00.01",
            "nvmlDeviceGetFieldValues": [field(0)],
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetNumaNodeId": 0,
            "nvmlDeviceGetCpuAffinity": [0xF, 0, 1 << 63],
        } | (answers or {})

    def nvmlInit(self) -> None:
        if "nvmlInit" in self.failing:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlDeviceGetCount(self) -> int:
        if "nvmlDeviceGetCount" in self.failing:
            raise NVMLError("Unknown Error")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if f"handle{index}" in self.failing:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceValidateInforom(self, index: int) -> None:
        if (error := self.answers.get("inforom")) is not None:
            raise NVMLError(error)

    def nvmlDeviceGetTotalEccErrors(self, index: int, kind: int, counter: int) -> int:
        if "nvmlDeviceGetTotalEccErrors" in self.failing:
            raise NVMLError("Not Supported")
        return int(self.answers["ecc"][kind][counter])

    def nvmlDeviceGetSramEccErrorStatus(self, index: int, status: Any) -> int:
        status._obj.bThresholdExceeded = self.answers["sram"]
        status._obj.volatileUncParity = self.answers["parity"]
        return 0

    def nvmlDeviceGetGspFirmwareVersion(self, index: int, version: Any) -> int:
        version.value = self.answers["gsp"]
        return 0

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)

        def ask(handle: int, *args: Any) -> Any:
            if name in self.failing:
                raise NVMLError("Not Supported")
            return self.answers[name]

        return ask


def _found(nvml: Nvml) -> tuple[Accelerator, ...]:
    reading = read_nvml(nvml)
    assert reading.why == ""
    assert reading.found is not None
    return reading.found


def test_values_read_from_nvml() -> None:
    nvml = Nvml()
    gpu, _ = _found(nvml)
    assert (gpu.pci_address, gpu.name) == ("0000:1b:00.0", "NVIDIA H100 80GB HBM3")
    assert gpu.memory_bytes == 85520809984
    assert (gpu.ecc_enabled, gpu.ecc_uncorrected, gpu.persistence) == (True, 0, True)
    assert gpu.throttled == ()  # an idle clock is no fault
    assert gpu.cpus == listed("0-3,191")
    assert gpu.mig_enabled is False
    assert gpu.remapped_rows_failed is False
    assert nvml.shut_down == 1


def test_unsupported_values_are_none() -> None:
    everything = (*Nvml().answers, "nvmlDeviceGetTotalEccErrors")
    _, gpu = _found(Nvml(failing=everything))
    assert (gpu.index, gpu.gone, gpu.name, gpu.memory_bytes) == (1, False, None, None)
    assert (gpu.ecc_enabled, gpu.ecc_uncorrected, gpu.remapped_rows_failed) == (None,) * 3
    assert (gpu.banks_without_spare, gpu.recovery, gpu.throttled) == (None,) * 3


def test_a_lost_device_is_listed_without_values() -> None:
    found = _found(Nvml(failing=("handle1",)))
    assert (found[0].answers, found[1].answers, found[1].uuid) == (True, False, None)
    assert found[1].gone
    assert "GPU is lost; it fell off the bus" in found[1].problem


@pytest.mark.parametrize(
    ("answers", "name", "value"),
    [
        ({}, "ecc_corrected", 7),
        ({}, "ecc_uncorrected_ever", 2),
        ({}, "sram_exceeded", False),
        ({"sram": 1}, "sram_exceeded", True),
        ({"nvmlDeviceGetRowRemapperHistogram": SimpleNamespace(none=3)}, "banks_without_spare", 3),
        ({"nvmlDeviceGetRetiredPagesPendingStatus": 1}, "pages_pending", True),
        ({}, "recovery", "none"),
        ({"nvmlDeviceGetFieldValues": [field(2)]}, "recovery", "reboot"),
        ({"nvmlDeviceGetFieldValues": [field(0, 3)]}, "recovery", None),  # not supported
        ({"nvmlDeviceGetFieldValues": [field(9)]}, "recovery", "action 9"),
        (
            {"parity": 2, "nvmlDeviceGetMemoryErrorCounter": 1},
            "ecc_blocks",
            (("SRAM parity", 2), ("DRAM", 1)),
        ),
        ({}, "inforom_valid", True),
        ({"inforom": "Corrupted infoROM"}, "inforom_valid", False),
        ({"inforom": "Not Supported"}, "inforom_valid", None),
        ({}, "vbios", "96.00.89.00.01"),
        ({"gsp": b"570.86.15"}, "gsp", "570.86.15"),
        ({}, "gsp", None),
    ],
)
def test_health_of_memory_and_firmware(answers: dict[str, Any], name: str, value: object) -> None:
    assert getattr(_found(Nvml(answers=answers))[0], name) == value


@pytest.mark.parametrize(
    ("bits", "throttled"),
    [
        (0x0, ()),
        (0x4 | 0x2, ("SwPowerCap",)),
        (0x8 | 0x40, ("HwSlowdown", "HwThermalSlowdown")),
        (0x200 | 0x400, ("0x200", "0x400")),  # NVML has no such reasons
        (0x10000, ("0x10000",)),
    ],
)
def test_reasons_of_throttling(bits: int, throttled: tuple[str, ...]) -> None:
    answers = {"nvmlDeviceGetCurrentClocksEventReasons": bits}
    assert _found(Nvml(answers=answers))[0].throttled == throttled


def test_unknown_values_are_none() -> None:
    unknown = {"nvmlDeviceGetNumaNodeId": 0xFFFFFFFF, "nvmlDeviceGetCpuAffinity": [0, 0]}
    unknown |= {"nvmlDeviceGetUUID": "", "nvmlDeviceGetEccMode": None}
    unknown |= {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=0), "nvmlDeviceGetName": "N/A"}
    gpu, _ = _found(Nvml(answers=unknown))
    assert (gpu.numa_node, gpu.cpus, gpu.uuid, gpu.ecc_enabled) == (None, None, None, None)
    assert (gpu.memory_bytes, gpu.name) == (None, None)


def _raise(words: str) -> None:
    raise NVMLError(words)


def test_reasons_why_nvml_is_unavailable() -> None:
    reading = read_nvml(Nvml(failing=("nvmlInit",)))
    assert reading.found is None
    assert reading.why.startswith("NVML did not start: Driver Not Loaded; load it: modprobe nvidia")
    mismatch = Nvml()
    mismatch.nvmlInit = lambda: _raise("Driver/library version mismatch")  # type: ignore[method-assign]
    assert "reboot, or reload it" in read_nvml(mismatch).why
    nvml = Nvml(failing=("nvmlDeviceGetCount",))
    assert read_nvml(nvml).why.startswith("NVML failed: Unknown Error; ")
    assert nvml.shut_down == 1


def test_without_the_binding_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr("pytest_mnode.machine.nvml.importlib.import_module", absent)
    reading = read_nvml()
    assert reading.found is None
    assert reading.why == "NVML cannot be used: No module named 'pynvml'; pip install nvidia-ml-py"
