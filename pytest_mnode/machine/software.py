"""Versions of a node's software, read from files: it is neither imported nor started."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_memory_limit

_VERSION = re.compile(r"^__version__\s*(?::\s*\w+\s*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_GIT = re.compile(r"^git_version\s*(?::[^=]+)?=\s*['\"]([0-9a-f]+)['\"]", re.MULTILINE)
_METADATA = (".dist-info", ".egg-info")
"""Metadata of pip, and of setuptools as distributions use it: a folder, or a single file."""
_METADATA_VERSION = re.compile(r"^Version:\s*(\S+)", re.MULTILINE)
_DRIVER = re.compile(r"(?:Kernel Module[^\n]*?)\s(\d+\.\d+(?:\.\d+)?)\b")
_SETTINGS = (
    *("ipv4/tcp_rmem", "ipv4/tcp_wmem", "core/rmem_max", "core/wmem_max", "core/rmem_default"),
    *("core/wmem_default", "core/netdev_max_backlog", "core/somaxconn", "core/default_qdisc"),
    *("ipv4/tcp_congestion_control", "ipv4/tcp_mtu_probing", "ipv4/tcp_window_scaling"),
    *("ipv4/tcp_sack", "ipv4/tcp_timestamps", "ipv4/tcp_moderate_rcvbuf"),
    *("ipv4/tcp_slow_start_after_idle", "ipv4/ip_local_port_range", "ipv4/tcp_ecn"),
    *("ipv4/tcp_limit_output_bytes", "ipv4/tcp_notsent_lowat", "ipv4/tcp_adv_win_scale"),
    *("ipv4/tcp_retries2", "ipv4/tcp_syn_retries", "ipv4/tcp_abort_on_overflow"),
    "ipv6/conf/all/disable_ipv6",
)
"""tcp_mem is left out because the kernel derives it from the size of the memory."""
_OF_INTERFACES = ("rp_filter", "arp_ignore", "arp_announce", "arp_filter", "proxy_arp")
"""Settings that decide which NIC of several answers and sends."""
_LIMITS = re.compile(r"(?m)^Max (cpu time|file size|data size|address space) +(\S+)")
_DMABUF = ("CONFIG_DMABUF_MOVE_NOTIFY=y", "CONFIG_PCI_P2PDMA=y")
"""What RCCL and perftest ask of a kernel for AMD's GPUs. Source: perftest, src/rocm_memory.c."""
NOT_THERE, UNREADABLE = "not there", "unreadable"
"""Used in place of a digest."""
_PROGRAMS = (".py", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".sh")
_MOST_FILES = 5000
_NCCL = "libnccl.so.2"
_NCCL_PLACES = (f"nvidia/nccl/lib/{_NCCL}", f"torch/lib/{_NCCL}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions; None if not installed, or not part of a recorded machine.

    driver: NVIDIA's; driver_is_open: whether it is the open kernel module, which has dma-buf.
    peermem: of the module by which NICs access NVIDIA's memory. peer_clients: names of the clients
    that are registered with InfiniBand's core for that. cpu: number and model of sockets.
    microcode: of all CPUs, or "none" where the kernel shows none, as on ARM. packages: version by
    name.
    """

    kernel: str | None
    driver: str | None
    driver_is_open: bool
    peermem: str | None
    peer_clients: tuple[str, ...] = ()
    kernel_has_dmabuf: bool = False
    cpu: str | None = None
    microcode: str | None = None
    python: str | None = None
    torch: str | None = None
    nccl: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)


def read_software(root: Path = Path("/")) -> Software:
    """Kernel and drivers below `root`; on a live machine also the software of this interpreter."""
    driver_text = sysfs.text(root / "proc/driver/nvidia/version")
    cpu, microcode = cpu_and_microcode(sysfs.text(root / "proc/cpuinfo"))
    kernel = sysfs.text(root / "proc/sys/kernel/osrelease")
    places = (root / f"boot/config-{kernel}", root / f"lib/modules/{kernel}/config")
    configured = next(filter(None, map(sysfs.text, places)), "").splitlines()
    machine = Software(
        kernel=kernel,
        driver=driver_version(driver_text),
        driver_is_open="open kernel module" in (driver_text or "").lower(),
        peermem=peermem_version(root),
        peer_clients=tuple(
            folder.name for folder in sysfs.entries(root / "sys/kernel/mm/memory_peers")
        ),
        kernel_has_dmabuf={*_DMABUF} <= {*configured},
        cpu=cpu,
        microcode=microcode,
    )
    if root != Path("/"):
        return machine
    return replace(
        machine,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        torch=torch_version(),
        nccl=nccl_version(),
        packages=dict(packages(sys.path)),
    )


def cpu_and_microcode(cpuinfo: str | None) -> tuple[str | None, str | None]:
    """Sockets with their model, and microcode, such as ("2 × AMD EPYC 9654", "0xa10113e").

    cpuinfo: of /proc; on ARM it has numbers of maker and part in place of a model.
    """
    models = dict.fromkeys(re.findall(r"(?m)^(?:model name|CPU part)\s*: (.*)$", cpuinfo or ""))
    if not models:
        return None, None
    sockets = len(set(re.findall(r"(?m)^physical id\s*: (\d+)", cpuinfo or "")))
    codes = dict.fromkeys(re.findall(r"(?m)^microcode\s*: (\S+)", cpuinfo or ""))
    count = f"{sockets} × " if sockets else ""
    return f"{count}{', '.join(models)}", ", ".join(sorted(codes)) or "none"


def kernel_settings(root: Path = Path("/")) -> dict[str, str]:
    """Settings that a network's speed depends on, and limits at which processes end, by name;
    unreadable ones are absent."""
    folder = root / "proc/sys/net"
    interfaces = [path.name for path in sysfs.entries(folder / "ipv4/conf")]
    names = [
        *_SETTINGS,
        *(f"ipv4/conf/{one}/{setting}" for one in interfaces for setting in _OF_INTERFACES),
    ]
    read = {name: sysfs.text(folder / name) for name in names}
    limits = _LIMITS.findall(sysfs.text(root / "proc/self/limits") or "")
    found = {f"limit of {name}": limit for name, limit in limits}
    if sysfs.text(root / "proc/self/cgroup") is not None:  # else whether there is one is not known
        found["memory limit of its control group"] = str(read_memory_limit(root) or "none")
    return found | {
        f"net.{name.replace('/', '.')}": " ".join(text.split())
        for name, text in read.items()
        if text is not None
    }


def code_digests(root: Path, name: str) -> dict[str, str]:
    """Short sha256 of each program below `root`, by its path with `name` for `root`.

    A directory that is missing has an entry of its own, so that a node without it differs.
    """
    if not root.is_dir():
        return {name: NOT_THERE}
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")))
        for file in sorted(files):
            if not file.endswith(_PROGRAMS) or len(found) >= _MOST_FILES:
                continue
            path = Path(folder, file)
            found[f"{name}/{path.relative_to(root)}"] = _digest(path)
    return found


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        return f"{UNREADABLE}: {error.strerror}"


def packages(search: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and versions of installed packages; the first one if a name occurs twice."""
    seen: set[str] = set()
    for place in dict.fromkeys(search):
        try:
            names = sorted(e.name for e in os.scandir(place or ".") if e.name.endswith(_METADATA))
        except OSError:
            continue
        for name in names:
            first, _, rest = name.rpartition(".")[0].partition("-")
            package = first.lower().replace("_", "-")
            # pip renames what it replaces, and an interrupted pip leaves it: ~orch for torch.
            if package in seen or package.startswith("~"):
                continue
            seen.add(package)
            files = (
                Path(place, name, "METADATA"),
                Path(place, name, "PKG-INFO"),
                Path(place, name),
            )
            version = _METADATA_VERSION.search(next(filter(None, map(_head, files)), ""))
            yield package, version[1] if version else rest.partition("-py")[0]


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(2048).decode(errors="replace")
    except OSError:
        return ""


def torch_version() -> str | None:
    """Version and commit of torch, without importing it; None if it is not installed."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    text = sysfs.text(Path(found.origin).with_name("version.py")) or ""
    version, commit = _VERSION.search(text), _GIT.search(text)
    if version is None:
        return None
    return f"{version[1]} ({commit[1][:10]})" if commit else version[1]


def nccl_version() -> str | None:
    """Version of the NCCL library that torch would load; None if there is none.

    Raises OSError if the library does not load or does not report its version.
    """
    library = next((path for path in _nccl_libraries() if path.exists()), Path(_NCCL))
    try:
        loaded = ctypes.CDLL(str(library))  # without a folder: where the dynamic linker finds it
    except OSError as error:
        if str(error).startswith(f"{_NCCL}: cannot open shared object file"):
            return None
        raise
    number = ctypes.c_int()
    if loaded.ncclGetVersion(ctypes.byref(number)) != 0:
        raise OSError(f"{library} does not report its version")
    return nccl_text(number.value)


def _nccl_libraries() -> Iterator[Path]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Path(folder, _NCCL)
    for place in dict.fromkeys(sys.path):
        for name in _NCCL_PLACES:
            yield Path(place, name)
    yield Path(sys.prefix, "lib", _NCCL)  # conda's


def nccl_text(number: int) -> str:
    """2.21.5 for 22105; the minor version has two digits since 2.9, one before. Source: nccl.h."""
    major, rest = divmod(number, 10000) if number >= 10000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def peermem_version(root: Path = Path("/")) -> str | None:
    """Version of the module by which NICs access NVIDIA's memory: today's or Mellanox's older one.

    None if neither is loaded. A module built without a version is "loaded".
    """
    for module in ("nvidia_peermem", "nv_peer_mem"):
        folder = root / "sys/module" / module
        if folder.is_dir():
            return sysfs.text(folder / "version") or "loaded"
    return None


def driver_version(text: str | None) -> str | None:
    """Version in /proc/driver/nvidia/version; None if there is none."""
    found = _DRIVER.search(text or "")
    return found[1] if found else None
