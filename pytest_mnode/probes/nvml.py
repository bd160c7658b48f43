"""NVIDIA accelerators as NVML tells of them, where its Python binding and the driver are there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_mnode.probes.pci import full_address

_T = TypeVar("_T")
_HARMLESS = {0x1: "GpuIdle", 0x2: "ApplicationsClocksSetting", 0x100: "DisplayClockSetting"}
_SLOWED = {
    0x4: "SwPowerCap",
    0x8: "HwSlowdown",
    0x10: "SyncBoost",
    0x20: "SwThermalSlowdown",
    0x40: "HwThermalSlowdown",
    0x80: "HwPowerBrakeSlowdown",
    0x200: "BoardLimit",
    0x400: "Reliability",
}
_UNTOLD = ("", "n/a", "[n/a]", "unknown", "[unknown error]")
_CPU_WORDS = 1024 // 64
_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1
_SM, _MEMORY = 1, 2
_TEMPERATURE_GPU = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator. None for what it does not have, or NVML would not tell.

    ecc_uncorrected: since the driver was loaded; …_lifetime: since it was made.
    remapped_rows_failed: memory could not be replaced, which asks for service. throttled: why its
    clocks are held back now, by NVML's names; SwPowerCap alone is usual under full load.
    other_reasons: idling and settings. numa_node: of its own memory, on machines where that is one.
    cpus: as the driver advises, by which its CPUs' node is found.
    """

    index: int
    uuid: str | None
    pci_address: str | None
    name: str | None
    memory_bytes: int | None
    ecc_enabled: bool | None
    ecc_uncorrected: int | None
    ecc_uncorrected_lifetime: int | None
    remapped_rows_pending: bool | None
    remapped_rows_failed: bool | None
    throttled: tuple[str, ...] | None
    other_reasons: tuple[str, ...] | None
    persistence: bool | None
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_limit_w: float | None
    mig_enabled: bool | None
    numa_node: int | None
    cpus: frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """What NVML tells. found: None where it could not be asked, for the reason in `why`."""

    driver: str | None = None
    cuda: str | None = None
    found: tuple[Accelerator, ...] | None = None
    why: str = ""


def read_nvml(nvml: Any = None) -> Accelerators:
    """Accelerators of this machine, by index; never raises.

    nvml: a module such as `pynvml`, which is imported where none is given.

    Source: NVIDIA Management Library API reference.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except Exception as error:  # a broken binding fails in its own ways
            return Accelerators(why=f"NVML cannot be asked: {error}; pip install nvidia-ml-py")
    try:
        nvml.nvmlInit()
    except Exception as error:
        return Accelerators(why=f"NVML did not start: {error}; is the NVIDIA driver loaded?")
    try:
        return _read(nvml)
    except Exception as error:
        return Accelerators(why=f"NVML failed: {error}")
    finally:
        _try(nvml.nvmlShutdown)


def _read(nvml: Any) -> Accelerators:
    count = int(nvml.nvmlDeviceGetCount())
    cuda = _try(lambda: int(nvml.nvmlSystemGetCudaDriverVersion()))
    return Accelerators(
        driver=_try(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        found=tuple(_accelerator(nvml, index) for index in range(count)),
    )


def _accelerator(nvml: Any, index: int) -> Accelerator:
    handle = _try(lambda: nvml.nvmlDeviceGetHandleByIndex(index))

    def ask(function: str, *args: Any) -> Any:
        """What a function of NVML says of this device; None where it is not there or fails."""
        if handle is None:
            return None
        return _try(lambda: getattr(nvml, function)(handle, *args))

    pci = ask("nvmlDeviceGetPciInfo")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    rows = ask("nvmlDeviceGetRemappedRows")
    limit = _try(lambda: int(ask("nvmlDeviceGetEnforcedPowerLimit")))
    memory = ask("nvmlDeviceGetMemoryInfo")
    return Accelerator(
        index=index,
        uuid=_text(ask("nvmlDeviceGetUUID")),
        pci_address=full_address(_text(getattr(pci, "busId", None))),
        name=_text(ask("nvmlDeviceGetName")),
        memory_bytes=_count(getattr(memory, "total", None)) or None,
        ecc_enabled=_first_flag(ask("nvmlDeviceGetEccMode")),
        ecc_uncorrected=_count(ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)),
        ecc_uncorrected_lifetime=_count(
            ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE)
        ),
        remapped_rows_pending=_try(lambda: bool(rows[2])),
        remapped_rows_failed=_try(lambda: bool(rows[3])),
        throttled=_reasons(reasons, harmless=False),
        other_reasons=_reasons(reasons, harmless=True),
        persistence=_flag(ask("nvmlDeviceGetPersistenceMode")),
        sm_clock_mhz=_count(ask("nvmlDeviceGetClockInfo", _SM)),
        max_sm_clock_mhz=_count(ask("nvmlDeviceGetMaxClockInfo", _SM)),
        memory_clock_mhz=_count(ask("nvmlDeviceGetClockInfo", _MEMORY)),
        temperature_c=_count(ask("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)),
        power_limit_w=None if limit is None else limit / 1000,
        mig_enabled=_first_flag(ask("nvmlDeviceGetMigMode")),
        numa_node=_count(ask("nvmlDeviceGetNumaNodeId")),
        cpus=_cpus(ask("nvmlDeviceGetCpuAffinity", _CPU_WORDS)),
    )


def _try(ask: Callable[[], _T]) -> _T | None:
    try:
        return ask()
    except Exception:  # NVML raises its own kind for each code, a binding that is older other ones
        return None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    told = value.strip() if isinstance(value, str) else ""
    return None if told.lower() in _UNTOLD else told


def _count(value: Any) -> int | None:
    unknown = value in ((1 << 32) - 1, (1 << 64) - 1)  # −1 as NVML writes it, unsigned
    return value if isinstance(value, int) and value >= 0 and not unknown else None


def _flag(value: Any) -> bool | None:
    return bool(value) if value in (0, 1) else None


def _first_flag(value: Any) -> bool | None:
    """Of the current and the pending mode, the current."""
    return _try(lambda: _flag(value[0]))


def _reasons(bits: Any, *, harmless: bool) -> tuple[str, ...] | None:
    if not isinstance(bits, int):
        return None
    known = {**_HARMLESS, **_SLOWED}
    set_ = [1 << i for i in range(bits.bit_length()) if bits >> i & 1]
    # A reason that is not known yet is taken for a slow-down: it must not pass unseen.
    return tuple(known.get(bit, f"{bit:#x}") for bit in set_ if (bit in _HARMLESS) is harmless)


def _cpus(words: Any) -> frozenset[int] | None:
    found = _try(
        lambda: frozenset(
            64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1
        )
    )
    return found or None
