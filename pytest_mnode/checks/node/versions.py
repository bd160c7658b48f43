"""Versions of driver, kernel, firmware and libraries, against floors and ceilings."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows, listed
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.model import read_accelerators
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.machine.rdma import read_rdma
from pytest_mnode.machine.software import driver_version, nccl_text, nccl_version, torch_version
from pytest_mnode.machine.switches import switch_versions
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Section

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    **{">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne},
    **{">": operator.gt, "<": operator.lt},
}
_BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:[.-]\d+)*)\s*")
_ACCEPTED = 'relations and numbers such as ">=550.90" or ">=550.90, <560", in quotes, or same'
_VERSION = re.compile(r"\d+(?:[.-]\d+)*")
_DRAFTED = (
    *("driver", "kernel", "nccl", "firmware", "ofed", "dcgm", "container_toolkit", "cuda"),
    *("gdrcopy", "libfabric", "efa_installer", "aws_ofi_nccl", "rocm"),
)
_OF_PORTS = ("firmware", "switch")
_SAME, _OF_DRIVER = "same", "driver"
_KERNEL = "proc/sys/kernel/osrelease"


def _checked(written: str) -> str:
    if written != _SAME and not all(_BOUND.fullmatch(one) for one in written.split(",")):
        raise ValueError(f"{written!r} is no bound of a version; accepted: {_ACCEPTED}")
    return written


def _checked_hex(written: str) -> str:
    try:
        _checked(_in_decimal(written))
    except ValueError:
        raise ValueError(f"{written!r} is no bound of a VBIOS; accepted: {_ACCEPTED}") from None
    return written


def _checked_manager(written: str) -> str:
    try:
        return written if written == _OF_DRIVER else _checked(written)
    except ValueError as error:
        raise ValueError(f"{error}, or driver") from None


def _dotted(written: str) -> str:
    return re.sub(r"\b\d{4,5}\b", lambda number: nccl_text(int(number[0])), written)


def _in_decimal(written: str) -> str:
    """A VBIOS's parts are hexadecimal: 150.0.165 of 96.00.A5."""
    if written == _SAME:
        return written
    return re.sub(r"[0-9A-Fa-f]+", lambda part: str(int(part[0], 16)), written)


VersionBound = Annotated[str, AfterValidator(_checked)]
NcclBound = Annotated[VersionBound, AfterValidator(_dotted)]
VbiosBound = Annotated[str, AfterValidator(_checked_hex)]
ManagerBound = Annotated[str, AfterValidator(_checked_manager)]


class Versions(Section):
    """Bounds of versions, such as ">=550.90" or ">=550.90, <560", or same: that of the other nodes,
    or switches, whatever it is. What is left out is not promised.

    Versions are compared number by number, up to as many numbers as the bound has: 5.15 is any
    5.15.x, so "<=5.15" includes 5.15.0-1057-aws, and ">5.15" does not.
    """

    driver: VersionBound | None = None
    """NVIDIA's kernel driver, such as ">=550.90", or amdgpu where it is no part of the kernel."""
    kernel: VersionBound | None = None
    """Linux, such as ">=5.15"."""
    firmware: VersionBound | None = None
    """Firmware of each RDMA device of `fabric.interfaces`, such as ">=28.39.2048"."""
    switch: VersionBound | None = None
    """What runs on the switch of each port of `fabric.interfaces`: of InfiniBand its firmware, by
    `flint -d lid-N q` of MFT or mstflint, usually as root, such as ">=31.2012"; else its software,
    as it describes itself by LLDP (lldpd), such as ">=5.9". Its nodes are only suspected."""
    nccl: NcclBound | None = None
    """NCCL that torch loads, such as ">=2.21.5"; 22105 is the same."""
    torch: VersionBound | None = None
    """torch of the Python that runs ranks, such as ">=2.6"."""
    ofed: VersionBound | None = None
    """MLNX_OFED or DOCA-OFED, by `ofed_info -s` or its module mlx5_core, such as ">=24.10"; the
    kernel's own module has no version."""
    dcgm: VersionBound | None = None
    """NVIDIA's DCGM, by `dcgmi --version`, such as ">=3.3.5"."""
    vbios: VbiosBound | None = None
    """Of each accelerator, such as ">=96.00.A5"; parts of NVIDIA's are hexadecimal."""
    gsp: VersionBound | None = None
    """Firmware of the processor on each NVIDIA GPU, such as ">=570"; it comes with the driver."""
    fabric_manager: ManagerBound | None = None
    """NVIDIA's Fabric Manager, by `nv-fabricmanager --version`; driver: the driver's own version,
    without which it does not start."""
    container_toolkit: VersionBound | None = None
    """NVIDIA's Container Toolkit, by `nvidia-ctk --version`, such as ">=1.17"."""
    cuda: VersionBound | None = None
    """CUDA's toolkit, in /usr/local/cuda or by `nvcc --version`, such as ">=12.8"."""
    gdrcopy: VersionBound | None = None
    """Its module gdrdrv, such as ">=2.4"."""
    libfabric: VersionBound | None = None
    """By `fi_info --version`, such as ">=1.22"."""
    efa_installer: VersionBound | None = None
    """Amazon's, in /opt/amazon/efa_installed_packages, such as ">=1.38"."""
    aws_ofi_nccl: VersionBound | None = None
    """NCCL's plugin for libfabric, as installed by Amazon's installer or below /opt."""
    rocm: VersionBound | None = None
    """In /opt/rocm/.info/version, such as ">=6.3"."""


@check("preflight.versions")
class VersionsAreAsPromised(Check):
    """Are this node's driver, kernel, firmware and libraries of the versions promised?"""

    promise: Versions
    """Floors and ceilings of versions, on every node and device."""

    def read(self, root: Path) -> Iterator[Row]:
        every = list(Versions.model_fields)
        parts = [p for p in every if self.promise is None or getattr(self.promise, p) is not None]
        if self.promise is not None and self.promise.fabric_manager == _OF_DRIVER:
            parts.append(_OF_DRIVER)
        # Side by side, because each program that hangs takes its whole limit.
        with ThreadPoolExecutor() as pool:
            for found in pool.map(lambda part: _read(root, part), dict.fromkeys(parts)):
                yield from found

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        for part, bound in self.promise:
            if bound is None or (bound == _SAME and len(rows.by_node) == 1):
                continue
            asked = rows.where(self._is_of_fabric) if part in _OF_PORTS else rows
            if part == "switch":
                yield _of_switches(asked, bound)
            elif bound == _SAME:
                yield asked.same(part)
            elif bound == _OF_DRIVER:
                yield _of_driver(rows, part)
            else:
                name = f"{part} of another version than {bound}"
                yield asked.none(part, name, partial(_breaks, part, bound), part=part)

    def _is_of_fabric(self, one: Row) -> bool:
        """Whether a row is of a device of the fabric, by its name or that of an interface."""
        names, patterns = one.device.split(), self.spec.fabric.interfaces
        return not names or any(fnmatchcase(name, p) for name in names for p in patterns)

    @classmethod
    def programs(cls, promise: Versions) -> list[str]:
        asked = [part for part, bound in promise if bound is not None and part not in _FILES]
        return [_PROGRAMS[part][0][0] for part in asked if part in _PROGRAMS]

    fault = "other_text:{node}:/proc/sys/kernel/osrelease:2.6.32-754.el6.x86_64"
    promised_as = '{kernel: ">=3.10"}'

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, str] | None:
        found = {}
        for part in _DRAFTED:
            numbers = [n for value in seen(rows, part) if (n := _numbers(str(value)))]
            # Firmware of another family of devices has another first number: no floor fits both.
            families = {number[0] for number in numbers} if part == "firmware" else {part}
            if numbers and len(families) == 1:
                found[part] = ">=" + ".".join(map(str, min(numbers)[:3]))
        return found or None


def _breaks(part: str, bound: str, one: Row) -> bool:
    if part == "vbios":
        return not keeps(_in_decimal(str(one.value)), _in_decimal(bound))
    return not keeps(one.value, bound)


def _of_switches(rows: Rows, bound: str) -> Measurement:
    """Versions of the switches of a node's ports, whatever their names. An old switch is no fault
    of its nodes, which are only suspected."""
    usual, words = "", f"another version than {bound}"
    if bound == _SAME:
        of_switch: dict[object, str] = {
            one.peer or (node, one.device): str(one.value)
            for node, found in rows.by_node.items()
            for one in found
            if one.value is not None
        }
        first, *others = [*Counter(of_switch.values()).most_common(2), ("", 0)]
        # Without a majority nobody knows which of the versions is wrong.
        usual = first[0] if first[1] > others[0][1] else ""
        words = f"another version than {usual or 'the others'}, that of most switches"

    def is_bad(one: Row) -> bool:
        return one.value != usual if bound == _SAME else _breaks("switch", bound, one)

    judged = rows.none("switch", f"switch of {words}", is_bad, part="switch")
    if judged.culprit is None:
        return judged
    bad = [one for one in rows.of("switch") if one.value is not None and is_bad(one)]
    named = listed([f"{one.peer or 'switch'} ({one.value}) of {one.device}" for one in bad])
    return replace(judged, culprit=Culprit(f"{rows.node}: {named}", rows.node).suspected)


def _of_driver(rows: Rows, part: str) -> Measurement:
    name = f"{part} of another version than the driver"
    driver = next((_numbers(str(one.value)) for one in rows.of(_OF_DRIVER) if one.value), ())
    if not driver:
        return rows.none(_OF_DRIVER, name, lambda _: False, part=part)
    return rows.none(part, name, lambda one: _numbers(str(one.value)) != driver, part=part)


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


def _read(root: Path, part: str) -> list[Row]:
    """Rows of a part: from its own reader, files, or a program, in this order."""
    if part in _READERS:
        return list(_READERS[part](root))
    files, pattern = _FILES.get(part, ((), ""))
    for file in files:
        if found := re.search(pattern, sysfs.text(root / file) or ""):
            return [_row(part, found[1], "")]
    nowhere = f"no {', '.join(f'/{file}' for file in files)}: not installed?" if files else ""
    if part not in _PROGRAMS:
        return [row(part, why=nowhere)]
    if root != Path("/"):
        return [row(part, why="not part of a recorded machine")]
    argv, package, pattern = _PROGRAMS[part]
    try:
        printed = output_of(*argv, package=package)
    except NoOutput as error:
        return [row(part, why="; ".join(filter(None, [nowhere, str(error)])))]
    match = re.search(pattern, printed)
    return [_row(part, match[1] if match else None, f"{argv[0]} prints no version")]


def _firmware(root: Path) -> Iterator[Row]:
    for one in read_rdma(root) or ():
        if not one.virtual:
            device = " ".join([one.name, *one.netdevs])
            yield _row("firmware", one.firmware, "the device shows no fw_ver", device)


def _switch() -> Iterator[Row]:
    for one in switch_versions(Path("/")):
        read = _row("switch", one.version, one.why, " ".join(one.names))
        yield replace(read, peer=one.switch)


def _driver(root: Path) -> Iterator[Row]:
    nvidia = driver_version(sysfs.text(root / "proc/driver/nvidia/version"))
    version = nvidia or sysfs.text(root / "sys/module/amdgpu/version")
    yield _row("driver", version, "no driver with a version is loaded")


def _live(part: str, rows: Callable[[], Iterable[Row]]) -> Callable[[Path], Iterator[Row]]:
    """Reader of versions that no file has: of libraries of this interpreter, and of devices."""

    def read(root: Path) -> Iterator[Row]:
        if root != Path("/"):
            yield row(part, why="not part of a recorded machine")
            return
        try:
            yield from rows()
        except OSError as error:  # a library that does not load
            yield row(part, why=str(error))

    return read


def _ofed(root: Path) -> Iterator[Row]:
    # The kernel's own module has a version too before Linux 5.10, which says nothing of OFED's.
    module, why = sysfs.text(root / _MLX5), f"no /{_MLX5}"
    try:
        if root == Path("/"):
            module = output_of("ofed_info", "-s", package="DOCA-OFED").strip() or module
    except NoOutput as error:
        why = f"{why}; {error}"
    yield _row("ofed", module, why)


def _of_accelerators(part: str) -> Iterator[Row]:
    for one in read_accelerators(Path("/")):
        why = one.problem or "does not report it"
        yield _row(part, getattr(one, part), why, f"accelerator {one.index}")


def _ofi_plugin(root: Path) -> Iterator[Row]:
    """Amazon's installer lists it; otherwise the library has its name and version in it."""
    if listed := _OFI_PACKAGE.search(sysfs.text(root / _EFA) or ""):
        yield row("aws_ofi_nccl", listed[1])
        return
    for folder in ("opt/amazon/ofi-nccl", "opt/amazon/aws-ofi-nccl", "opt/aws-ofi-nccl"):
        for library in (root / folder).glob("lib/**/libnccl-net*.so"):
            if found := _OFI_LIBRARY.search(library.read_bytes()):
                yield row("aws_ofi_nccl", found[1].decode())
                return
    yield row("aws_ofi_nccl", why=f"neither in /{_EFA} nor below /opt: install aws-ofi-nccl")


_MLX5 = "sys/module/mlx5_core/version"
_EFA = "opt/amazon/efa_installed_packages"
_OFI_PACKAGE = re.compile(r"(?:aws-ofi-nccl|libnccl-ofi)[-_]v?(\d[\d.]*\d)")
_OFI_LIBRARY = re.compile(rb"aws-ofi-nccl[ -]v?(\d+\.\d[\d.]*)")
_READERS: Mapping[str, Callable[[Path], Iterable[Row]]] = {
    "driver": _driver,
    "firmware": _firmware,
    "switch": _live("switch", _switch),
    "nccl": _live("nccl", lambda: [_row("nccl", nccl_version(), "torch finds no NCCL")]),
    "torch": _live("torch", lambda: [_row("torch", torch_version(), "torch is not installed")]),
    "vbios": _live("vbios", lambda: _of_accelerators("vbios")),
    "gsp": _live("gsp", lambda: _of_accelerators("gsp")),
    "ofed": _ofed,
    "aws_ofi_nccl": _ofi_plugin,
}
_ANY = r"(?i)version\D*(\d\S*)"
_FILES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "kernel": ((_KERNEL,), r"(.+)"),
    "cuda": (
        ("usr/local/cuda/version.json", "usr/local/cuda/version.txt"),
        r'(?s)(?:"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"|CUDA Version )([\d.]+)',
    ),
    "gdrcopy": (("sys/module/gdrdrv/version",), r"(.+)"),
    "efa_installer": ((_EFA,), r"EFA installer version: (\S+)"),
    "rocm": (("opt/rocm/.info/version",), r"(.+)"),
}
_PROGRAMS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "dcgm": (("dcgmi", "--version"), "datacenter-gpu-manager", _ANY),
    "fabric_manager": (("nv-fabricmanager", "--version"), "nvidia-fabricmanager", _ANY),
    "container_toolkit": (("nvidia-ctk", "--version"), "nvidia-container-toolkit", _ANY),
    "cuda": (("nvcc", "--version"), "cuda-toolkit", r"release [\d.]+, V(\S+)"),
    "libfabric": (("fi_info", "--version"), "libfabric", r"(?m)^libfabric: (\S+)"),
}
"""Arguments, package and where the version is. Source: the programs' manuals and their output."""
