"""What the network interfaces of this machine have carried, as the kernel counts it."""

from __future__ import annotations

import contextlib
from pathlib import Path

_INTERFACES = Path("/sys/class/net")


def sent_bytes(interfaces: Path = _INTERFACES) -> dict[str, int]:
    """Bytes that each interface of this network namespace has sent since it exists, by name.

    Headers included. An interface whose counter cannot be read is absent. RDMA traffic passes the
    kernel by: read it from the device's port counters.

    Source: Linux, Documentation/ABI/testing/sysfs-class-net-statistics, tx_bytes.
    """
    found = {}
    for path in sorted(interfaces.glob("*/statistics/tx_bytes")):
        with contextlib.suppress(OSError, ValueError):
            found[path.parent.parent.name] = int(path.read_text())
    return found
