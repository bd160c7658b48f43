"""What ibv_devinfo says of RDMA ports and /sys does not: the MTU that is active. Reader is pure."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

LIMIT_S = 10.0
_LINE = re.compile(r"\s*(hca_id|port|active_mtu):\s*(\S+)")
_PORT = tuple[str, int]


def active_mtus() -> Mapping[_PORT, int]:
    """MTU in bytes by device and port; empty without the program.

    Raises OSError or subprocess.SubprocessError where it does not run to its end in time.
    """
    program = shutil.which("ibv_devinfo")
    if program is None:
        return {}
    done = subprocess.run(
        [program, "-v"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )
    return parse_active_mtus(done.stdout)


def parse_active_mtus(told: str) -> Mapping[_PORT, int]:
    """MTU in bytes by device and port, of those lines that make sense.

    Source: ibv_devinfo(1), of rdma-core.
    """
    found: dict[_PORT, int] = {}
    device, port = "", 0
    for line in told.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        key, value = match.groups()
        if key == "hca_id":
            device, port = value, 0
        elif not (value.isascii() and value.isdigit()):
            continue
        elif key == "port":
            port = int(value)
        elif device and port:
            found[device, port] = int(value)
    return found
