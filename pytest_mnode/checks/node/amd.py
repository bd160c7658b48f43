"""AMD GPUs: how they are partitioned, their errors by part, and their links to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Count, Section, Text

_COMPUTE, _MEMORY = "compute partition of AMD GPUs", "memory partition of AMD GPUs"
_UNCORRECTED, _CORRECTED = "uncorrected errors of AMD GPUs", "corrected errors of AMD GPUs"
_PEERS = "GPUs that an AMD GPU reaches by XGMI"
_DRM, _KFD = "sys/class/drm", "sys/class/kfd/kfd/topology/nodes"
_COUNTS = re.compile(r"(?m)^(ue|ce): (\d+)$")
_XGMI = 11
"""Type of a link between devices. Source: Linux, drivers/gpu/drm/amd/include/kgd_kfd_interface.h,
CRAT_IOLINK_TYPE_XGMI."""


class AmdHealth(Section):
    """AMD GPUs are partitioned, linked and without errors as each given key says."""

    compute_partition: Text | None = None
    """Such as SPX: all of a GPU's dies are one device."""
    memory_partition: Text | None = None
    """Such as NPS1: all of a GPU's memory is one NUMA domain."""
    errors_at_most: Count | None = None
    """Uncorrected errors of one part of a GPU, such as its memory controllers (umc)."""
    corrected_at_most: Count | None = None
    """Corrected errors of one part of a GPU."""
    xgmi_peers: Count | None = None
    """Other GPUs of the node that each GPU reaches by XGMI, such as 7 of 8."""


@check("preflight.amd")
class AmdGpusAreAsPromised(Check):
    """Are this node's AMD GPUs partitioned and linked as promised, and without errors?

    Read from what the driver amdgpu shows in /sys, without ROCm: `ras/*_err_count` since it was
    loaded, the current partitions, and the links in kfd's topology. Virtual functions have no
    counters: inconclusive. Source: Linux, gpu/amdgpu/ras and gpu/amdgpu/driver-misc.
    """

    promise: AmdHealth
    alone = True

    def read(self, root: Path) -> Iterator[Row]:
        cards = [c for c in sysfs.entries(root / _DRM) if re.fullmatch(r"card\d+", c.name)]
        for card in cards:
            device = card / "device"
            if sysfs.text(device / "vendor") in ("0x1002", None) and _is_compute(device):
                *_, last = sysfs.place(device, root) or (card.name,)
                yield from _of_card(device, last if sysfs.is_pci_address(last) else card.name)
        yield from _peers(root / _KFD)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        promise = self.promise
        for key, metric in (("compute_partition", _COMPUTE), ("memory_partition", _MEMORY)):
            if (wanted := getattr(promise, key)) is not None:
                yield rows.equals(metric, wanted.upper(), part=key)
        for key, metric in (("errors_at_most", _UNCORRECTED), ("corrected_at_most", _CORRECTED)):
            if (most := getattr(promise, key)) is not None:
                yield rows.at_most(metric, most, part=key)
        if promise.xgmi_peers is not None:
            yield rows.at_least(_PEERS, promise.xgmi_peers, part="xgmi_peers")

    fault = f"other_text:{{node}}:/{_DRM}/card0/device/ras/umc_err_count:ue: 3"
    promised_as = "{errors_at_most: 0}"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, Any] | None:
        keys = {"compute_partition": _COMPUTE, "memory_partition": _MEMORY, "xgmi_peers": _PEERS}
        each = {key: seen(rows, metric) for key, metric in keys.items()}
        found = {key: values[0] for key, values in each.items() if len(values) == 1}
        if seen(rows, _UNCORRECTED) == [0]:
            found["errors_at_most"] = 0
        return found or None


def _is_compute(device: Path) -> bool:
    """Whether the driver shows what only accelerators have: not a board's display."""
    return (device / "ras").is_dir() or (device / "current_compute_partition").exists()


def _of_card(device: Path, name: str) -> Iterator[Row]:
    for metric, file in (
        (_COMPUTE, "current_compute_partition"),
        (_MEMORY, "current_memory_partition"),
    ):
        value = sysfs.text(device / file)
        yield row(metric, value.upper() if value else None, device=name, why=f"it shows no {file}")
    files = [f for f in sysfs.entries(device / "ras") if f.name.endswith("_err_count")]
    for counter in files:
        counts = {kind: int(count) for kind, count in _COUNTS.findall(sysfs.text(counter) or "")}
        part = f"{name} {counter.name.removesuffix('_err_count')}"
        for metric, kind in ((_UNCORRECTED, "ue"), (_CORRECTED, "ce")):
            yield row(metric, counts.get(kind), device=part, why=f"{counter.name} shows no {kind}")
    if not files:
        for metric in (_UNCORRECTED, _CORRECTED):
            yield row(metric, device=name, why="it shows no counters: a virtual function?")


def _peers(nodes: Path) -> Iterator[Row]:
    for node in sysfs.entries(nodes):
        about = _properties(node)
        if not about.get("simd_count"):  # a CPU
            continue
        links = [_properties(link) for link in sysfs.entries(node / "io_links")]
        peers = {link.get("node_to") for link in links if link.get("type") == _XGMI}
        place, domain = about.get("location_id", 0), about.get("domain", 0)
        address = f"{domain:04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}.{place & 7}"
        yield row(_PEERS, len(peers), device=address)


def _properties(folder: Path) -> dict[str, int]:
    text = sysfs.text(folder / "properties") or ""
    return {name: int(value) for name, value in re.findall(r"(?m)^(\w+) (\d+)$", text)}
