"""Where a process and its threads may run, ran last, and have their memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.numa_maps import Area, parse_numa_maps

_FIELD = re.compile(r"^([A-Za-z_]+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_LAST_CPU = 36
"""Index of `processor` among the fields of stat after the closing bracket of the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a status file tells: name, and the CPUs and NUMA nodes that may be used."""

    name: str | None = None
    threads: int | None = None
    cpus: frozenset[int] | None = None
    mems: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread. last_cpu: where it ran last."""

    tid: int
    name: str | None
    cpus_allowed: frozenset[int] | None
    mems_allowed: frozenset[int] | None
    last_cpu: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as it is placed.

    threads: each of them, the first one included; None where they cannot be listed. memory: its
    areas; None where numa_maps cannot be read, which needs the right to trace the process, and a
    kernel with NUMA.
    """

    pid: int
    name: str | None
    cpus_allowed: frozenset[int] | None
    mems_allowed: frozenset[int] | None
    threads: tuple[Thread, ...] | None
    memory: tuple[Area, ...] | None


def parse_status(told: str) -> Allowed:
    """The fields of /proc/PID/status that tell of placement. Pure and total.

    Source: Linux, Documentation/filesystems/proc.rst.
    """
    fields = dict(_FIELD.findall(told))
    return Allowed(
        name=fields.get("Name"),
        threads=sysfs.number_of(fields.get("Threads")),
        cpus=parse_cpulist(fields.get("Cpus_allowed_list")) or None,
        mems=parse_cpulist(fields.get("Mems_allowed_list")) or None,
    )


def parse_last_cpu(told: str) -> int | None:
    """The CPU of /proc/PID/stat; the name before it may hold blanks and brackets. Total."""
    fields = told.rpartition(")")[2].split()
    cpu = sysfs.number_of(fields[_LAST_CPU]) if len(fields) > _LAST_CPU else None
    return cpu if cpu is not None and cpu >= 0 else None


def read_process(pid: int | None = None, root: Path = Path("/")) -> Process | None:
    """A process by its number, or the reader itself; None where there is none."""
    folder = root / "proc" / ("self" if pid is None else str(pid))
    told = sysfs.text(folder / "status")
    if told is None:
        return None
    status = parse_status(told)
    number = re.search(r"^Pid:\s*(\d+)", told, re.MULTILINE | re.ASCII)
    maps = sysfs.text(folder / "numa_maps")
    return Process(
        pid=int(number[1]) if number else pid or 0,
        name=status.name,
        cpus_allowed=status.cpus,
        mems_allowed=status.mems,
        threads=_threads(folder / "task"),
        memory=parse_numa_maps(maps) if maps else None,
    )


def _threads(folder: Path) -> tuple[Thread, ...] | None:
    found = []
    for path in sysfs.entries(folder):
        told = sysfs.text(path / "status") if path.name.isdigit() else None
        if told is None:
            continue  # ended since it was listed
        status = parse_status(told)
        found.append(
            Thread(
                tid=int(path.name),
                name=status.name,
                cpus_allowed=status.cpus,
                mems_allowed=status.mems,
                last_cpu=parse_last_cpu(sysfs.text(path / "stat") or ""),
            )
        )
    return tuple(found) or None
