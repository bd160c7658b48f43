"""What a machine's firmware says it is: clouds name themselves, and some their type of instance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine import sysfs

_FOLDER = "sys/class/dmi/id"


@dataclass(frozen=True, slots=True)
class Dmi:
    """Names from SMBIOS (DSP0134), which any user may read; None if the firmware gives none."""

    vendor: str | None = None
    product: str | None = None
    asset_tag: str | None = None


def read_dmi(root: Path) -> Dmi:
    """The names below `root`. Source: Linux, drivers/firmware/dmi-id.c."""
    files = ("sys_vendor", "product_name", "chassis_asset_tag")
    return Dmi(*(sysfs.text(root / _FOLDER / file) for file in files))
