"""Health of NVMe drives: one that is worn, or has lost data, still looks like the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.programs import NoOutput, json_in, output_of
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Count, Section

_WARNING, _USED, _SPARE = "warnings of NVMe drives", "wear of NVMe drives", "spare of NVMe drives"
_ERRORS = "media errors of NVMe drives"
_WARNINGS = (
    *("spare below its threshold", "temperature", "reliability degraded", "read-only"),
    *("backup of volatile memory failed", "persistent memory region unreliable"),
)
"""Bits of the critical warning. Source: NVM Express base specification, SMART / Health log."""
_NAMES = {
    _USED: ("percent_used", "percentage_used"),
    _ERRORS: ("media_errors", "media_and_data_integrity_errors"),
    "spare": ("avail_spare", "available_spare"),
    "threshold": ("spare_thresh", "available_spare_threshold", "spare_threshold"),
}
"""Keys of nvme-cli's releases, and of smartctl."""
_CONTROLLER = re.compile(r"(?:/dev/)?(nvme\d+)(?:n\d+)?")


class NvmeHealth(Section):
    """NVMe drives on PCIe warn of nothing, and have more spare blocks than their threshold."""

    used_percent_at_most: Annotated[int, Field(strict=True, ge=0, le=255)] = 100
    """Wear, by the maker's estimate: at 100 a drive has done all that it was sold for."""
    media_errors_at_most: Count = 0
    """How often a drive could not read or write data unharmed, over its life."""


@check("preflight.nvme")
class NvmeDrivesAreHealthy(Check):
    """Are all NVMe drives of this node healthy: no warning, spare blocks left, no data lost?

    Read from each controller's SMART log by `nvme smart-log`, or else by `smartctl`; both ask for
    root. How many drives there are, `hardware.nvme` promises.
    """

    promise: NvmeHealth
    alone = True

    def read(self, root: Path) -> Iterator[Row]:
        if root != Path("/"):
            raise OSError("a drive's log is not part of a recorded machine")
        for name in _controllers(root):
            try:
                yield from rows_of(name, _log(name))
            except (NoOutput, ValueError) as error:
                for metric in (_WARNING, _SPARE, _USED, _ERRORS):
                    yield row(metric, why=str(error), device=name)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        yield rows.equals(_WARNING, "none")
        yield rows.equals(_SPARE, "above its threshold")
        promise = self.promise
        yield rows.at_most(_USED, promise.used_percent_at_most, part="used_percent_at_most")
        yield rows.at_most(_ERRORS, promise.media_errors_at_most, part="media_errors_at_most")

    fault = (
        "other_text:{node}:/sys/class/nvme/nvme0/transport:pcie,"
        'other_program:{node}:nvme:{{"critical_warning": 4}}'
    )
    promised_as = "{}"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, object] | None:
        return {} if seen(rows, _WARNING) == ["none"] and seen(rows, _ERRORS) == [0] else None


def _controllers(root: Path) -> list[str]:
    """From sysfs, or, where a container hides that, from `nvme list`."""
    found = [
        one.name
        for one in sysfs.entries(root / "sys/class/nvme")
        if sysfs.text(one / "transport") in ("pcie", None)
    ]
    return found or sorted(
        _named(json_in(output_of("nvme", "list", "-o", "json", package="nvme-cli"))),
        key=sysfs.by_number,
    )


def _named(listed: Any) -> set[str]:
    """Controllers on PCIe in the list of any release: flat, or by subsystem and controller."""
    if isinstance(listed, list):
        return set[str]().union(*map(_named, listed))
    if not isinstance(listed, dict) or listed.get("Transport", "pcie") != "pcie":
        return set()
    below = set[str]().union(*map(_named, listed.values()))
    names = (listed.get(key) for key in ("DevicePath", "Controller"))
    matches = [_CONTROLLER.fullmatch(name) for name in names if isinstance(name, str)]
    return below | {match[1] for match in matches if match}


def _log(name: str) -> Mapping[str, Any]:
    """A controller's log. Raises NoOutput or ValueError."""
    device, whys = f"/dev/{name}", []
    for argv, package in (
        (("nvme", "smart-log", device, "-o", "json"), "nvme-cli"),
        (("smartctl", "-j", "-A", "-H", device), "smartmontools"),
    ):
        try:
            # smartctl's status has a bit for all that is wrong with the drive.
            printed = json_in(output_of(*argv, package=package, may_fail=True))
        except (NoOutput, ValueError) as error:
            whys.append(str(error) if isinstance(error, NoOutput) else f"{argv[0]}: {error}")
            continue
        printed = printed if isinstance(printed, dict) else {}
        log = printed.get("nvme_smart_health_information_log", printed)
        if isinstance(log, dict) and "critical_warning" in log:
            return log
        messages = (printed.get("smartctl") or {}).get("messages") or []
        said = [str(one.get("string")) for one in messages]
        whys.append(f"{argv[0]}: {'; '.join(said) or 'no SMART log'}")
    denied = any("denied" in why.lower() or "not permitted" in why.lower() for why in whys)
    raise NoOutput(f"{'; '.join(whys)}{'; rerun as root' if denied else ''}")


def rows_of(name: str, log: Mapping[str, Any]) -> Iterator[Row]:
    """Rows of a controller's log, as nvme-cli or smartctl print it in JSON."""
    bits = log["critical_warning"]
    if isinstance(bits, dict):  # nvme-cli 2 with -v, and for some drives
        bits = bits.get("value")
    number = _number(bits)
    warnings = None if number is None else [w for i, w in enumerate(_WARNINGS) if number >> i & 1]
    unknown = [f"bit {i}" for i in range(len(_WARNINGS), 8) if number and number >> i & 1]
    shown = None if warnings is None else ", ".join(warnings + unknown) or "none"
    yield row(_WARNING, shown, device=name, why=f"critical_warning reads {bits!r}")
    spare, threshold = (_of(log, key) for key in ("spare", "threshold"))
    known = spare is not None and threshold is not None
    low = known and spare < threshold  # type: ignore[operator]
    words = f"{spare} % of {threshold} % that it asks for" if low else "above its threshold"
    yield row(_SPARE, words if known else None, device=name, why="no available_spare in its log")
    for metric, unit in ((_USED, "%"), (_ERRORS, "")):
        yield row(metric, _of(log, metric), unit, device=name, why=f"no {_NAMES[metric][-1]} there")


def _of(log: Mapping[str, Any], key: str) -> int | None:
    return next((_number(log[name]) for name in _NAMES[key] if name in log), None)


def _number(value: Any) -> int | None:
    """A whole number; releases of nvme-cli write large ones as texts, 0x… or with commas."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        return sysfs.number_of(value.replace(",", "").replace("%", "").strip())
    return int(value)
