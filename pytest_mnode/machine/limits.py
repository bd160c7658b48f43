"""Limits of a process: locked memory, open files, CPUs and capabilities."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.process import parse_status

_LIMIT = re.compile(r"^(Max [a-z ]+?) {2,}(\d+|unlimited)\s", re.MULTILINE | re.ASCII)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE | re.ASCII)
_IPC_LOCK, _SYS_ADMIN = 14, 21
_ALL_USERS = ["0", "0", str((1 << 32) - 1)]


@dataclass(frozen=True, slots=True)
class Limits:
    """Soft limits of a process, which apply unless it raises them. None: no limit.

    cpus: CPUs that it may run on. ipc_lock: whether it has CAP_IPC_LOCK for the machine, which
    overrides the memlock limit. admin: the same for CAP_SYS_ADMIN, which root of a machine has.
    These three are None if unknown.
    """

    memlock_bytes: int | None
    open_files: int | None
    cpus: frozenset[int] | None = None
    ipc_lock: bool | None = None
    admin: bool | None = None


def read_limits(root: Path = Path("/")) -> Limits:
    """Limits of this process. Raises OSError if they cannot be read.

    Source: Linux, include/uapi/linux/capability.h; user_namespaces(7): only capabilities in the
    initial user namespace apply to the machine.
    """
    found = dict(_LIMIT.findall((root / "proc/self/limits").read_text(errors="replace")))

    def limit(name: str) -> int | None:
        if name not in found:
            raise OSError(f"/proc/self/limits: no {name}")
        return None if found[name] == "unlimited" else int(found[name])

    status = sysfs.text(root / "proc/self/status") or ""
    mask = _CAPABILITIES.search(status)
    users = (sysfs.text(root / "proc/self/uid_map") or "").split()

    def capable(number: int) -> bool | None:
        if mask is None or not users:
            return None
        return users == _ALL_USERS and bool(int(mask[1], 16) >> number & 1)

    return Limits(
        memlock_bytes=limit("Max locked memory"),
        open_files=limit("Max open files"),
        cpus=parse_status(status).cpus,
        ipc_lock=capable(_IPC_LOCK),
        admin=capable(_SYS_ADMIN),
    )
