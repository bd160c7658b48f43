"""Character devices that a process opens to use RDMA; sysfs does not say whether it can."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine import sysfs


@dataclass(frozen=True, slots=True)
class VerbsDevice:
    """A device such as /dev/infiniband/uverbs0.

    device: the RDMA device that it opens, such as mlx5_0. problem: why it cannot be opened for
    reading and writing, "" if it can. A container's /sys may show RDMA devices that the container
    may not use: without permission of its device control group they cannot be opened.
    """

    name: str
    device: str
    problem: str = ""


def read_verbs(root: Path = Path("/")) -> tuple[VerbsDevice, ...] | None:
    """Devices below `root`/dev/infiniband, each opened once; None if /sys cannot be read.

    Source: Linux, Documentation/infiniband/user_verbs.rst; Documentation/ABI/stable/
    sysfs-class-infiniband, ibdev.
    """
    if not (root / "sys/class").is_dir():
        return None
    return tuple(
        VerbsDevice(path.name, device, _problem(root / "dev/infiniband" / path.name))
        for path in sysfs.entries(root / "sys/class/infiniband_verbs")
        if (device := sysfs.text(path / "ibdev"))
    )


def _problem(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
