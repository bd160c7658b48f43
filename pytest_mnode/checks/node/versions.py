"""Versions of driver, kernel, firmware and libraries, against floors and ceilings."""

from __future__ import annotations

import operator
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.rdma import read_rdma
from pytest_mnode.machine.software import driver_version, nccl_text, nccl_version, torch_version
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Page

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    **{">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne},
    **{">": operator.gt, "<": operator.lt},
}
_BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:[.-]\d+)*)\s*")
_ACCEPTED = 'relations and numbers such as ">=550.90" or ">=550.90, <560", in quotes'
_VERSION = re.compile(r"\d+(?:[.-]\d+)*")
_KERNEL = "proc/sys/kernel/osrelease"
_OFED = "sys/module/mlx5_core/version"
_DCGM_LIMIT_S = 10.0


def _checked(written: str) -> str:
    if not all(_BOUND.fullmatch(one) for one in written.split(",")):
        raise ValueError(f"{written!r} is no bound of a version; accepted: {_ACCEPTED}")
    return written


def _dotted(written: str) -> str:
    return re.sub(r"\b\d{4,5}\b", lambda number: nccl_text(int(number[0])), written)


VersionBound = Annotated[str, AfterValidator(_checked)]
NcclBound = Annotated[VersionBound, AfterValidator(_dotted)]


class Versions(Page):
    """Bounds of versions, such as ">=550.90" or ">=550.90, <560". What is left out is not promised.

    Versions are compared number by number, up to as many numbers as the bound has: 5.15 is any
    5.15.x, so "<=5.15" includes 5.15.0-1057-aws, and ">5.15" does not.
    """

    driver: VersionBound | None = None
    """NVIDIA's kernel driver, such as ">=550.90", or amdgpu where it is no part of the kernel."""
    kernel: VersionBound | None = None
    """Linux, such as ">=5.15"."""
    firmware: VersionBound | None = None
    """Firmware of each RDMA device of `fabric.interfaces`, such as ">=28.39.2048"."""
    nccl: NcclBound | None = None
    """NCCL that torch loads, such as ">=2.21.5"; 22105 is the same."""
    torch: VersionBound | None = None
    """torch of the Python that runs ranks, such as ">=2.6"."""
    ofed: VersionBound | None = None
    """MLNX_OFED or DOCA-OFED, by its module mlx5_core, such as ">=24.10"; the kernel's own module
    has no version."""
    dcgm: VersionBound | None = None
    """NVIDIA's DCGM, by `dcgmi --version`, such as ">=3.3.5"."""


@check("preflight.versions")
class VersionsAreAsPromised(Check):
    """Are this node's driver, kernel, firmware and libraries of the versions promised?"""

    promise: Versions
    """Floors and ceilings of versions, on every node and device."""

    def read(self, root: Path) -> Iterator[Row]:
        for part in Versions.model_fields:
            if self.promise is None or getattr(self.promise, part) is not None:
                yield from _READERS[part](root)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        for part, bound in self.promise:
            if bound is None:
                continue
            asked = rows if part != "firmware" else rows.where(self._is_of_fabric)
            name = f"{part} of another version than {bound}"
            yield asked.none(part, name, partial(_breaks, bound), part=part)

    def _is_of_fabric(self, one: Row) -> bool:
        """Whether a row is of a device of the fabric, by its name or that of an interface."""
        names, patterns = one.device.split(), self.spec.fabric.interfaces
        return not names or any(fnmatchcase(name, p) for name in names for p in patterns)

    fault = "other_text:{node}:/proc/sys/kernel/osrelease:2.6.32-754.el6.x86_64"
    promised_as = '{kernel: ">=3.10"}'

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, str] | None:
        found = {}
        for part in ("driver", "kernel", "nccl", "firmware", "ofed"):
            numbers = [n for value in seen(rows, part) if (n := _numbers(str(value)))]
            # Firmware of another family of devices has another first number: no floor fits both.
            families = {number[0] for number in numbers} if part == "firmware" else {part}
            if numbers and len(families) == 1:
                found[part] = ">=" + ".".join(map(str, min(numbers)[:3]))
        return found or None


def _breaks(bound: str, one: Row) -> bool:
    return not keeps(one.value, bound)


def keeps(version: object, bound: str) -> bool:
    """Whether a version that was read keeps all relations of a bound."""
    numbers = _numbers(str(version))
    assert numbers, "rows with another text have no value"
    return all(_holds(numbers, one) for one in bound.split(","))


def _holds(numbers: tuple[int, ...], bound: str) -> bool:
    match = _BOUND.fullmatch(bound)
    assert match
    wanted = _numbers(match[2])
    padded = (*numbers, *[0] * len(wanted))[: len(wanted)]
    return _RELATIONS[match[1]](padded, wanted)


def _numbers(text: str) -> tuple[int, ...]:
    """(5, 15, 0, 1057) of "5.15.0-1057-aws"; () if there is no number."""
    match = _VERSION.search(text)
    return tuple(map(int, re.split("[.-]", match[0]))) if match else ()


def _row(part: str, text: str | None, why: str, device: str = "") -> Row:
    if text is not None and not _numbers(text):
        text, why = None, f"{text!r} is no version"
    return row(part, text, why=why, device=device)


def _firmware(root: Path) -> Iterator[Row]:
    for one in read_rdma(root) or ():
        if not one.virtual:
            device = " ".join([one.name, *one.netdevs])
            yield _row("firmware", one.firmware, "the device shows no fw_ver", device)


def _live(root: Path, part: str, text: Callable[[], str | None], why: str) -> Iterator[Row]:
    """A version that no file shows."""
    if root != Path("/"):
        yield row(part, why="not part of a recorded machine")
    else:
        try:
            yield _row(part, text(), why)
        except subprocess.TimeoutExpired as error:  # one that hangs hides no other version
            yield row(part, why=f"{error.cmd[0]} gave no answer within {error.timeout:g} s")


def _dcgm() -> str | None:
    program = shutil.which("dcgmi")
    if program is None:
        return None
    done = subprocess.run(
        [program, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_DCGM_LIMIT_S,
        check=False,
    )
    return next((line for line in done.stdout.splitlines() if _numbers(line)), None)


def _driver(root: Path) -> str | None:
    nvidia = driver_version(sysfs.text(root / "proc/driver/nvidia/version"))
    return nvidia or sysfs.text(root / "sys/module/amdgpu/version")


_READERS: Mapping[str, Callable[[Path], Iterable[Row]]] = {
    "driver": lambda root: [_row("driver", _driver(root), "no driver with a version is loaded")],
    "kernel": lambda root: [
        _row("kernel", sysfs.text(root / _KERNEL), f"/{_KERNEL} is unreadable")
    ],
    "firmware": _firmware,
    "nccl": lambda root: _live(root, "nccl", nccl_version, "torch finds no NCCL"),
    "torch": lambda root: _live(root, "torch", torch_version, "torch is not installed"),
    "ofed": lambda root: [_row("ofed", sysfs.text(root / _OFED), f"no /{_OFED}: not installed?")],
    "dcgm": lambda root: _live(root, "dcgm", _dcgm, "dcgmi is not on PATH: install DCGM"),
}
"""Source of ofed: modinfo mlx5_core of MLNX_OFED; of dcgm: dcgmi(1)."""
