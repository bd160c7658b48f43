"""NVLinks of NVIDIA's GPUs: which are up, how fast, with which errors; by nvidia-smi or NVML."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
                rate = max(one.bit_error_rate or 0.0, _number(value) or 0.0)
                found[gpu, int(link[1])] = replace(one, bit_error_rate=rate)
            elif value.isascii() and value.isdigit():
                counters = {**one.counters, name: int(value)}
                found[gpu, int(link[1])] = replace(one, counters=counters)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
