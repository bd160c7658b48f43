"""CPU and memory limits of control groups (versions 1 and 2), and their out-of-memory kills."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_mnode.machine import sysfs

_MOUNT = "sys/fs/cgroup"
_UNIFIED = ("", "unified")
_CPU = ("cpu,cpuacct", "cpu", "cpuacct,cpu")
_MEMORY = ("memory",)
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For versions 2 and 1: the files with limit and usage, and the field of memory.stat with the
cached files that the kernel would drop first."""
_NEARLY_ALL = 0.9
_OOM_FILES = ("memory.events.local", "memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimits:
    """CPU limits of control groups.

    quota_cpus: CPU time allowed, in CPUs: the lowest quota of a group and its ancestors; infinite
    if no group has a quota, None if it cannot be read. quota_group: the group with that quota.
    """

    quota_cpus: float | None = None
    quota_group: str | None = None


@dataclass(frozen=True, slots=True)
class OomKills:
    """Number of processes that the kernel's out-of-memory killer has killed; None if unknown.

    group: the memory cgroup that `in_group` counts; "" if there is none, or only the root group.
    """

    on_machine: int | None = None
    group: str = ""
    in_group: int | None = None

    def since(self, before: OomKills) -> OomKills:
        """Kills since `before`; those in the group only if both readings are of one group."""
        same = self.group == before.group
        return OomKills(
            _more(before.on_machine, self.on_machine),
            self.group if same else "",
            _more(before.in_group, self.in_group) if same else None,
        )


def _more(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def read_oom_kills(root: Path = Path("/")) -> OomKills:
    """Kills in the reader's own memory cgroup, and on the whole machine.

    The kernel counts a kill in the group of the killed process, whatever limit was reached.

    Source: Linux, mm/oom_kill.c; Documentation/admin-guide/cgroup-v2.rst, memory.events;
    cgroup-v1/memory.rst, memory.oom_control. /proc/vmstat counts for all groups.
    """
    groups = _groups(sysfs.text(root / "proc/self/cgroup") or "")
    version1 = _folders(root, groups.get("memory"), _MEMORY)
    # Version 2 counts in the group where the controller is enabled, possibly an ancestor; version
    # 1 counts in the group itself.
    for folder in version1[:1] or _folders(root, groups.get(""), _UNIFIED):
        files = [folder / name for name in _OOM_FILES if (folder / name).exists()]
        if files and not (folder / "release_agent").exists():  # only a root group has it
            count = _field(files[0], "oom_kill")
            group = f"/{folder.relative_to(root)}" if count is not None else ""
            return OomKills(_field(root / "proc/vmstat", "oom_kill"), group, count)
    return OomKills(_field(root / "proc/vmstat", "oom_kill"))


def read_cpu_limits(pid: int | None = None, root: Path = Path("/")) -> CpuLimits:
    """CPU limits of process `pid`, or of the reader if None.

    In a container the groups' paths may not exist: the mount point is read instead.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst; scheduler/sched-bwc.rst.
    """
    text = sysfs.text(root / "proc" / ("self" if pid is None else str(pid)) / "cgroup")
    groups = _groups(text or "")
    folders = _folders(root, groups.get("cpu"), _CPU) or _folders(root, groups.get(""), _UNIFIED)
    quotas = [(_quota_cpus(folder), folder) for folder in folders]
    known = [(quota, folder) for quota, folder in quotas if quota is not None]
    if not known or len(known) < len(quotas):
        return CpuLimits()
    least, folder = min(known, key=lambda limit: limit[0])
    group = f"/{folder.relative_to(root)}" if math.isfinite(least) else None
    return CpuLimits(quota_cpus=least, quota_group=group)


def read_memory_rooms(root: Path = Path("/")) -> tuple[int, ...]:
    """Free bytes in each of the reader's memory cgroups that has a limit, innermost first.

    Cached files not used recently count as free, as in the kubelet's working set: otherwise files
    that a job has read would count as used until the kernel needs the memory.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst, memory; cgroup-v1/memory.rst, 5.2.
    """
    rooms = map(_memory_room, _memory_folders(root))
    return tuple(room for room in rooms if room is not None)


def read_memory_limit(root: Path = Path("/")) -> int | None:
    """The lowest limit of the reader's memory cgroups; None if nearly all memory is allowed."""
    files = (folder / of[0] for folder in _memory_folders(root) for of in _MEMORY_FILES)
    limit = min((limit for file in files if (limit := sysfs.count(file))), default=None)
    return limit if limit and limit < _NEARLY_ALL * (total_memory(root) or math.inf) else None


def total_memory(root: Path) -> int | None:
    found = re.search(r"MemTotal:\s+(\d+) kB", sysfs.text(root / "proc/meminfo") or "")
    return int(found[1]) << 10 if found else None


def _memory_folders(root: Path) -> tuple[Path, ...]:
    groups = _groups(sysfs.text(root / "proc/self/cgroup") or "")
    version1 = _folders(root, groups.get("memory"), _MEMORY)
    return version1 or _folders(root, groups.get(""), _UNIFIED)


def _memory_room(folder: Path) -> int | None:
    """Free bytes of a group; None if it has no limit ("max") or cannot be read."""
    for limit_file, used_file, cached_field in _MEMORY_FILES:
        limit, used = sysfs.count(folder / limit_file), sysfs.count(folder / used_file)
        if limit is not None and used is not None:
            cached = _field(folder / "memory.stat", cached_field) or 0
            return max(0, limit - max(0, used - cached))
    return None


def _groups(text: str) -> dict[str, str]:
    """Path of a process's group by controller; "" is the key of version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdecimal():
            for controller in controllers.split(","):
                found.setdefault(controller, path)
    return found


def _folders(root: Path, path: str | None, mounts: tuple[str, ...]) -> tuple[Path, ...]:
    """Folders of the group and its ancestors, up to the mount point of its hierarchy."""
    if path is None:
        return ()
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for mount in mounts:
        base = root / _MOUNT / mount
        # With version 1, the folder that holds the controllers' mounts is not a hierarchy itself.
        if mounts == _UNIFIED and not (base / "cgroup.procs").exists():
            continue
        chain = [base.joinpath(*parts[:end]) for end in range(len(parts), -1, -1)]
        there = tuple(folder for folder in chain if folder.is_dir())
        if there:
            return there
    return ()


def _quota_cpus(folder: Path) -> float | None:
    """Quota of one group in CPUs; infinite if it has none, as the root group never has."""
    if (folder / "cpu.max").exists():
        text = (sysfs.text(folder / "cpu.max") or "").split()
        quota, period = text if len(text) == 2 else ("", "")
        return math.inf if quota == "max" else _share(sysfs.number_of(quota), period)
    if (folder / "cpu.cfs_quota_us").exists():
        of_v1 = sysfs.integer(folder / "cpu.cfs_quota_us")
        if of_v1 is not None and of_v1 < 0:
            return math.inf
        return _share(of_v1, sysfs.text(folder / "cpu.cfs_period_us"))
    return math.inf


def _share(quota_us: int | None, period_us: str | None) -> float | None:
    period = sysfs.number_of(period_us)
    return quota_us / period if quota_us is not None and quota_us > 0 and period else None


def _field(path: Path, field: str) -> int | None:
    """Number of `field` in a file of lines "name number"."""
    for line in (sysfs.text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == field:
            return sysfs.number_of(value)
    return None
