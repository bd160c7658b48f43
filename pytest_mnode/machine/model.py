"""The model of a machine and its readers."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pytest_mnode.logs.kernel_log import Log
from pytest_mnode.logs.kernel_log import read as read_kernel_log
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.amdsmi import read_amd_smi, read_amdsmi
from pytest_mnode.machine.cpus import Cpus, read_cpus
from pytest_mnode.machine.dmi import Dmi, read_dmi
from pytest_mnode.machine.mounts import Mount, read_mounts
from pytest_mnode.machine.netdev import Interface, Kind, live, rate_mbits_s, read_interfaces
from pytest_mnode.machine.netlink import Refusal, read_refusals
from pytest_mnode.machine.numa import Numa, read_numa
from pytest_mnode.machine.nvidia_smi import read_nvidia_smi
from pytest_mnode.machine.nvml import Accelerator, NvmlAnswer, read_nvml
from pytest_mnode.machine.pci import AMD, NVIDIA, PciTree, read_pci
from pytest_mnode.machine.process import Limits, read_limits
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.machine.rdma import Port, RdmaDevice, VerbsDevice, read_rdma, read_verbs
from pytest_mnode.machine.software import Software, kernel_settings, read_software

T = TypeVar("T")
PART_LIMIT_S = 10.0
"""Time limit of one part: a call into a broken driver can hang."""
_SCHEDULER_LIMIT_S = 5.0
_LIVE = Path("/")
_IBV_LINE = re.compile(r"\s*(hca_id|port|active_mtu):\s*(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. A part that was not requested, or cannot be read, is None or empty.

    boot_id: changes with each boot. active_mtus: MTU in bytes that RDMA ports use, by names
    such as mlx5_0:1, from ibv_devinfo. refusals: routes and rules configured to refuse packets.
    limits: of the reading process. verbs: character devices of RDMA. shm_bytes: size of /dev/shm.
    settings: kernel settings that networks depend on, by sysctl's names. scheduler: "slurm" if its
    controller answers. unread: reason why a part cannot be read, by the part's name.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}
    hostname: str | None = None
    boot_id: str | None = None
    interfaces: tuple[Interface, ...] | None = None
    rdma: tuple[RdmaDevice, ...] | None = None
    active_mtus: Mapping[str, int] | None = None
    refusals: tuple[Refusal, ...] | None = None
    pci: PciTree = field(default_factory=PciTree)
    accelerators: tuple[Accelerator, ...] | None = None
    cpus: Cpus = field(default_factory=Cpus)
    numa: Numa = field(default_factory=Numa)
    shm_bytes: int | None = None
    mounts: tuple[Mount, ...] | None = None
    limits: Limits | None = None
    verbs: tuple[VerbsDevice, ...] | None = None
    settings: Mapping[str, str] | None = None
    software: Software | None = None
    kernel_log: Log | None = None
    scheduler: str | None = None
    dmi: Dmi | None = None
    unread: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        root: Path = _LIVE,
        parts: Collection[str] | None = None,
        *,
        limit_s: float = PART_LIMIT_S,
    ) -> Self:
        """The machine below `root`: the running one, or a recorded tree of /sys and /proc.

        parts: names of fields; None means all. Parts are read concurrently; a part that takes
        longer than `limit_s` is abandoned and named in `unread`.
        """
        wanted = PARTS if parts is None else parts
        results: dict[str, Any] = {}
        unread: dict[str, str] = {}

        def read_part(name: str) -> None:
            try:
                if root != _LIVE and name in _ONLY_LIVE:
                    raise OSError("not part of a recorded machine")
                results[name] = _READERS[name](root)
            except Exception as error:  # bad drivers and files can cause any error
                own_words = isinstance(error, OSError) and error.errno is None
                unread[name] = str(error) if own_words else f"{type(error).__name__}: {error}"

        threads = {
            name: threading.Thread(target=read_part, args=(name,), daemon=True) for name in wanted
        }
        for thread in threads.values():
            thread.start()
        end = time.monotonic() + limit_s
        for name, thread in threads.items():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                unread[name] = f"no answer within {limit_s:g} s"
        late = unread.keys() & results.keys()  # parts that arrived after the limit
        return cls(**{n: v for n, v in results.items() if n not in late}, unread=dict(unread))

    @property
    def by_name(self) -> dict[str, Interface]:
        """Network interfaces by name."""
        return {one.name: one for one in self.interfaces or ()}

    @property
    def ports(self) -> tuple[Port, ...]:
        """Ports of all RDMA devices."""
        return tuple(port for device in self.rdma or () for port in device.ports)

    def device(self, name: str) -> RdmaDevice | None:
        """The RDMA device of this name; None if there is none."""
        return next((device for device in self.rdma or () if device.name == name), None)

    def rdma_devices_of(self, interface: str) -> tuple[str, ...]:
        """Names of the RDMA devices that an interface belongs to."""
        return tuple(device.name for device in self.rdma or () if interface in device.netdevs)

    def port_rate_mbits_s(self, port: Port) -> float | None:
        """Rate of an RDMA port: that of the bond if the port stands for all of its NICs.

        Such a port (mlx5_bond_0) itself shows the rate of one NIC. If each NIC has a device of its
        own, the port has the rate of its NIC.
        """
        device, known = self.device(port.device), self.by_name
        for name in device.netdevs if device else ():
            bonded = name in known and known[name].kind is Kind.BOND
            if bonded and len(self.rdma_devices_of(name)) == 1:
                return rate_mbits_s(known[name], known)
        return None if port.rate_gbits_s is None else port.rate_gbits_s * 1e3

    def matching(self, patterns: Collection[str]) -> list[Interface]:
        """Interfaces for which a shell pattern matches their name or that of their RDMA device."""
        return [
            one
            for one in self.interfaces or ()
            if any(
                fnmatchcase(name, pattern)
                for name in (one.name, *self.rdma_devices_of(one.name))
                for pattern in patterns
            )
        ]


def _shm_bytes(_: Path) -> int:
    volume = os.statvfs("/dev/shm")
    return volume.f_frsize * volume.f_blocks


def _interfaces(root: Path) -> tuple[Interface, ...]:
    found = _listed("/sys/class/net", read_interfaces(root))
    return live(found) if root == _LIVE else found


def _listed(folder: str, found: T | None) -> T:
    if found is None:
        raise OSError(f"{folder} cannot be listed")
    return found


def read_accelerators(root: Path = _LIVE) -> tuple[Accelerator, ...]:
    """By NVML, or else nvidia-smi; of AMD, by amdsmi, or else ROCm's programs: of the makers on
    PCI, if there are any. Raises OSError with what each said."""
    makers = {one.vendor for one in read_pci(root).accelerators}
    readers = [read for maker, read in _ACCELERATOR_READERS if not makers or maker in makers]
    if not readers:
        names = ", ".join(dict.fromkeys(one.maker for one in read_pci(root).accelerators))
        raise OSError(f"no program that tells of accelerators of {names} is known")
    answers = []
    for read in readers:
        answers.append(answer := read())
        if answer.found:
            return answer.found
    if any(answer.found is not None for answer in answers):
        return ()
    raise OSError("; ".join(answer.why for answer in answers))


def _active_mtus(_: Path) -> Mapping[str, int]:
    try:
        printed = output_of("ibv_devinfo", "-v", package="ibverbs-utils", may_fail=True)
    except NoOutput:
        return {}
    return parse_active_mtus(printed)


def parse_active_mtus(printed: str) -> Mapping[str, int]:
    """MTU in bytes by port, such as mlx5_0:1, from the valid lines of `ibv_devinfo -v`.

    Source: ibv_devinfo(1), of rdma-core.
    """
    found: dict[str, int] = {}
    device = port = ""
    for line in printed.splitlines():
        match = _IBV_LINE.match(line)
        if match is None:
            continue
        key, value = match.groups()
        if key == "hca_id":
            device, port = value, ""
        elif not (value.isascii() and value.isdigit()):
            continue
        elif key == "port":
            port = value
        elif device and port:
            found[f"{device}:{port}"] = int(value)
    return found


def _scheduler(_: Path) -> str | None:
    """Slurm's commands are no proof of Slurm: they may be installed where no controller answers."""
    try:
        argv = ("sinfo", "--noheader", "--format=%P")
        said = output_of(*argv, package="slurm-client", limit_s=_SCHEDULER_LIMIT_S)
    except NoOutput:
        return None
    return "slurm" if said.strip() else None


_ACCELERATOR_READERS: tuple[tuple[str, Callable[[], NvmlAnswer]], ...] = (
    *((NVIDIA, read_nvml), (NVIDIA, read_nvidia_smi)),
    *((AMD, read_amdsmi), (AMD, read_amd_smi)),
)
_READERS: Mapping[str, Callable[[Path], Any]] = {
    "hostname": lambda root: sysfs.text(root / "proc/sys/kernel/hostname"),
    "boot_id": sysfs.boot_id,
    "interfaces": _interfaces,
    "rdma": lambda root: _listed("/sys/class/infiniband", read_rdma(root)),
    "active_mtus": _active_mtus,
    "refusals": lambda _: read_refusals(),
    "pci": read_pci,
    "accelerators": read_accelerators,
    "cpus": read_cpus,
    "numa": read_numa,
    "shm_bytes": _shm_bytes,
    "mounts": read_mounts,
    "limits": read_limits,
    "verbs": lambda root: _listed("/sys/class", read_verbs(root)),
    "settings": kernel_settings,
    "software": read_software,
    "kernel_log": lambda _: read_kernel_log(),
    "scheduler": _scheduler,
    "dmi": read_dmi,
}
PARTS = tuple(_READERS)
_ONLY_LIVE = ("active_mtus", "refusals", "accelerators", "shm_bytes", "kernel_log", "scheduler")
