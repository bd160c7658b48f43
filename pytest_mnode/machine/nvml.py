"""NVIDIA accelerators, read by NVML if its Python binding and the driver are installed."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pytest_mnode.machine.pci import full_address

_T = TypeVar("_T")
_HARMLESS = (0x1, 0x2, 0x100)
"""GpuIdle, ApplicationsClocksSetting, DisplayClockSetting."""
_SLOWED = {
    0x4: "SwPowerCap",
    0x8: "HwSlowdown",
    0x10: "SyncBoost",
    0x20: "SwThermalSlowdown",
    0x40: "HwThermalSlowdown",
    0x80: "HwPowerBrakeSlowdown",
}
"""NVML's reasons. Source: nvml.h, nvmlClocksEventReasons."""
USUAL_UNDER_LOAD = ("SwPowerCap", "SyncBoost")
"""A device at its power limit, and devices whose clocks are coupled: no fault by themselves."""
_UNKNOWN = ("", "n/a", "[n/a]", "unknown", "[unknown error]")
_CPU_WORDS = 1024 // 64
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_DRAM = 2
_RECOVERY_FIELD = 230
_RECOVERIES = (
    *("none", "reset", "reboot", "drain P2P", "drain and reset", "recover IMEX domain"),
    *("bus reset", "system reboot"),
)
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, and its values. Source: nvml.h."""
REMEDIES = {
    "version mismatch": "the driver was updated under a loaded module: reboot, or reload it",
    "is lost": "it fell off the bus: power-cycle the node, then diagnose the GPU",
    "fallen off the bus": "power-cycle the node, then diagnose the GPU",
    "requires reset": "end what uses it, then nvidia-smi --gpu-reset",
    "requires restart": "end what uses it, then nvidia-smi --gpu-reset",
    "device handle for gpu": "it does not answer: see the kernel log, then power-cycle the node",
    "no devices were found": "the driver took none: see the kernel log, and lspci",
    "driver not loaded": "load it: modprobe nvidia; see dkms status",
    "communicate with the nvidia driver": "load it: modprobe nvidia; see dkms status",
    "not found": "install the driver's libnvidia-ml.so.1, or pass it to the container",
    "insufficient permissions": "rerun as a user who may open /dev/nvidia*",
    "err!": "the GPU's firmware does not answer: reset it, then diagnose it",
    "unknown error": "the GPU does not answer as it should: reset it, then diagnose it",
}
"""What mends it, by a part of what NVML or nvidia-smi say, in lower case; the first one counts.

Source: NVML API reference, nvmlReturn_t; nvidia-smi(1), RETURN VALUE; GPU debug guidelines."""
_GONE = (
    *("is lost", "fallen off the bus", "requires reset", "requires restart"),
    "device handle for gpu",
)
"""Of these: the device cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator. A field is None if the device lacks it or NVML does not report it.

    problem: why fields are None, with what mends it; "" if nothing was said. gone: the driver said
    that it is lost, or cannot be used before a reset.
    ecc_corrected, ecc_uncorrected: errors since the driver was loaded; _ever: over its life.
    ecc_blocks: parts with uncorrected errors, and their number, where known.
    sram_exceeded: it had more uncorrected errors in SRAM than NVIDIA allows.
    remapped_rows_failed: memory could not be replaced, so the device needs service.
    banks_without_spare: banks of memory whose spare rows are all used. pages_pending: a page of
    memory is retired after a reset (before Ampere). repairs: of memory, pending or impossible.
    recovery: what the driver asks for, such as "reset", or "none". throttled:
    reasons why its clocks are reduced now, by NVML's names; SwPowerCap alone is usual under full
    load. numa_node: of its own memory, on machines where that is a NUMA node. cpus: CPUs that the
    driver recommends, from which the NUMA node of its CPUs is found.
    """

    index: int
    uuid: str | None = None
    pci_address: str | None = None
    name: str | None = None
    memory_bytes: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    ecc_blocks: tuple[tuple[str, int], ...] = ()
    sram_exceeded: bool | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    banks_without_spare: int | None = None
    pages_pending: bool | None = None
    repairs: tuple[str, ...] = ()
    recovery: str | None = None
    inforom_valid: bool | None = None
    vbios: str | None = None
    gsp: str | None = None
    throttled: tuple[str, ...] | None = None
    persistence: bool | None = None
    mig_enabled: bool | None = None
    numa_node: int | None = None
    cpus: frozenset[int] | None = None
    problem: str = ""
    gone: bool = False

    @property
    def answers(self) -> bool:
        """Whether it tells anything of itself, and can be used."""
        silent = Accelerator(index=self.index, pci_address=self.pci_address, problem=self.problem)
        return not self.gone and self != silent


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlAnswer:
    """Answer of NVML. found: None if it could not be queried, for the reason in `why`."""

    found: tuple[Accelerator, ...] | None = None
    why: str = ""


def read_nvml(nvml: Any = None) -> NvmlAnswer:
    """Accelerators of this machine, by index; never raises.

    nvml: a module such as `pynvml`, which is imported if None.

    Source: NVIDIA Management Library API reference.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except Exception as error:  # a broken binding can raise anything
            return NvmlAnswer(why=f"NVML cannot be used: {error}; pip install nvidia-ml-py")
    try:
        nvml.nvmlInit()
    except Exception as error:
        return NvmlAnswer(
            why=with_remedy(f"NVML did not start: {error}", "is the NVIDIA driver loaded?")
        )
    try:
        count = int(nvml.nvmlDeviceGetCount())
        return NvmlAnswer(found=tuple(_accelerator(nvml, index) for index in range(count)))
    except Exception as error:
        return NvmlAnswer(why=with_remedy(f"NVML failed: {error}"))
    finally:
        _try(nvml.nvmlShutdown)


@dataclass(frozen=True, slots=True)
class Load:
    """Samples of a device under load.

    slowed: number of samples with each reason that reduces a clock by heat, power brake or
    hardware. sm_clock_mhz: the median; None if unknown.
    """

    samples: int
    slowed: tuple[tuple[str, int], ...]
    sm_clock_mhz: float | None
    share_slowed: float | None
    """Share of the samples with such a reason; None if there are no samples."""
    pcie_generation: int | None = None
    full_pcie_generation: int | None = None
    """Highest generation that card and slot support."""

    def __str__(self) -> str:
        words = [f"{name} in {count} of {self.samples} samples" for name, count in self.slowed]
        if words and self.sm_clock_mhz is not None:
            words.append(f"at {self.sm_clock_mhz:g} MHz")
        return ", ".join(words)


def reason_bits(nvml: Any, handle: Any) -> Any:
    """Newer bindings call throttle reasons event reasons."""
    for name in ("EventReasons", "ThrottleReasons"):
        bits = _try(lambda n=name: getattr(nvml, f"nvmlDeviceGetCurrentClocks{n}")(handle))  # type: ignore[misc]
        if bits is not None:
            return bits
    return None


def with_remedy(said: str, otherwise: str = "") -> str:
    """What NVML or nvidia-smi said, with what mends it, or else with `otherwise`."""
    lower = said.lower()
    remedy = next((mend for part, mend in REMEDIES.items() if part in lower), otherwise)
    return f"{said}; {remedy}" if remedy else said


def is_gone(said: str) -> bool:
    """Whether these words say that a device cannot be used."""
    return any(part in said.lower() for part in _GONE)


def _accelerator(nvml: Any, index: int) -> Accelerator:
    said: list[str] = []

    def tried(ask: Callable[[], _T]) -> _T | None:
        try:
            return ask()
        except AttributeError:  # an older binding
            return None
        except Exception as error:  # NVML has one class for each code
            said.append(str(error))
            return None

    handle = tried(lambda: nvml.nvmlDeviceGetHandleByIndex(index))

    def ask(function: str, *args: Any) -> Any:
        """Result of an NVML function for this device; None if it is missing or fails."""
        if handle is None:
            return None
        return tried(lambda: getattr(nvml, function)(handle, *args))

    def errors(kind: int, counter: int) -> int | None:
        return _count(ask("nvmlDeviceGetTotalEccErrors", kind, counter))

    pci = ask("nvmlDeviceGetPciInfo")
    reasons = None if handle is None else reason_bits(nvml, handle)
    rows = ask("nvmlDeviceGetRemappedRows")
    banks = ask("nvmlDeviceGetRowRemapperHistogram")
    memory = ask("nvmlDeviceGetMemoryInfo")
    sram = _sram(nvml, ask)
    dram = _count(ask("nvmlDeviceGetMemoryErrorCounter", _UNCORRECTED, _VOLATILE, _DRAM))
    blocks = {
        "SRAM parity": _count(getattr(sram, "volatileUncParity", None)),
        "SRAM SEC-DED": _count(getattr(sram, "volatileUncSecDed", None)),
        "DRAM": dram,
    }
    found = Accelerator(
        index=index,
        uuid=_text(ask("nvmlDeviceGetUUID")),
        pci_address=full_address(_text(getattr(pci, "busId", None))),
        name=_text(ask("nvmlDeviceGetName")),
        memory_bytes=_count(getattr(memory, "total", None)) or None,
        ecc_enabled=_first_flag(ask("nvmlDeviceGetEccMode")),
        ecc_uncorrected=errors(_UNCORRECTED, _VOLATILE),
        ecc_corrected=errors(_CORRECTED, _VOLATILE),
        ecc_uncorrected_ever=errors(_UNCORRECTED, _AGGREGATE),
        ecc_blocks=tuple((name, count) for name, count in blocks.items() if count),
        sram_exceeded=_flag(getattr(sram, "bThresholdExceeded", None)),
        remapped_rows_pending=_try(lambda: bool(rows[2])),
        remapped_rows_failed=_try(lambda: bool(rows[3])),
        banks_without_spare=_count(getattr(banks, "none", None)),
        pages_pending=_flag(ask("nvmlDeviceGetRetiredPagesPendingStatus")),
        recovery=_recovery(ask("nvmlDeviceGetFieldValues", [_RECOVERY_FIELD])),
        inforom_valid=_inforom(nvml, handle),
        vbios=_text(ask("nvmlDeviceGetVbiosVersion")),
        gsp=_gsp(ask),
        throttled=slowing(reasons),
        persistence=_flag(ask("nvmlDeviceGetPersistenceMode")),
        mig_enabled=_first_flag(ask("nvmlDeviceGetMigMode")),
        numa_node=_count(ask("nvmlDeviceGetNumaNodeId")),
        cpus=_cpus(ask("nvmlDeviceGetCpuAffinity", _CPU_WORDS)),
    )
    gone = next(filter(is_gone, said), "")
    problem = with_remedy(gone or said[0]) if gone or (said and not found.answers) else ""
    return replace(found, problem=problem, gone=bool(gone))


def _sram(nvml: Any, ask: Callable[..., Any]) -> Any:
    """Counts of errors in SRAM; None before Hopper, and of older bindings."""
    make = getattr(nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if make is None:
        return None
    status = make()
    status.version = nvml.nvmlEccSramErrorStatus_v1
    answer = ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
    return None if answer is None else status


def _recovery(values: Any) -> str | None:
    known = _try(lambda: values[0].nvmlReturn == 0)
    action = _try(lambda: values[0].value.uiVal) if known else None
    if action is None:
        return None
    return _RECOVERIES[action] if action < len(_RECOVERIES) else f"action {action}"


def _inforom(nvml: Any, handle: Any) -> bool | None:
    if handle is None:
        return None
    try:
        nvml.nvmlDeviceValidateInforom(handle)
    except Exception as error:  # NVML has one class for each code
        return False if "corrupt" in str(error).lower() else None
    return True


def _gsp(ask: Callable[..., Any]) -> str | None:
    """Version of the firmware on the device, which older bindings write into a buffer."""
    buffer = ctypes.create_string_buffer(64)
    answer = ask("nvmlDeviceGetGspFirmwareVersion", buffer)
    return _text(answer) or _text(buffer.value)


def _try(ask: Callable[[], _T]) -> _T | None:
    try:
        return ask()
    except Exception:  # NVML has one class for each code, and older bindings raise others
        return None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = value.strip() if isinstance(value, str) else ""
    return None if text.lower() in _UNKNOWN else text


def _count(value: Any) -> int | None:
    unknown = value in ((1 << 32) - 1, (1 << 64) - 1)  # −1 as NVML writes it, unsigned
    return value if isinstance(value, int) and value >= 0 and not unknown else None


def _flag(value: Any) -> bool | None:
    return bool(value) if value in (0, 1) else None


def _first_flag(value: Any) -> bool | None:
    """The current mode, of the pair (current, pending)."""
    return _try(lambda: _flag(value[0]))


def slowing(bits: Any) -> tuple[str, ...] | None:
    """Names of the reasons that reduce a clock."""
    if not isinstance(bits, int):
        return None
    set_ = [1 << i for i in range(bits.bit_length()) if bits >> i & 1]
    # An unknown reason counts as a slow-down, so that it is not overlooked.
    return tuple(_SLOWED.get(bit, f"{bit:#x}") for bit in set_ if bit not in _HARMLESS)


def _cpus(words: Any) -> frozenset[int] | None:
    found = _try(
        lambda: frozenset(
            64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1
        )
    )
    return found or None
