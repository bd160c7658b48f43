"""Why a rank is slow, as far as its machine tells: in a few words, empty where it tells nothing."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_cpu_limits
from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent

WORTH_TELLING = 0.1
"""Of the time: less of it explains nothing."""
COOL = 0.75
"""Of a CPU's highest clock: below it, it is held back."""


def cause(spent: Spent, shared: bool, load: Load | None, node: str) -> str:
    """What took this rank's time, or holds its device back, worst first.

    shared: whether the machine has other nodes. load: of the device whose time was measured.
    """
    held_back = [f"device {load}"] if load is not None and load.slowed else []
    return ", ".join([*_waiting(spent, shared, node), *_cold(), *held_back])


def _waiting(spent: Spent, shared: bool, node: str) -> list[str]:
    parts: list[tuple[float, str]] = []
    held_back_s = spent.held_back_s if shared else spent.throttled_s
    if held_back_s > 0:
        limits = read_cpu_limits()
        quota = "" if limits.quota_cpus is None else f" of {limits.quota_cpus:g} CPUs"
        group = f" ({limits.quota_group})" if limits.quota_group else ""
        parts.append((held_back_s, f"by its CPU quota{quota}{group}"))
    others_s = min(spent.idle_s, spent.others_s)
    busiest = f", most of all {spent.busiest}" if spent.busiest else ""
    parts.append((others_s, f"by other processes of {node} on its CPUs{busiest}"))
    if not shared:
        rest_s = min(spent.delayed_s or 0.0, spent.idle_s) - others_s
        parts.append((rest_s, "waiting for a CPU, with nobody in sight who had it"))
    of_s = spent.own_s if shared else spent.wall_s
    return [
        f"kept from running {part_s / of_s:.0%} of its time {what}"
        for part_s, what in sorted(parts, reverse=True)
        if of_s > 0 and part_s / of_s >= WORTH_TELLING
    ]


def _cold(root: Path = Path("/")) -> list[str]:
    """CPUs of this rank that run far below their highest clock."""
    found = []
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        now, highest = (
            sysfs.count(folder / name) for name in ("scaling_cur_freq", "cpuinfo_max_freq")
        )
        if now and highest and now < COOL * highest:
            found.append(f"CPU {cpu} at {now / 1e6:.1f} of {highest / 1e6:.1f} GHz")
    return found[:1]
