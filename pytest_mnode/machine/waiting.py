"""Use of a thread's time between two readings: running, waiting for a CPU, throttled by a quota.

It includes the time that other processes took from it. Source: Linux,
Documentation/scheduler/sched-stats.rst (schedstat), scheduler/sched-bwc.rst and
admin-guide/cgroup-v2.rst (cpu.stat), filesystems/proc.rst (stat).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_cpu_limits

_UTIME, _STIME, _LAST_CPU = 11, 12, 36
"""Indices of fields in stat, counted after the closing bracket of the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another process at a reading. cpu_s: CPU time of all its threads since it started."""

    name: str
    cpu_s: float
    last_cpu: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters of the calling thread at one moment; None if unknown.

    delayed_s: time in which it was ready but had no CPU. delayed_then_s: the same at the end of the
    reading, which takes a while on busy CPUs. throttled_s: time in which the quota of
    its control group was used up, summed over its CPUs. quota_cpus: that quota; infinite if there
    is none. others: processes visible to this one, by pid.
    """

    delayed_s: float | None = None
    delayed_then_s: float | None = None
    throttled_s: float | None = None
    quota_cpus: float | None = None
    others: Mapping[int, Other] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Use of the time between two readings, in seconds.

    throttled_s: at most the time in which the thread did not run. quota_s: time for which its quota
    would have held it back even if a CPU had always been free. others_s: time for which other
    visible processes ran on the thread's CPUs. busiest: the one of them that ran most, with its
    pid; "" if there is none.
    """

    wall_s: float
    cpu_s: float
    delayed_s: float | None
    throttled_s: float
    others_s: float
    quota_s: float = 0.0
    busiest: str = ""

    @property
    def idle_s(self) -> float:
        """Time neither running nor throttled."""
        return max(0.0, self.wall_s - self.cpu_s - self.throttled_s)

    @property
    def held_back_s(self) -> float:
        """Time held back by its quota, also if the quota takes effect only on a quieter machine."""
        return max(self.throttled_s, self.quota_s)

    @property
    def stopped_s(self) -> float:
        """Time in which it neither ran nor was ready, although it had work: stopped by a signal or
        a freezer. On busy CPUs a thread that computes was never found to have 5 % of it."""
        ready_s = self.idle_s if self.delayed_s is None else self.delayed_s
        return max(0.0, self.idle_s - ready_s)

    @property
    def own_s(self) -> float:
        """Time running, held back, stopped, or kept from a CPU by visible processes, not by
        others."""
        ready_s = self.idle_s - self.stopped_s
        return self.cpu_s + self.held_back_s + self.stopped_s + min(ready_s, self.others_s)


def read_waiting(root: Path = Path("/")) -> Reading:
    """Counters of the calling thread now."""
    delayed_s = _delayed_s(root)
    limits = read_cpu_limits(root=root)
    stat = f"{limits.quota_group.lstrip('/')}/cpu.stat" if limits.quota_group else ""
    return Reading(
        others=_others(root),
        throttled_s=parse_cpu_stat(sysfs.text(root / stat) or "") if stat else None,
        quota_cpus=limits.quota_cpus,
        delayed_s=delayed_s,
        delayed_then_s=_delayed_s(root),
    )


def _delayed_s(root: Path) -> float | None:
    delays = (sysfs.text(root / "proc/thread-self/schedstat") or "").split()
    delay_ns = sysfs.number_of(delays[1]) if len(delays) > 1 else None
    return None if delay_ns is None else delay_ns / 1e9


def cpu_wait_so_far_s() -> float | None:
    """Seconds that threads of this process were ready and had no CPU, summed; None if not known."""
    waited_ns = 0
    for path in sysfs.entries(Path("/proc/self/task")):
        fields = (sysfs.text(path / "schedstat") or "").split()
        waited = sysfs.number_of(fields[1]) if len(fields) > 1 else None
        if waited is None:
            return None
        waited_ns += waited
    return waited_ns / 1e9


def spent_between(
    before: Reading, after: Reading, *, wall_s: float, cpu_s: float, cpus: frozenset[int]
) -> Spent:
    """Use of the time of a thread that may run on `cpus`, and has run for `cpu_s`. Pure."""
    ran = {
        pid: other.cpu_s - (before.others[pid].cpu_s if pid in before.others else 0.0)
        for pid, other in after.others.items()
        if other.last_cpu is None or other.last_cpu in cpus
    }
    busiest = max(ran, key=lambda pid: ran[pid], default=None)
    name = ""
    if busiest is not None and ran[busiest] > 0:
        name = f"{after.others[busiest].name} (pid {busiest})"
    return Spent(
        wall_s=wall_s,
        cpu_s=cpu_s,
        delayed_s=difference(before.delayed_then_s, after.delayed_s),
        throttled_s=min(
            difference(before.throttled_s, after.throttled_s) or 0.0, max(0.0, wall_s - cpu_s)
        ),
        quota_s=cpu_s * max(0.0, 1 / after.quota_cpus - 1) if after.quota_cpus else 0.0,
        others_s=sum(ran.values()),
        busiest=name,
    )


def total(parts: tuple[Spent, ...]) -> Spent:
    """Sum of several stretches; `busiest` is that of the stretch with the largest `others_s`."""
    most = max(parts, key=lambda part: part.others_s, default=None)
    delays = [part.delayed_s for part in parts if part.delayed_s is not None]
    return Spent(
        wall_s=sum(part.wall_s for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
        delayed_s=sum(delays) if len(delays) == len(parts) else None,
        throttled_s=sum(part.throttled_s for part in parts),
        quota_s=sum(part.quota_s for part in parts),
        others_s=sum(part.others_s for part in parts),
        busiest=most.busiest if most else "",
    )


def parse_cpu_stat(text: str) -> float | None:
    """Seconds throttled, from cpu.stat of version 1 (ns) or 2 (µs); None if it lacks the field."""
    fields = dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) == 2)
    for name, unit_s in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
        number = sysfs.number_of(fields.get(name))
        if number is not None:
            return number * unit_s
    return None


def parse_stat(text: str, ticks_per_s: float) -> Other | None:
    """Process of /proc/PID/stat; None if the text is cut. The name may hold blanks and brackets."""
    name = text[text.find("(") + 1 : text.rfind(")")]
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _LAST_CPU:
        return None
    user, system = sysfs.number_of(fields[_UTIME]), sysfs.number_of(fields[_STIME])
    if user is None or system is None:
        return None
    cpu_s = (user + system) / ticks_per_s
    return Other(name=name, cpu_s=cpu_s, last_cpu=sysfs.number_of(fields[_LAST_CPU]))


def _others(root: Path) -> dict[int, Other]:
    ticks, me = os.sysconf("SC_CLK_TCK"), os.getpid()
    found = {}
    for path in sysfs.entries(root / "proc"):
        if path.name.isdigit() and int(path.name) != me:
            other = parse_stat(sysfs.text(path / "stat") or "", ticks)
            if other is not None:
                found[int(path.name)] = other
    return found


def difference(before: float | None, after: float | None) -> float | None:
    """`after - before`; None if either is unknown, or the counter was reset."""
    if before is None or after is None or after < before:
        return None
    return after - before
