"""AMD accelerators, read by ROCm's programs where amdsmi has no Python binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_mnode.machine.amdsmi import amd_model, text_of
from pytest_mnode.machine.nvml import Accelerator, NvmlAnswer
from pytest_mnode.machine.pci import full_address
from pytest_mnode.machine.programs import NoOutput, json_in, output_of

_THROTTLES = {
    "prochot_violation_status": "ProcessorHot",
    "socket_thermal_violation_status": "SocketThermal",
    "vr_thermal_violation_status": "VoltageRegulatorThermal",
    "hbm_thermal_violation_status": "HbmThermal",
    "ppt_violation_status": "PackagePower",
}
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_ROCM_SMI = ("--showid", "--showproductname", "--showbus", "--showmeminfo", "vram")


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
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and value >= 0 else None
