"""What a device shows while it works: temperature, clock, power, fans, and what holds it back.

Readers for NVML, nvidia-smi, amdsmi and rocm-smi, and for CPUs, which /sys shows.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.amdsmi import violations
from pytest_mnode.machine.nvml import USUAL_UNDER_LOAD, Load, reason_bits, slowing
from pytest_mnode.machine.pci import full_address
from pytest_mnode.machine.programs import NVIDIA, json_in, output_of

_SM, _CORE = 1, 0
_HBM_FIELD = 82
"""NVML_FI_DEV_MEMORY_TEMP."""
_FIELDS = (
    *("temperature.gpu", "temperature.memory", "power.draw", "clocks.sm", "clocks.max.sm"),
    *("fan.speed", "clocks_event_reasons.active"),
)
_OLD_REASONS = "clocks_throttle_reasons.active"
"""Name of the last field before driver 535."""
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_NOT_THERE = 0xFFFF
"""What amdsmi gives for a field that a device has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What is None, the device does not show. clock_mhz: of the SMs, the shaders, or the cores."""

    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    full_clock_mhz: float | None = None
    fan_percent: float | None = None
    throttled_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(_Shown):
    """One reading. throttled: what holds the clock down by heat, power brake or hardware; a device
    at its power limit is not held back. throttled_s: seconds so far, from a counter, where there is
    one. full_pcie_generation: the highest that card and slot support.
    """

    throttled: tuple[str, ...] | None = None
    pcie_generation: int | None = None
    full_pcie_generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady(_Shown):
    """A device at the end of a load: medians of the last third of its samples.

    temperature_range: lowest and highest of that third. throttled_s: of the whole load.
    reasons: samples with each reason. by: who read it.
    """

    by: str
    samples: int
    seconds: float
    temperature_range: tuple[float, float] | None = None
    reasons: tuple[tuple[str, int], ...] = ()


def steady(by: str, samples: Sequence[tuple[float, Reading]]) -> Steady:
    """samples: when each was read, in seconds from the start of the load, in their order.

    A sample stands for the time since the one before. Where a counter tells how long a device was
    held back, the counter counts.
    """
    last = [reading for _, reading in samples[2 * len(samples) // 3 :]]
    starts = [0.0, *(at for at, _ in samples)]
    told = [(at - start, one) for start, (at, one) in zip(starts, samples, strict=False)]
    held = [(took, one.throttled) for took, one in told if one.throttled is not None]
    counted = [one.throttled_s for _, one in samples if one.throttled_s is not None]
    throttled_s = counted[-1] - counted[0] if counted else None
    if throttled_s is None and held:
        throttled_s = sum(took for took, reasons in held if reasons)
    hot = [one.temperature_c for one in last if one.temperature_c is not None]
    return Steady(
        by=by,
        samples=len(samples),
        seconds=samples[-1][0] if samples else 0.0,
        temperature_range=(min(hot), max(hot)) if hot else None,
        throttled_s=throttled_s,
        reasons=_counted(reasons for _, reasons in held),
        **{
            name: _middle(last, name)
            for name in (
                *("temperature_c", "memory_temperature_c", "power_w"),
                *("clock_mhz", "full_clock_mhz", "fan_percent"),
            )
        },
    )


def load_of(samples: Sequence[tuple[float, Reading]]) -> Load:
    """What samples of a GPU under load show of its clock and its PCIe link."""
    read = [one for _, one in samples]
    held = [one.throttled for one in read if one.throttled is not None]
    return Load(
        samples=len(held),
        slowed=_counted(held),
        sm_clock_mhz=_middle(read, "clock_mhz"),
        share_slowed=sum(map(bool, held)) / len(held) if held else None,
        pcie_generation=max((one.pcie_generation or 0 for one in read), default=0) or None,
        full_pcie_generation=max((one.full_pcie_generation or 0 for one in read), default=0)
        or None,
    )


def _middle(read: Sequence[Reading], name: str) -> float | None:
    known = [value for one in read if (value := getattr(one, name)) is not None]
    return median(known) if known else None


def _counted(held: Iterable[tuple[str, ...]]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(name for reasons in held for name in reasons).items())


class Sampler:
    """Reads in a thread while its `with` blocks run, every `every_s`; samples: of all blocks."""

    def __init__(self, read: Callable[[], Reading | None], every_s: float) -> None:
        self._read, self._every_s = read, every_s
        self._over = threading.Event()
        self.samples: list[tuple[float, Reading]] = []

    def __enter__(self) -> Self:
        self._over.clear()
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(self._every_s):
            reading = self._read()
            if reading is not None and not self._over.is_set():
                self.samples.append((time.perf_counter() - self._started, reading))


Reader = Callable[[], Reading | None]


def reader_of_gpu(uuid: str, address: str | None, *, amd: bool) -> tuple[str, Reader | None]:
    """The program or library that shows a GPU, and how to read it; or why none does.

    uuid: as torch writes it. address: its PCI address, by which AMD's are found.
    """
    sources: Sequence[tuple[str, Callable[[], Reader]]]
    if amd:
        at = address or ""
        sources = (("amdsmi", lambda: _amdsmi(at)), ("rocm-smi", lambda: _rocm_smi(at)))
    else:
        named = f"GPU-{uuid.removeprefix('GPU-')}"
        sources = (("NVML", lambda: _nvml(named)), ("nvidia-smi", lambda: _nvidia_smi(named)))
    why = []
    for name, make in sources:
        try:
            read = make()
            if read() is not None:
                return name, partial(_quiet, read)
            why.append(f"{name} does not show the device")
        except Exception as error:  # bindings raise errors of their own, of many classes
            why.append(f"{name}: {error or type(error).__name__}")
    return "; ".join(why), None


def _quiet(read: Reader) -> Reading | None:
    try:
        return read()
    except Exception:  # a reading that fails once is left out
        return None


def nvml_reader(uuid: str) -> Reader:
    """Of a GPU, by its uuid as torch writes it; it reads nothing where NVML cannot be used."""
    try:
        return partial(_quiet, _nvml(f"GPU-{uuid.removeprefix('GPU-')}"))
    except Exception:  # a broken binding can raise anything
        return lambda: None


def _nvml(uuid: str) -> Reader:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return lambda: nvml_reading(nvml, handle)


def nvml_reading(nvml: Any, handle: Any) -> Reading:
    """Source: NVML API reference. Readings that a device lacks raise errors there."""

    def ask(function: str, *args: Any) -> float | None:
        try:
            value = getattr(nvml, function)(handle, *args)
        except Exception:  # one class for each code
            return None
        return float(value) if isinstance(value, (int, float)) else None

    try:
        [field] = nvml.nvmlDeviceGetFieldValues(handle, [_HBM_FIELD])
        memory = float(field.value.uiVal) if field.nvmlReturn == 0 else None
    except Exception:
        memory = None
    power = ask("nvmlDeviceGetPowerUsage")
    generation = ask("nvmlDeviceGetCurrPcieLinkGeneration")
    full_generation = ask("nvmlDeviceGetMaxPcieLinkGeneration")
    return Reading(
        temperature_c=ask("nvmlDeviceGetTemperature", _CORE),
        memory_temperature_c=memory or None,  # 0 where there is no sensor
        power_w=power and power / 1e3,
        clock_mhz=ask("nvmlDeviceGetClockInfo", _SM),
        full_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", _SM),
        fan_percent=ask("nvmlDeviceGetFanSpeed"),
        throttled=_held(slowing(reason_bits(nvml, handle))),
        pcie_generation=int(generation) if generation else None,
        full_pcie_generation=int(full_generation) if full_generation else None,
    )


def _held(reasons: Collection[str] | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    usual = (*USUAL_UNDER_LOAD, "PackagePower")
    return tuple(reason for reason in reasons if reason not in usual)


def _nvidia_smi(uuid: str) -> Reader:
    def printed(*fields: str) -> str:
        argv = ("nvidia-smi", "-i", uuid, "--format=csv,noheader,nounits")
        query = f"--query-gpu={','.join(fields)}"
        return output_of(*argv, query, package=NVIDIA, may_fail=True, with_errors=True)

    fields = _FIELDS
    if "not a valid field" in printed(*fields):
        fields = (*_FIELDS[:-1], _OLD_REASONS)
    return lambda: parse_nvidia_smi(printed(*fields))


def parse_nvidia_smi(printed: str) -> Reading | None:
    """From the line of values, after whatever warnings; None without one.

    A value is [N/A], N/A, [Not Supported] or an error where the device does not tell it.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in printed.splitlines()]
    row = next((row for row in reversed(rows) if len(row) == len(_FIELDS)), None)
    if row is None:
        return None
    bits = sysfs.number_of(row[-1])
    core, memory, power, clock, full, fan = map(_number, row[:-1])
    return Reading(
        temperature_c=core,
        memory_temperature_c=memory or None,
        power_w=power,
        clock_mhz=clock,
        full_clock_mhz=full,
        fan_percent=fan,
        throttled=_held(slowing(bits)),
    )


def _amdsmi(address: str) -> Reader:
    amdsmi: Any = importlib.import_module("amdsmi")
    amdsmi.amdsmi_init()
    for handle in amdsmi.amdsmi_get_processor_handles():
        if full_address(str(amdsmi.amdsmi_get_gpu_device_bdf(handle))) == address:
            return lambda: amdsmi_reading(amdsmi, handle)
    raise LookupError(f"no device at {address or 'an unknown address'}")


def amdsmi_reading(amdsmi: Any, handle: Any) -> Reading:
    """Source: AMD SMI Python library, amdsmi_get_gpu_metrics_info; fields came with versions."""

    def ask(function: str, *args: Any) -> Any:
        try:
            return getattr(amdsmi, function)(handle, *args)
        except Exception:  # a class for each kind of error
            return None

    metrics = ask("amdsmi_get_gpu_metrics_info") or {}

    def metric(*names: str) -> float | None:
        every = (_number(metrics.get(name)) for name in names)
        return next((x for x in every if x is not None and x != _NOT_THERE), None)

    clocks = [
        clock
        for value in metrics.get("current_gfxclks") or ()
        if (clock := _number(value)) is not None and clock != _NOT_THERE
    ]
    kinds = getattr(amdsmi, "AmdSmiClkType", None)
    limits = ask("amdsmi_get_clock_info", getattr(kinds, "GFX", None)) or {}
    return Reading(
        temperature_c=metric("temperature_hotspot", "temperature_edge"),
        memory_temperature_c=metric("temperature_mem"),
        power_w=metric("current_socket_power", "average_socket_power"),
        clock_mhz=median(clocks) if clocks else metric("current_gfxclk"),
        full_clock_mhz=_number(limits.get("max_clk")),
        throttled=_held(violations(ask("amdsmi_get_violation_status"))),
    )


def _rocm_smi(address: str) -> Reader:
    argv = ("--showbus", "--showtemp", "--showpower", "--showclocks", "--showfan", "--json")

    def printed() -> str:
        return output_of("rocm-smi", *argv, package="rocm-smi-lib", may_fail=True)

    return lambda: parse_rocm_smi(printed(), address)


def parse_rocm_smi(printed: str, address: str) -> Reading | None:
    """The card at a PCI address, of the JSON after whatever warnings; None if it is not there."""
    try:
        cards = json_in(printed)
    except ValueError:
        return None
    every = cards.values() if isinstance(cards, dict) else ()
    card = next((c for c in every if _at(c) == address.lower()), None)
    if card is None:
        return None

    def value(*keys: str) -> float | None:
        """Of the first key that begins so and has a number."""
        every = (_number(card[one]) for key in keys for one in card if one.startswith(key))
        return next((number for number in every if number is not None), None)

    return Reading(
        temperature_c=value("Temperature (Sensor junction)", "Temperature (Sensor edge)"),
        memory_temperature_c=value("Temperature (Sensor mem"),
        power_w=value("Current Socket Graphics Package Power", "Average Graphics Package Power"),
        clock_mhz=value("sclk clock speed"),
        fan_percent=value("Fan speed (%)", "Fan Speed (%)"),
    )


def _at(card: object) -> str:
    return str(card.get("PCI Bus", "")).lower() if isinstance(card, Mapping) else ""


def cpu_reading(cpus: Collection[int], root: Path = Path("/")) -> Reading | None:
    """Processors of this machine; None if /sys shows nothing of them.

    cpus: those whose clocks count. Source: Linux, Documentation/ABI/testing/sysfs-devices-system-
    cpu (thermal_throttle), Documentation/hwmon/sysfs-interface.
    """
    sensors = [
        folder
        for folder in sysfs.entries(root / "sys/class/hwmon")
        if sysfs.text(folder / "name") in _CPU_SENSORS
    ]
    files = [
        file
        for folder in sensors
        for file in sysfs.entries(folder)
        if re.fullmatch(r"temp\d+_input", file.name)
    ]
    temperatures = [value / 1e3 for file in files if (value := sysfs.integer(file)) is not None]

    def each(name: str) -> list[int]:
        places = (root / f"sys/devices/system/cpu/cpu{cpu}" / name for cpu in sorted(cpus))
        return [value for place in places if (value := sysfs.count(place)) is not None]

    clocks, full = each("cpufreq/scaling_cur_freq"), each("cpufreq/cpuinfo_max_freq")
    held = each("thermal_throttle/package_throttle_total_time_ms")
    held = held or each("thermal_throttle/core_throttle_total_time_ms")
    if not (temperatures or clocks or held):
        return None
    return Reading(
        temperature_c=max(temperatures, default=None),
        clock_mhz=median(clocks) / 1e3 if clocks else None,
        full_clock_mhz=median(full) / 1e3 if full else None,
        throttled_s=max(held) / 1e3 if held else None,
    )


def _number(written: object) -> float | None:
    """The first number in a text, as in (800Mhz); None for N/A and the like."""
    if isinstance(written, bool) or not isinstance(written, (int, float, str)):
        return None
    found = re.search(r"-?\d+(\.\d+)?", str(written))
    return float(found[0]) if found and "error" not in str(written).lower() else None
