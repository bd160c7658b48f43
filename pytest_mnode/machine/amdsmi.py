"""AMD accelerators, read by ROCm's Python binding amdsmi if it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.nvml import Accelerator, NvmlAnswer
from pytest_mnode.machine.pci import AMD, full_address, model_of

_VIOLATIONS = {
    "active_prochot_thrm": "ProcessorHot",
    "active_socket_thrm": "SocketThermal",
    "active_vr_thrm": "VoltageRegulatorThermal",
    "active_hbm_thrm": "HbmThermal",
    "active_ppt_pwr": "PackagePower",
}
"""What holds clocks down now, by names of ours."""
_UMC = 1
"""The block of memory controllers, in the mask of blocks with ECC."""


def read_amdsmi(amdsmi: Any = None) -> NvmlAnswer:
    """Accelerators of this machine, by index; never raises.

    amdsmi: a module such as `amdsmi`, which is imported if None.

    Source: AMD SMI Python library, API reference.
    """
    if amdsmi is None:
        try:
            amdsmi = importlib.import_module("amdsmi")
        except Exception as error:  # a binding without its library raises KeyError, among others
            return NvmlAnswer(why=f"amdsmi cannot be used: {error}; install it with ROCm")
    try:
        amdsmi.amdsmi_init()
    except Exception as error:
        return NvmlAnswer(why=f"amdsmi did not start: {error}; is the amdgpu driver loaded?")
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        return NvmlAnswer(found=tuple(_accelerator(amdsmi, i, h) for i, h in enumerate(handles)))
    except Exception as error:
        return NvmlAnswer(why=f"amdsmi failed: {error}")
    finally:
        _try(amdsmi.amdsmi_shut_down)


def _accelerator(amdsmi: Any, index: int, handle: Any) -> Accelerator:
    def ask(function: str, *args: Any) -> Any:
        """Result of a function for this device; None if it is missing or fails."""
        return _try(lambda: getattr(amdsmi, function)(handle, *args))

    memory = ask("amdsmi_get_gpu_memory_total", _try(lambda: amdsmi.AmdSmiMemoryType.VRAM))
    blocks = ask("amdsmi_get_gpu_ecc_enabled")
    errors = ask("amdsmi_get_gpu_total_ecc_count") or {}
    asic = ask("amdsmi_get_gpu_asic_info") or {}
    vbios = ask("amdsmi_get_gpu_vbios_info") or {}
    return Accelerator(
        index=index,
        uuid=text_of(ask("amdsmi_get_gpu_device_uuid")),
        pci_address=full_address(text_of(ask("amdsmi_get_gpu_device_bdf"))),
        name=amd_model(asic.get("device_id")) or text_of(asic.get("market_name")),
        memory_bytes=_count(memory) or None,
        ecc_enabled=None if _count(blocks) is None else bool(blocks & _UMC),
        ecc_uncorrected=_count(errors.get("uncorrectable_count")),
        ecc_corrected=_count(errors.get("correctable_count")),
        ecc_blocks=_blocks(amdsmi, handle) if errors.get("uncorrectable_count") else (),
        vbios=text_of(vbios.get("version")),
        throttled=violations(ask("amdsmi_get_violation_status")),
    )


def _blocks(amdsmi: Any, handle: Any) -> tuple[tuple[str, int], ...]:
    """Parts with uncorrected errors."""
    found = []
    for block in _try(lambda: list(amdsmi.AmdSmiGpuBlock)) or []:
        ask = partial(amdsmi.amdsmi_get_gpu_ecc_count, handle, block)
        if count := _count((_try(ask) or {}).get("uncorrectable_count")):
            found.append((str(block.name), count))
    return tuple(found)


def amd_model(device_id: Any) -> str | None:
    """Name of a model by the device's PCI number, as 0x74a1 or 29857; None if it is not known."""
    number = sysfs.number_of(device_id) if isinstance(device_id, str) else _count(device_id)
    return None if number is None else model_of(AMD, f"{number:04x}")


def violations(status: Any) -> tuple[str, ...] | None:
    """Names of what holds clocks down; None if one is not known ("N/A")."""
    if not isinstance(status, dict):
        return None
    active = {name: status.get(key) for key, name in _VIOLATIONS.items()}
    if not all(isinstance(value, (bool, int)) for value in active.values()):
        return None
    return tuple(name for name, value in active.items() if value)


def _try(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # amdsmi has a class for each kind of error
        return None


def text_of(value: Any) -> str | None:
    """A text; None for N/A and the like."""
    return value.strip() if isinstance(value, str) and value.strip() not in ("", "N/A") else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
