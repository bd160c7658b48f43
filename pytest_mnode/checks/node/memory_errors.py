"""Errors of the host's memory: a DIMM that corrects many will one day not correct one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Count, Section

_RATE, _UNCORRECTED = "corrected memory errors a day", "uncorrected memory errors"
_FOLDER = "sys/devices/system/edac/mc"
_SECONDS_A_DAY = 86400
_LINE = re.compile(r"(\S.*?)\s+(\d+)\s+(\d+)\s*")


class MemoryErrors(Section):
    """The host's memory has few errors, by the kernel's EDAC drivers."""

    corrected_per_day_at_most: Count = 24
    """Corrected errors of one DIMM a day. [choice] one an hour: a healthy DIMM has none for weeks,
    and field studies find most errors in few DIMMs, which have thousands."""
    uncorrected_at_most: Count = 0
    """Uncorrected errors of one DIMM since its driver was loaded."""


@check("preflight.memory_errors")
class MemoryHasFewErrors(Check):
    """Does the host's memory correct few errors a day, and leave none uncorrected?

    Counters are the kernel's (EDAC), since a driver was loaded: those of each DIMM, and those of a
    controller that it could not tell of which. A time of less than a day counts as one. Where /sys
    has none, `ras-mc-ctl` is asked. Virtual machines have none: inconclusive. Source: Linux,
    Documentation/admin-guide/RAS; ras-mc-ctl(8).
    """

    promise: MemoryErrors
    alone = True

    def read(self, root: Path) -> Iterator[Row]:
        uptime = re.match(r"\d+", sysfs.text(root / "proc/uptime") or "")
        up_s = int(uptime[0]) if uptime else None
        folders = [f for f in sysfs.entries(root / _FOLDER) if re.fullmatch(r"mc\d+", f.name)]
        for folder in folders:
            since_s = sysfs.count(folder / "seconds_since_reset")
            days = None if (s := since_s or up_s) is None else max(1.0, s / _SECONDS_A_DAY)
            for name, corrected, uncorrected in _counters(folder):
                yield from _rows(name, corrected, uncorrected, days)
        if not folders:
            if root != Path("/"):
                raise OSError(f"no controller in /{_FOLDER}")
            days = None if up_s is None else max(1.0, up_s / _SECONDS_A_DAY)
            for name, corrected, uncorrected in parse_counts(_counts_of_program()):
                yield from _rows(name, corrected, uncorrected, days)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        promise = self.promise
        most = promise.corrected_per_day_at_most
        yield rows.at_most(_RATE, most, "/day", part="corrected_per_day_at_most")
        yield rows.at_most(_UNCORRECTED, promise.uncorrected_at_most, part="uncorrected_at_most")

    fault = f"other_text:{{node}}:/{_FOLDER}/mc0/ue_count:3"
    promised_as = "{uncorrected_at_most: 0}"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, object] | None:
        return {} if seen(rows, _RATE) and seen(rows, _UNCORRECTED) else None


def _rows(
    name: str, corrected: int | None, uncorrected: int | None, days: float | None
) -> Iterator[Row]:
    rate = None if corrected is None or days is None else round(corrected / days, 2)
    if corrected == 0:
        rate = 0.0
    why = "no count of corrected errors, or no time since"
    yield row(_RATE, rate, "/day", device=name, why=why)
    yield row(_UNCORRECTED, uncorrected, device=name, why="no count of uncorrected errors")


def _counters(controller: Path) -> Iterator[tuple[str, int | None, int | None]]:
    """Name, corrected and uncorrected errors: of each DIMM, and what no DIMM was found for.

    Older kernels have rows (csrow) in place of DIMMs, and some drivers only a controller's sums.
    """
    dimms = [f for f in sysfs.entries(controller) if re.fullmatch(r"(dimm|rank)\d+", f.name)]
    told = [0, 0]
    for dimm in dimms:
        counts = [sysfs.count(dimm / f"dimm_{kind}_count") for kind in ("ce", "ue")]
        label = sysfs.text(dimm / "dimm_label")
        yield f"{controller.name} {label or dimm.name}", counts[0], counts[1]
        told = [sum_ + (count or 0) for sum_, count in zip(told, counts, strict=True)]
    sums = [sysfs.count(controller / f"{kind}_count") for kind in ("ce", "ue")]
    # What is told of DIMMs is in these sums as well.
    rest = [None if s is None else max(0, s - t) for s, t in zip(sums, told, strict=True)]
    if not dimms or any(rest):
        yield controller.name, rest[0], rest[1]


def _counts_of_program() -> str:
    try:
        return output_of("ras-mc-ctl", "--error-count", package="rasdaemon")
    except NoOutput as error:
        drivers = "i10nm_edac, amd64_edac, …"
        raise OSError(
            f"/{_FOLDER} has no controller: load its driver ({drivers}); {error}"
        ) from None


def parse_counts(printed: str) -> list[tuple[str, int, int]]:
    """Label, corrected and uncorrected errors of each line of `ras-mc-ctl --error-count`."""
    matches = map(_LINE.fullmatch, printed.splitlines())
    return [(match[1], int(match[2]), int(match[3])) for match in matches if match]
