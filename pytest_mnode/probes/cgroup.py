"""What control groups allow a process: CPUs, NUMA nodes, a share of CPU time. Version 1 and 2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_mnode.probes import sysfs
from pytest_mnode.probes.cpus import read_cpulist

_MOUNT = "sys/fs/cgroup"
_UNIFIED = ("", "unified")
_CPUSET = ("cpuset",)
_CPU = ("cpu,cpuacct", "cpu", "cpuacct,cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimits:
    """What control groups allow.

    cpus, mems: of the cpuset; None where not told. quota_cpus: how many CPUs' worth of time may be
    used, the least of all groups above; infinite where no group has a quota, None where that cannot
    be read. quota_group: the group that has it. throttled_periods: how often its time was used up.
    """

    cpus: frozenset[int] | None = None
    mems: frozenset[int] | None = None
    quota_cpus: float | None = None
    quota_group: str | None = None
    throttled_periods: int | None = None


def read_cpu_limits(pid: int | None = None, root: Path = Path("/")) -> CpuLimits:
    """Limits of a process, or of the reader itself.

    In a container the groups' own paths may not be there: the mount itself is read instead.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst; cgroup-v1/cpusets.rst;
    scheduler/sched-bwc.rst.
    """
    told = sysfs.text(root / "proc" / ("self" if pid is None else str(pid)) / "cgroup")
    groups = _groups(told or "")
    folders = _folders(root, groups.get("cpu"), _CPU) or _folders(root, groups.get(""), _UNIFIED)
    quotas = [(_quota_cpus(folder), folder) for folder in folders]
    known = [(quota, folder) for quota, folder in quotas if quota is not None]
    if not known or len(known) < len(quotas):
        return CpuLimits(cpus=_cpuset(root, groups, "cpus"), mems=_cpuset(root, groups, "mems"))
    least, folder = min(known, key=lambda limit: limit[0])
    limited = math.isfinite(least)
    return CpuLimits(
        cpus=_cpuset(root, groups, "cpus"),
        mems=_cpuset(root, groups, "mems"),
        quota_cpus=least,
        quota_group=f"/{folder.relative_to(root)}" if limited else None,
        throttled_periods=_throttled(folder) if limited else None,
    )


def _groups(told: str) -> dict[str, str]:
    """Paths of a process's groups by controller; that of version 2 by ""."""
    found: dict[str, str] = {}
    for line in told.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdigit():
            for controller in controllers.split(","):
                found.setdefault(controller, path)
    return found


def _folders(root: Path, path: str | None, mounts: tuple[str, ...]) -> tuple[Path, ...]:
    """The group's folder and those above it, up to where its hierarchy is mounted."""
    if path is None:
        return ()
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for mount in mounts:
        base = root / _MOUNT / mount
        # Beside the folders of version 1, the folder above them is no hierarchy of its own.
        if mounts == _UNIFIED and not (base / "cgroup.procs").exists():
            continue
        chain = [base.joinpath(*parts[:end]) for end in range(len(parts), -1, -1)]
        there = tuple(folder for folder in chain if folder.is_dir())
        if there:
            return there
    return ()


def _quota_cpus(folder: Path) -> float | None:
    """Quota of one group; infinite where it has none, as the outermost has not."""
    if (folder / "cpu.max").exists():
        told = (sysfs.text(folder / "cpu.max") or "").split()
        quota, period = told if len(told) == 2 else ("", "")
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


def _cpuset(root: Path, groups: dict[str, str], what: str) -> frozenset[int] | None:
    folders = _folders(root, groups.get("cpuset"), _CPUSET)
    for folder in folders or _folders(root, groups.get(""), _UNIFIED):
        for name in (f"cpuset.{what}.effective", f"cpuset.effective_{what}", f"cpuset.{what}"):
            if found := read_cpulist(folder / name):
                return found
    return None


def _throttled(folder: Path) -> int | None:
    for line in (sysfs.text(folder / "cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "nr_throttled":
            return sysfs.number_of(value)
    return None
