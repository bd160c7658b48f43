"""AMD accelerators, read by ROCm's Python binding amdsmi if it is installed, or by its programs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.nvml import Accelerator, NvmlAnswer
from pytest_mnode.machine.pci import AMD, full_address, model_of
from pytest_mnode.machine.programs import NoOutput, json_in, output_of

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
_THROTTLES = {
    "prochot_violation_status": "ProcessorHot",
    "socket_thermal_violation_status": "SocketThermal",
    "vr_thermal_violation_status": "VoltageRegulatorThermal",
    "hbm_thermal_violation_status": "HbmThermal",
    "ppt_violation_status": "PackagePower",
}
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_ROCM_SMI = ("--showid", "--showproductname", "--showbus", "--showmeminfo", "vram")


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


def read_amd_smi() -> NvmlAnswer:
    """Accelerators of this machine by `amd-smi`, or else by `rocm-smi`; never raises.

    rocm-smi tells only of their model and memory. Source: AMD SMI and ROCm SMI, CLI tool usage.
    """
    whys = []
    for read in (_by_amd_smi, _by_rocm_smi):
        try:
            if found := read():
                return NvmlAnswer(found=found)
        except (NoOutput, ValueError) as error:
            whys.append(str(error))
    return NvmlAnswer(why="; ".join(whys) or "amd-smi and rocm-smi list no GPU")


def _by_amd_smi() -> tuple[Accelerator, ...]:
    static, metric = (
        json_in(output_of("amd-smi", what, "--json", package="amd-smi-lib", may_fail=True))
        for what in ("static", "metric")
    )
    return parse_amd_smi(static, metric)


def _by_rocm_smi() -> tuple[Accelerator, ...]:
    argv = ("rocm-smi", *_ROCM_SMI, "--json")
    return parse_rocm_smi(json_in(output_of(*argv, package="rocm-smi-lib", may_fail=True)))


def parse_amd_smi(static: Any, metric: Any) -> tuple[Accelerator, ...]:
    """The GPUs in the JSON of `amd-smi static` and `amd-smi metric`, of releases with a list of
    them, and of those with a list below "gpu_data"."""
    metrics = {str(one["gpu"]): one for one in _gpus(metric)}
    found = []
    for index, gpu in enumerate(_gpus(static)):
        at = _below(metrics.get(str(gpu["gpu"]), {}))
        of, asic = _below(gpu), _below(gpu)("asic")
        found.append(
            Accelerator(
                index=index,
                uuid=text_of(asic.get("asic_serial")),
                pci_address=full_address(text_of(of("bus").get("bdf"))),
                name=amd_model(asic.get("device_id")) or text_of(asic.get("market_name")),
                memory_bytes=_bytes(of("vram").get("size", of("vram").get("vram_size"))),
                ecc_enabled=_ecc_enabled(of("ras")),
                ecc_uncorrected=_count(at("ecc").get("total_uncorrectable_count")),
                ecc_corrected=_count(at("ecc").get("total_correctable_count")),
                ecc_blocks=tuple(
                    (name, count)
                    for name, block in at("ecc_blocks").items()
                    if isinstance(block, dict)
                    and (count := _count(block.get("uncorrectable_count")))
                ),
                throttled=_throttled(at("throttle")),
                vbios=text_of(of("vbios").get("version")),
            )
        )
    return tuple(found)


def parse_rocm_smi(printed: Any) -> tuple[Accelerator, ...]:
    """The GPUs in the JSON of `rocm-smi`, whose keys differ between releases in their capitals."""
    cards = printed.items() if isinstance(printed, dict) else ()
    found = []
    for name, card in cards:
        if not name.startswith("card") or not isinstance(card, dict):
            continue
        values = {key.lower(): value for key, value in card.items()}
        number = values.get("device id") or values.get("gpu id")
        found.append(
            Accelerator(
                index=int(name.removeprefix("card") or 0),
                pci_address=full_address(text_of(values.get("pci bus"))),
                name=amd_model(number) or text_of(values.get("card series")),
                memory_bytes=_count(values.get("vram total memory (b)")),
            )
        )
    return tuple(found)


def _gpus(printed: Any) -> Iterator[Mapping[str, Any]]:
    listed = printed.get("gpu_data") if isinstance(printed, dict) else printed
    if isinstance(listed, list):
        yield from (one for one in listed if isinstance(one, dict) and "gpu" in one)


def _below(gpu: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    """A section of a GPU; empty if it is N/A."""

    def section(name: str) -> Mapping[str, Any]:
        found = gpu.get(name)
        return found if isinstance(found, dict) else {}

    return section


def _ecc_enabled(ras: Mapping[str, Any]) -> bool | None:
    """Whether the memory controllers (UMC) correct errors: of a mapping, or of a list of blocks."""
    states = ras.get("block_state", ras.get("ecc_block_state"))
    if isinstance(states, list):
        blocks = [one for one in states if isinstance(one, dict)]
        states = {str(one.get("block")): one.get("status") for one in blocks}
    state = states.get("UMC") if isinstance(states, dict) else None
    return {"ENABLED": True, "DISABLED": False}.get(str(state).upper())


def _throttled(section: Mapping[str, Any]) -> tuple[str, ...] | None:
    states = {name: str(section.get(key, "N/A")).upper() for key, name in _THROTTLES.items()}
    if not set(states.values()) <= {"ACTIVE", "NOT ACTIVE", "TRUE", "FALSE"}:
        return None
    return tuple(name for name, state in states.items() if state in ("ACTIVE", "TRUE"))


def _bytes(size: Any) -> int | None:
    if not isinstance(size, dict):
        return None
    count, unit = _count(size.get("value")), _UNITS.get(str(size.get("unit")).upper())
    return count * unit if count and unit else None


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and value >= 0 else None
