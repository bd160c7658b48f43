"""Power limits of GPUs: one that was lowered, and forgotten, makes its GPU slow under full load."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.measurement import Measurement

_LIMIT, _SHARE = "power limit of GPUs", "power limit of GPUs, of their default"
Watts = Annotated[int, Field(strict=True, ge=1)]


@check("preflight.power_limit")
class PowerLimitsAreAsPromised(Check):
    """Do all GPUs of this node have the power limit promised?

    It is the limit that NVML says is enforced: the lowest of the one that was set (`nvidia-smi
    -pl`) and those of the board. A GPU below its limit may still be held down by heat: see
    `accelerators.throttling`. AMD's driver shows its limits in /sys. Source: NVML API reference,
    nvmlDeviceGetEnforcedPowerLimit; Linux, gpu/amdgpu/thermal, power1_cap.
    """

    promise: Literal["same", "default"] | Watts
    """default: no lower than the GPU's own default; same: that of the other nodes; or watts that
    each GPU may draw at least, such as 700."""

    def read(self, root: Path) -> Iterator[Row]:
        if amd := list(_of_amd(root)):
            yield from amd
            return
        if root != Path("/"):
            raise OSError("NVML is not part of a recorded machine")
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                yield from _limits(nvml, index)
        finally:
            nvml.nvmlShutdown()

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        if self.promise == "same":
            yield rows.same(_LIMIT)
        elif self.promise == "default":
            yield rows.at_least(_SHARE, 100)
        else:
            yield rows.at_least(_LIMIT, self.promise)

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> str | None:
        if seen(rows, _SHARE) == [100]:
            return "default"
        return "same" if len(rows) > 1 and seen(rows, _LIMIT) else None


def _of_amd(root: Path) -> Iterator[Row]:
    """Of each GPU of amdgpu that can be limited, in µW there; a display has no limit."""
    for card in sysfs.entries(root / "sys/class/drm"):
        for sensor in sysfs.entries(card / "device/hwmon"):
            if sysfs.text(sensor / "name") != "amdgpu" or not re.fullmatch(r"card\d+", card.name):
                continue
            limit = sysfs.count(sensor / "power1_cap")
            default = sysfs.count(sensor / "power1_cap_default")
            why = "amdgpu shows no power1_cap, or no default"
            yield row(_LIMIT, limit / 1e6 if limit else None, "W", device=card.name, why=why)
            share = 100 * limit / default if limit and default else None
            yield row(_SHARE, share, "%", device=card.name, why=why)


def _limits(nvml: Any, index: int) -> Iterator[Row]:
    device = f"GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        default = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    except Exception as error:  # NVML has one class for each code
        for metric in (_LIMIT, _SHARE):
            yield row(metric, why=f"NVML: {error}", device=device)
        return
    yield row(_LIMIT, limit / 1e3, "W", device=device)
    yield row(_SHARE, 100 * limit / default, "%", device=device)
