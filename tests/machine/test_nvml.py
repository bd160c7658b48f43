"""Accelerators, from a stand-in for NVML with the requested devices and NVML's errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.machine.cpus import parse_cpulist as listed
from pytest_mnode.machine.nvml import Accelerator, read_nvml


class NVMLError(Exception):
    """The exception of NVML's Python binding."""


class Nvml:
    """Two devices; functions in `missing` do not exist, those in `failing` raise."""

    def __init__(self, *, failing: tuple[str, ...] = (), answers: dict[str, Any] | None = None):
        self.failing = failing
        self.shut_down = 0
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetUUID": "GPU-5a",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:1B:00.0"),
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=85520809984),
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetTotalEccErrors": 0,
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
    everything = tuple(Nvml().answers)
    _, gpu = _found(Nvml(failing=everything))
    assert gpu.index == 1
    nothing = [getattr(gpu, name) for name in type(gpu).__slots__ if name != "index"]
    assert set(nothing) == {None}


def test_a_lost_device_is_listed_without_values() -> None:
    found = _found(Nvml(failing=("handle1",)))
    assert (found[0].name is None, found[1].uuid) == (False, None)


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


def test_reasons_why_nvml_is_unavailable() -> None:
    reading = read_nvml(Nvml(failing=("nvmlInit",)))
    assert reading.found is None
    assert reading.why == "NVML did not start: Driver Not Loaded; is the NVIDIA driver loaded?"
    nvml = Nvml(failing=("nvmlDeviceGetCount",))
    assert read_nvml(nvml).why == "NVML failed: Unknown Error"
    assert nvml.shut_down == 1


def test_without_the_binding_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr("pytest_mnode.machine.nvml.importlib.import_module", absent)
    reading = read_nvml()
    assert reading.found is None
    assert reading.why == "NVML cannot be used: No module named 'pynvml'; pip install nvidia-ml-py"
