"""NVLinks of GPUs, by nvidia-smi or NVML, and their fabric: NVSwitches, fabric manager, IMEX.

Sources: nvidia-smi(1), section Fabric of -q; NVIDIA, "Fabric Manager User Guide", "NVIDIA IMEX
Service for NVLink Networks".
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_mnode.logs.lines import number
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.programs import NVIDIA, output_of

_GPU = re.compile(r"\s*GPU (\d+): ?(.*)")
_LINK = re.compile(r"\s*Link (\d+): *(.*\S)")
_SPEED = re.compile(r"(\d+(?:[.,]\d+)?) *GB/s", re.IGNORECASE)
_COUNTER = re.compile(r"(.*?): *(\S+)")
_BER = ("Effective BER", "Symbol BER")
_RECOVERIES = re.compile(r"(?i)recovery (?:errors|successful|failed)|discards|malformed|overrun")
_NO_ERRORS = re.compile(r"(?i)^FEC|\bTotal\b|BER$|Throughput|^Tx (?!discards)|packets|bytes")
"""FEC bins are codewords that were corrected, most of them without an error; totals count twice."""
_MOST_LINKS = 36
_NVML_SPEED = 164
"""Field of a link's speed, MB/s, with the link as its scope. Source: nvml.h."""
_NVML_COUNTERS = ("Replay Errors", "Recovery Errors", "CRC FLIT Errors", "CRC Data Errors")
"""By number. Source: nvml.h, nvmlNvLinkErrorCounter_t."""
IMEX_CONFIG = "etc/nvidia-imex/config.cfg"
IMEX_NODES = "etc/nvidia-imex/nodes_config.cfg"
_GPU_OF_QUERY = re.compile(r"GPU ([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s*$")
_NODE = re.compile(r"\s*Node #\d+\s*[-*]\s*(\S+)(?:\s*\*)?\s*-\s*([A-Z_]+)")
"""The node itself stands between asterisks."""
_STATE = re.compile(r"Domain State:\s*(\S+)")
_NODES_FILE = re.compile(r"(?m)^\s*IMEX_NODES?_CONFIG_FILE\s*=\s*(\S+)")
_NO_ILLS = {"state", "status", "cliqueid", "clusteruuid", "partitionassigned"}
_WELL = ("healthy", "full", "false", "none")
_UNKNOWN = ("n/a", "[n/a]", "not supported", "[not supported]", "unknown", "")


@dataclass(frozen=True, slots=True)
class NvLink:
    """A link. gbytes_s: its rate in one direction, GB/s; 0 if it is inactive; None if not known.

    counters: by nvidia-smi's names. bit_error_rate: after correction, of Blackwell and later.
    """

    gbytes_s: float | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    bit_error_rate: float | None = None

    @property
    def recoveries(self) -> int | None:
        """How often it was set up again, or lost packets; None if nothing is counted."""
        found = [by for name, by in self.counters.items() if _RECOVERIES.search(name)]
        return sum(found) if found else None

    @property
    def errors(self) -> int | None:
        """Errors that it corrected by sending again; None if nothing is counted."""
        found = [
            by
            for name, by in self.counters.items()
            if not _NO_ERRORS.search(name) and not _RECOVERIES.search(name)
        ]
        return sum(found) if found else None


Links = Mapping[int, Mapping[int, NvLink] | str]
"""Links by GPU and number, or why a GPU's are not known. A GPU without NVLink has none."""


def parse_status(text: str) -> dict[int, dict[int, NvLink] | str]:
    """What `nvidia-smi nvlink -s` prints. Source: its output under drivers 470 to 580."""
    found: dict[int, dict[int, NvLink] | str] = {}
    gpu = -1
    for line in text.splitlines():
        words = line
        if header := _GPU.match(line):
            gpu, words = int(header[1]), header[2]
            found[gpu] = {}
        links = found.get(gpu)
        if isinstance(links, dict) and (link := _LINK.match(line)):
            if not _COUNTER.fullmatch(link[2]):
                links[int(link[1])] = NvLink(_rate(link[2]))
        elif gpu in found and re.search(r"(?i)unable to|unknown error|is lost", words):
            # With all links inactive it cannot say more.
            inactive = re.search(r"(?i)all links are inactive", words)
            found[gpu] = {0: NvLink(0.0)} if inactive else words.strip()
    return found


def _rate(text: str) -> float | None:
    if re.search(r"(?i)inactive|disabled|down|off\b", text):
        return 0.0
    speed = _SPEED.search(text)
    return float(speed[1].replace(",", ".")) if speed else None


def parse_errors(text: str) -> dict[tuple[int, int], NvLink]:
    """What `nvidia-smi nvlink -e` prints, by GPU and link; without rates."""
    found: dict[tuple[int, int], NvLink] = {}
    gpu = -1
    for line in text.splitlines():
        if header := _GPU.match(line):
            gpu = int(header[1])
        elif (link := _LINK.match(line)) and (counter := _COUNTER.fullmatch(link[2])):
            name, value = counter.groups()
            one = found.setdefault((gpu, int(link[1])), NvLink())
            if name in _BER:
                rate = max(one.bit_error_rate or 0.0, number(value) or 0.0)
                found[gpu, int(link[1])] = replace(one, bit_error_rate=rate)
            elif value.isascii() and value.isdigit():
                counters = {**one.counters, name: int(value)}
                found[gpu, int(link[1])] = replace(one, counters=counters)
    return found


def nvidia_smi(*arguments: str) -> str:
    """What it prints of GPUs. Raises OSError, in words, if it is missing, late, or shows none."""
    printed = output_of("nvidia-smi", *arguments, package=NVIDIA, may_fail=True)
    if not re.search(r"(?m)^\s*GPU \S", printed):
        said = printed.strip().partition("\n")[0]
        raise OSError(f"nvidia-smi {' '.join(arguments)}: {said or 'no output'}")
    return printed


def read_nvlinks(nvml: Any = None, *, errors: bool = True) -> Links:
    """Links of this machine's GPUs; raises OSError, with the reason.

    By nvidia-smi; without it by NVML, a module such as `pynvml`, which is imported if None.
    """
    if shutil.which("nvidia-smi") is None:
        return _by_nvml(nvml)
    found = parse_status(nvidia_smi("nvlink", "-s"))
    counted = parse_errors(nvidia_smi("nvlink", "-e")) if errors else {}
    return {
        gpu: links
        if isinstance(links, str)
        else {
            number: replace(counted.get((gpu, number), one), gbytes_s=one.gbytes_s)
            for number, one in links.items()
        }
        for gpu, links in found.items()
    }


def _by_nvml(nvml: Any) -> Links:
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:  # a broken binding can raise anything
        missing = "nvidia-smi is not on the PATH (nvidia-utils)"
        raise OSError(f"{missing}, and NVML cannot be used: {error}") from None
    found: dict[int, dict[int, NvLink] | str] = {}
    try:
        for gpu in range(int(nvml.nvmlDeviceGetCount())):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
            except Exception as error:  # NVML has one class for each code
                found[gpu] = f"NVML: {error}"
                continue
            links = {number: _link(nvml, handle, number) for number in range(_MOST_LINKS)}
            found[gpu] = {number: one for number, one in links.items() if one is not None}
    finally:
        nvml.nvmlShutdown()
    return found


def _link(nvml: Any, handle: Any, number: int) -> NvLink | None:
    """None if the device has no such link."""
    try:
        active = bool(nvml.nvmlDeviceGetNvLinkState(handle, number))
    except Exception:
        return None
    rate, counters = None, dict[str, int]()
    try:
        [field_value] = nvml.nvmlDeviceGetFieldValues(handle, [(_NVML_SPEED, number)])
        rate = field_value.value.uiVal / 1e3 or None
    except Exception:  # of an older driver
        rate = None
    for code, name in enumerate(_NVML_COUNTERS):
        try:
            counters[name] = int(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, number, code))
        except Exception:  # not of this generation
            continue
    return NvLink(rate if active else 0.0, counters)


NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
"""UUID of a fabric that ends at the node."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A GPU in its NVLink fabric; None if the driver does not say.

    state, status: such as Completed, Success. cluster: UUID of its domain, all zeros within a node.
    clique: partition of the domain. ills: what its health names, such as "Bandwidth Degraded".
    """

    state: str | None = None
    status: str | None = None
    cluster: str | None = None
    clique: int | None = None
    ills: tuple[str, ...] = ()


def parse_fabric(text: str) -> list[Registration | None]:
    """GPUs of `nvidia-smi -q` in their order; None for one without a section Fabric."""
    found: list[Registration | None] = []
    fields: dict[str, str] = {}
    depth: int | None = None
    for line in [*text.splitlines(), "GPU 0:0"]:
        indent = len(line) - len(line.lstrip())
        if depth is not None and line.strip() and indent <= depth:
            if found:
                found[-1] = _registration(fields)
            depth, fields = None, {}
        if _GPU_OF_QUERY.match(line):
            found.append(None)
        elif line.strip() == "Fabric":
            depth = indent
        elif depth is not None and ":" in line:
            key, _, value = line.partition(":")
            fields[" ".join(key.split())] = value.strip()
    return found[:-1]


def _registration(fields: Mapping[str, str]) -> Registration:
    known = {
        name.replace(" ", "").lower(): value
        for name, value in fields.items()
        if value.lower() not in _UNKNOWN
    }
    clique = known.get("cliqueid", "")
    return Registration(
        known.get("state"),
        known.get("status"),
        known.get("clusteruuid"),
        int(clique) if clique.isascii() and clique.isdigit() else None,
        tuple(
            f"{name} {value}"
            for name, value in fields.items()
            if name.replace(" ", "").lower() in known.keys() - _NO_ILLS
            and value.lower() not in _WELL
        ),
    )


@dataclass(frozen=True, slots=True)
class Imex:
    """What `nvidia-imex-ctl -N` says. state: of the domain, such as UP; None if it says none.

    nodes: state of each, such as READY, by address.
    """

    state: str | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)


def parse_imex(text: str) -> Imex:
    """The domain and its nodes, from the output of `nvidia-imex-ctl -N`."""
    states = _STATE.findall(text)
    nodes = [match for line in text.splitlines() if (match := _NODE.match(line))]
    return Imex(states[-1] if states else None, {one[1]: one[2] for one in nodes})


def read_imex() -> Imex:
    """The IMEX domain as this node's daemon sees it; raises OSError, with the reason."""
    said = output_of("nvidia-imex-ctl", "-N", package="nvidia-imex", may_fail=True)
    found = parse_imex(said)
    if found.state is None:
        first = said.strip().partition("\n")[0]
        raise OSError(f"nvidia-imex-ctl -N: {first or 'no output'}")
    return found


def imex_nodes(root: Path) -> tuple[str, ...] | None:
    """Addresses in IMEX's file of nodes, in its order; None if there is no such file."""
    configured = _NODES_FILE.search(sysfs.text(root / IMEX_CONFIG) or "")
    file = root / (configured[1].lstrip("/") if configured else IMEX_NODES)
    text = sysfs.text(file)
    if text is None:
        return None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def service(process: str, unit: str, root: Path) -> str | None:
    """State of a service: "running" if its process is there, or what systemd calls it; None if
    neither can be seen, as in a container. process: its name, of which 15 bytes are compared."""
    if any(name == process[:15] for name in _processes(root)):
        return "running"
    if root != Path("/"):
        return "not running"
    try:
        said = output_of("systemctl", "is-active", unit, package="systemd", may_fail=True).strip()
    except OSError:
        return None
    return {"active": "running", "inactive": "not running", "failed": "failed"}.get(said)


def _processes(root: Path) -> Iterator[str]:
    for entry in sysfs.entries(root / "proc"):
        if entry.name.isdecimal():
            yield sysfs.text(entry / "comm") or ""
