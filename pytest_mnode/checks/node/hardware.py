"""Memory, CPUs and NVMe drives: what broke, or was not built in, is missing without a message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import total_memory
from pytest_mnode.machine.cpus import read_cpus
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Bytes, Section, Some
from pytest_mnode.spec.quantity import SIZE

_MEMORY, _CPUS, _SOCKETS, _DRIVE = "memory", "CPUs online", "CPU sockets", "NVMe drive"
_DIMM, _SPEED = "memory module", "speed of memory modules"
_KEPT = 0.03
"""Share of the installed memory that MemTotal may lack: the kernel's own page descriptors (64 B of
each 4 KiB, 1.6 %) and what firmware reserves are not in it. A lost DIMM of 32 is another 3.1 %.

Source: Linux, filesystems/proc, MemTotal; mm/vmemmap_dedup."""
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+")
_SECTOR_BYTES = 512
_EMPTY = "empty slot"


class Hardware(Section):
    """Parts that each node has at least. What is left out is not promised."""

    memory_bytes: Bytes | None = Field(None, alias="memory")
    """Installed memory, such as 2 TiB; the kernel may show 3 % less, which it and firmware keep."""
    cpus: Some | None = None
    """Logical CPUs that are online: with SMT on, two per core."""
    sockets: Some | None = None
    """CPU sockets."""
    dimms: Some | None = None
    """Memory modules, by `dmidecode`."""
    dimm_speed_mts: Annotated[int | None, Field(ge=1, alias="dimm_speed")] = None
    """Transfers that each module is configured for, in MT/s, such as 4800: with a module of another
    kind, or two on a channel, all of them run slower."""
    nvme: Some | None = None
    """NVMe drives on PCIe that work, of nvme_size at least."""
    nvme_size_bytes: Bytes | None = Field(None, alias="nvme_size")
    """Size of a drive that counts, such as 3.8 TB: the boot drive may be smaller."""


@check("preflight.hardware")
class HardwareIsComplete(Check):
    """Does this node have the memory, the CPUs and the NVMe drives promised?

    Memory that accelerators add to the node's own, as on GH200, counts as well. A drive counts if
    its controller is live; drives over a network do not count. Memory modules are listed by
    `dmidecode --type 17`, which asks for root.
    """

    promise: Hardware
    """Parts that each node has at least: memory, CPUs, sockets, NVMe drives."""
    alone = True

    def read(self, root: Path) -> Iterator[Row]:
        yield row(_MEMORY, total_memory(root), "B", why="no MemTotal in /proc/meminfo")
        cpus = read_cpus(root)
        folder = "/sys/devices/system/cpu"
        yield row(_CPUS, len(cpus.online or ()) or None, why=f"nothing in {folder}/online")
        sockets = sum(
            bool(numbers & (cpus.online or frozenset())) for numbers in cpus.packages.values()
        )
        yield row(_SOCKETS, sockets or None, why=f"no topology in {folder}")
        if self.promise is None or self.promise.dimms or self.promise.dimm_speed_mts:
            yield from _modules(root)
        if not (root / "sys/class").is_dir():
            raise OSError("no /sys/class")
        for controller in sysfs.entries(root / "sys/class/nvme"):
            if sysfs.text(controller / "transport") in ("pcie", None):
                yield _drive(controller)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        promise = self.promise
        if (least := promise.memory_bytes) is not None:
            text = f"{rows.key}.memory {SIZE.text(least)}, less {_KEPT:.0%} for kernel and firmware"
            yield rows.at_least(
                _MEMORY, least, part="memory", tolerance=round(least * _KEPT), source=text
            )
        if promise.cpus is not None:
            yield rows.at_least(_CPUS, promise.cpus, part="cpus")
        if promise.sockets is not None:
            yield rows.at_least(_SOCKETS, promise.sockets, part="sockets")
        if promise.dimms is not None and all(one.value is None for one in rows.of(_DIMM)):
            yield rows.at_least(_DIMM, promise.dimms, part="dimms")  # none was listed, or read
        elif promise.dimms is not None:
            yield rows.number(
                _DIMM,
                "memory modules",
                lambda one: one.value != _EMPTY,
                promise.dimms,
                part="dimms",
            )
        if promise.dimm_speed_mts is not None:
            yield rows.at_least(_SPEED, promise.dimm_speed_mts, "MT/s", part="dimm_speed")
        if promise.nvme is not None:
            size = promise.nvme_size_bytes or 0
            name = f"NVMe drives of at least {SIZE.text(size)}" if size else "NVMe drives"
            yield rows.number(_DRIVE, name, lambda one: _has(one, size), promise.nvme, part="nvme")

    @classmethod
    def programs(cls, promise: Hardware) -> tuple[str, ...]:
        return ("dmidecode",) if promise.dimms or promise.dimm_speed_mts else ()

    def doubts(self, cluster: object) -> Iterator[str]:  # noqa: ARG002
        if self.promise.nvme_size_bytes is not None and self.promise.nvme is None:
            yield ".nvme_size: given, but nvme is not: no drive is counted"

    fault = "other_text:{node}:/proc/meminfo:MemTotal: 16384 kB"
    promised_as = "{memory: 64 MiB, cpus: 1, sockets: 1}"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, object] | None:
        found: dict[str, object] = {}
        if (memory := seen(rows, _MEMORY)) and (size := int(memory[0]) >> 30):
            found["memory"] = f"{size} GiB"
        for key, metric in (("cpus", _CPUS), ("sockets", _SOCKETS)):
            if values := seen(rows, metric):
                found[key] = values[0]
        there = [sum(o.metric == _SPEED and bool(o.value) for o in rows[n]) for n in rows]
        if (count := min(there)) and min(there) == max(there):
            found["dimms"] = count
        if drives := min(sum(one.metric == _DRIVE for one in of_node) for of_node in rows.values()):
            found["nvme"] = drives
        return found or None


def _modules(root: Path) -> Iterator[Row]:
    try:
        if root != Path("/"):
            raise NoOutput("memory modules are not part of a recorded machine")
        found = parse_modules(output_of("dmidecode", "-t", "17", package="dmidecode"))
    except NoOutput as error:
        why = str(error)
        why += "; rerun as root" if "denied" in why.lower() or "permitted" in why.lower() else ""
        found, unread = {}, why
    else:
        unread = "dmidecode lists no memory module: a virtual machine?"
    for slot, (size, speed) in found.items():
        yield row(_DIMM, size, device=slot)
        if size != _EMPTY:
            yield row(_SPEED, speed, "MT/s", device=slot, why="its speed is unknown")
    if not found:
        yield from (row(metric, why=unread) for metric in (_DIMM, _SPEED))


def parse_modules(printed: str) -> dict[str, tuple[str, int | None]]:
    """Size and configured speed in MT/s of each slot, as `dmidecode -t 17` prints them.

    Older releases say MHz for MT/s, and "Configured Clock Speed". Source: dmidecode(8).
    """
    slots: list[tuple[str, str]] = []
    modules: list[tuple[str, int | None]] = []
    for section in re.split(r"(?m)^Memory Device$", printed)[1:]:
        fields = re.findall(r"(?m)^\s+([^:\n]+): *(.*?)\s*$", section.partition("\nHandle ")[0])
        values = dict(fields)
        slots.append((values.get("Locator", ""), values.get("Bank Locator", "")))
        size = values.get("Size", "")
        speed = values.get("Configured Memory Speed") or values.get("Configured Clock Speed")
        number = re.match(r"(\d+) (?:MT/s|MHz)", speed or "")
        there = re.match(r"[1-9]\d* [kMGT]?B", size)
        modules.append((size if there else _EMPTY, int(number[1]) if number else None))
    locators = [locator for locator, _ in slots]
    names = locators if len(set(locators)) == len(slots) else [f"{b} {a}".strip() for a, b in slots]
    distinct = len(set(names)) == len(names)
    return {
        name if distinct else f"{name} ({i})": module
        for i, (name, module) in enumerate(zip(names, modules, strict=True))
    }


def _has(drive: Row, size_bytes: int) -> bool:
    return isinstance(drive.value, int) and drive.value >= size_bytes


def _drive(controller: Path) -> Row:
    """Its size in bytes over all namespaces, or its state if it does not work.

    Source: Linux, drivers/nvme/host/sysfs.c. With multipath a namespace is nvme0c0n1 here.
    """
    state = sysfs.text(controller / "state")
    if state not in ("live", None):
        return row(_DRIVE, state, device=controller.name)
    sectors = [
        sysfs.count(namespace / "size")
        for namespace in sysfs.entries(controller)
        if _NAMESPACE.fullmatch(namespace.name)
    ]
    known = [count for count in sectors if count is not None]
    size = sum(known) * _SECTOR_BYTES if known and len(known) == len(sectors) else None
    why = "it shows no namespace with a size"
    return row(_DRIVE, size, "B", device=controller.name, why=why)
