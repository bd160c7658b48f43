"""NVIDIA accelerators, read by the driver's own program where NVML has no Python binding."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from pytest_mnode.machine.nvml import Accelerator, NvmlAnswer, slowing
from pytest_mnode.machine.pci import full_address

_GPU = (
    *("uuid", "pci.bus_id", "name", "memory.total", "ecc.mode.current"),
    *("ecc.errors.uncorrected.volatile.total", "persistence_mode", "mig.mode.current"),
    "clocks_throttle_reasons.active",  # newer drivers take it for clocks_event_reasons.active
)
_ROWS = ("gpu_uuid", "remapped_rows.pending", "remapped_rows.failure")
_WORDS = {"enabled": True, "yes": True, "1": True, "disabled": False, "no": False, "0": False}
LIMIT_S = 8.0


def read_nvidia_smi() -> NvmlAnswer:
    """Accelerators of this machine, by index; never raises.

    Source: nvidia-smi(1), --help-query-gpu and --help-query-remapped-rows.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return NvmlAnswer(why="nvidia-smi is not on the PATH")
    try:
        gpus = _query(program, "gpu", _GPU)
        rows = _query(program, "remapped-rows", _ROWS, may_fail=True)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return NvmlAnswer(why=f"nvidia-smi: {error}")
    by_uuid = {row["gpu_uuid"]: row for row in rows}
    found = [_accelerator(i, gpu, by_uuid.get(gpu["uuid"], {})) for i, gpu in enumerate(gpus)]
    return NvmlAnswer(found=tuple(found))


def _query(
    program: str, what: str, fields: tuple[str, ...], *, may_fail: bool = False
) -> list[dict[str, str]]:
    """One mapping per line. Raises ValueError if the program failed, or a line has other fields."""
    argv = [program, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        if may_fail:
            return []
        said = (done.stdout or done.stderr).strip().partition("\n")[0]
        raise ValueError(said or f"status {done.returncode}")
    lines = [line.split(", ") for line in done.stdout.splitlines() if line.strip()]
    if any(len(line) != len(fields) for line in lines):
        raise ValueError(f"its lines do not have {len(fields)} fields: {lines[0]}")
    return [dict(zip(fields, map(str.strip, line), strict=True)) for line in lines]


def _accelerator(index: int, gpu: Mapping[str, str], rows: Mapping[str, str]) -> Accelerator:
    mib = _number(gpu["memory.total"])
    return Accelerator(
        index=index,
        uuid=_text(gpu["uuid"]),
        pci_address=full_address(_text(gpu["pci.bus_id"])),
        name=_text(gpu["name"]),
        memory_bytes=mib << 20 if mib else None,
        ecc_enabled=_flag(gpu["ecc.mode.current"]),
        ecc_uncorrected=_number(gpu["ecc.errors.uncorrected.volatile.total"]),
        remapped_rows_pending=_flag(rows.get("remapped_rows.pending", "")),
        remapped_rows_failed=_flag(rows.get("remapped_rows.failure", "")),
        throttled=slowing(_number(gpu["clocks_throttle_reasons.active"])),
        persistence=_flag(gpu["persistence_mode"]),
        mig_enabled=_flag(gpu["mig.mode.current"]),
    )


def _text(value: str) -> str | None:
    """None for [N/A], [Not Supported], [Unknown Error] and the like."""
    return value if value and not value.startswith("[") else None


def _number(value: str) -> int | None:
    try:
        return int(value, 0)
    except ValueError:
        return None


def _flag(value: str) -> bool | None:
    return _WORDS.get(value.lower())
