"""CPUs of a machine: which are online or isolated, which share a core or a socket; CPU lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_mnode.machine import sysfs

_RANGE = re.compile(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", re.ASCII)
_MOST = 1 << 16
"""Above any kernel's NR_CPUS: a larger number is not a CPU, and would only fill memory."""


def parse_cpulist(text: str | None) -> frozenset[int] | None:
    """CPUs (or NUMA nodes) of a list such as "0-3,8"; None if `text` is not such a list.

    An empty text is an empty list: the kernel writes it if no CPU is isolated.

    Source: Linux, Documentation/core-api/printk-formats, "%*pbl".
    """
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < _MOST:
            return None
        found.update(range(first, last + 1))
    return frozenset(found)


def format_cpulist(numbers: Iterable[int]) -> str:
    """The shortest list of these numbers, such as "0-3,8"; "" for none."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read_cpulist(path: Path) -> frozenset[int] | None:
    """The CPU list in a file; None if it cannot be read."""
    return parse_cpulist(sysfs.text(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One logical CPU.

    siblings: all CPUs (threads) of its core, itself included. package: its socket.
    cache_bytes: size of the largest cache that it uses; None if unknown.
    """

    number: int
    package: int | None
    siblings: frozenset[int] | None
    cache_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cpus:
    """CPUs of a machine. A set is None if unknown."""

    online: frozenset[int] | None = None
    isolated: frozenset[int] | None = None
    cpus: tuple[Cpu, ...] = ()

    def cores(self, numbers: Iterable[int]) -> frozenset[frozenset[int]]:
        """Cores of these CPUs, each as the set of all its CPUs.

        A CPU with unknown siblings counts as a core of its own.
        """
        siblings = {cpu.number: cpu.siblings for cpu in self.cpus}
        return frozenset(siblings.get(n) or frozenset((n,)) for n in numbers)

    @cached_property
    def packages(self) -> dict[int, frozenset[int]]:
        """CPUs of each socket; CPUs with an unknown socket are left out."""
        found: dict[int, set[int]] = {}
        for cpu in self.cpus:
            if cpu.package is not None:
                found.setdefault(cpu.package, set()).add(cpu.number)
        return {package: frozenset(cpus) for package, cpus in found.items()}


def read_cpus(root: Path = Path("/")) -> Cpus:
    """CPUs below `root`/sys/devices/system/cpu.

    Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu.
    """
    folder = root / "sys/devices/system/cpu"
    numbered = [path for path in sysfs.entries(folder) if re.fullmatch(r"cpu\d+", path.name)]
    return Cpus(
        online=read_cpulist(folder / "online"),
        isolated=read_cpulist(folder / "isolated"),
        cpus=tuple(_cpu(path) for path in numbered),
    )


def _cpu(folder: Path) -> Cpu:
    topology = folder / "topology"
    # core_cpus_list is the newer name of thread_siblings_list.
    siblings = read_cpulist(topology / "core_cpus_list")
    if siblings is None:
        siblings = read_cpulist(topology / "thread_siblings_list")
    return Cpu(
        number=int(folder.name[3:]),
        package=sysfs.count(topology / "physical_package_id"),
        siblings=siblings or None,
        cache_bytes=max(
            (size for path in sysfs.entries(folder / "cache") if (size := _size_bytes(path))),
            default=None,
        ),
    )


def _size_bytes(cache: Path) -> int | None:
    match = re.fullmatch(r"(\d{1,15})([KMG]?)", sysfs.text(cache / "size") or "", re.ASCII)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else None
