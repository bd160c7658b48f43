"""Readings of devices under load, from what real programs and bindings answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.machine import programs
from pytest_mnode.machine.load_readings import (
    Reading,
    Sampler,
    amdsmi_reading,
    cpu_reading,
    nvml_reading,
    parse_nvidia_smi,
    parse_rocm_smi,
    reader_of_gpu,
    steady,
)
from tests.programs import write_program
from tests.trees import Tree

H100 = Reading(
    temperature_c=64,
    memory_temperature_c=81,
    power_w=698.12,
    clock_mhz=1455,
    full_clock_mhz=1980,
    throttled=(),
)


@pytest.mark.parametrize(
    ("printed", "reading"),
    [
        ("64, 81, 698.12, 1455, 1980, [N/A], 0x0000000000000004\n", H100),
        ("64, 81, 698.12, 1455, 1980, N/A, 0x4", H100),
        (
            "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"
            "91, N/A, [Unknown Error], 1200, 1980, [Not Supported], 0x0000000000000048\n",
            Reading(
                temperature_c=91,
                clock_mhz=1200,
                full_clock_mhz=1980,
                throttled=("HwSlowdown", "HwThermalSlowdown"),
            ),
        ),
        (
            "30, 0, 70.0, 210, 1410, 41, Active",
            Reading(
                temperature_c=30, power_w=70, clock_mhz=210, full_clock_mhz=1410, fan_percent=41
            ),
        ),
        ("", None),
        ("64, 81, 698", None),
        ("Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error\n", None),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None),
    ],
)
def test_what_nvidia_smi_prints(printed: str, reading: Reading | None) -> None:
    assert parse_nvidia_smi(printed) == reading


def test_an_older_nvidia_smi_is_asked_by_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(
        tmp_path / "nvidia-smi",
        '#!/bin/sh\ncase "$*" in\n'
        '*event_reasons*) echo \'Field "clocks_event_reasons.active" is not a valid field to '
        "query.'; exit 2;;\n"
        "*GPU-5a*) echo '64, 81, 698.12, 1455, 1980, [N/A], 0x0000000000000004';;\nesac\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    by, read = reader_of_gpu("5a", None, amd=False)
    assert read is not None
    assert (by, read()) == ("nvidia-smi", H100)


@pytest.mark.parametrize("amd", [True, False])
def test_without_any_program_all_are_named(
    amd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    why, read = reader_of_gpu("5a", "0000:c4:00.0", amd=amd)
    assert read is None
    names = ("amdsmi: ", "rocm-smi: ") if amd else ("NVML: ", "nvidia-smi: ")
    assert all(name in why for name in names)


class Nvml:
    """A device without fans, whose memory has a sensor if `memory` is not None."""

    def __init__(self, memory: int | None, reasons: int) -> None:
        self.memory, self.reasons = memory, reasons

    def nvmlDeviceGetFieldValues(self, handle: object, fields: list[int]) -> list[Any]:
        assert fields == [82]
        if self.memory is None:
            raise RuntimeError("Not Supported")
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.memory))]

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int:
        return 64

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        return 698_120

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:
        return 1455

    def nvmlDeviceGetMaxClockInfo(self, handle: object, kind: int) -> int:
        return 1980

    def nvmlDeviceGetFanSpeed(self, handle: object) -> int:
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:
        return self.reasons


@pytest.mark.parametrize(
    ("memory", "reasons", "expected"),
    [(81, 0x4, (81, ())), (0, 0x80, (None, ("HwPowerBrakeSlowdown",))), (None, 0x1, (None, ()))],
)
def test_what_nvml_answers(
    memory: int | None, reasons: int, expected: tuple[int | None, tuple[str, ...]]
) -> None:
    found = nvml_reading(Nvml(memory, reasons), "handle")
    assert (found.memory_temperature_c, found.throttled) == expected
    assert (found.temperature_c, found.power_w, found.clock_mhz) == (64, 698.12, 1455)
    assert found.fan_percent is None


MI300 = {
    "temperature_hotspot": 71,
    "temperature_mem": 62,
    "average_socket_power": 65535,
    "current_socket_power": 742,
    "current_gfxclk": 65535,
    "current_gfxclks": [2095, 2100, "N/A", 65535],
}
MI250 = {"temperature_hotspot": 71, "temperature_mem": "N/A", "average_socket_power": 500}


@pytest.mark.parametrize(
    ("metrics", "violations", "expected"),
    [
        (MI300, {"active_socket_thrm": True}, (71, 62, 742, 2097.5, ("SocketThermal",))),
        (MI300, {"active_ppt_pwr": True}, (71, 62, 742, 2097.5, ())),
        (MI250 | {"current_gfxclk": 1650}, None, (71, None, 500, 1650, None)),
        (None, None, (None, None, None, None, None)),
    ],
)
def test_what_amdsmi_answers(
    metrics: dict[str, Any] | None, violations: dict[str, bool] | None, expected: object
) -> None:
    names = ("prochot_thrm", "socket_thrm", "vr_thrm", "hbm_thrm", "ppt_pwr")
    every = {f"active_{name}": False for name in names}
    amdsmi = SimpleNamespace(
        amdsmi_get_gpu_metrics_info=lambda _: metrics,
        amdsmi_get_violation_status=lambda _: None if violations is None else every | violations,
    )
    one = amdsmi_reading(amdsmi, "handle")
    found = (one.temperature_c, one.memory_temperature_c, one.power_w, one.clock_mhz, one.throttled)
    assert found == expected


ROCM_SMI = {
    "card0": {"PCI Bus": "0000:05:00.0", "Temperature (Sensor edge) (C)": "31.0"},
    "card1": {
        "PCI Bus": "0000:C4:00.0",
        "Temperature (Sensor edge) (C)": "N/A",
        "Temperature (Sensor junction) (C)": "71.0",
        "Temperature (Sensor memory) (C)": "62.0",
        "Current Socket Graphics Package Power (W)": "742.0",
        "sclk clock speed:": "(2100Mhz)",
        "sclk clock level:": "1",
        "Fan speed (%)": "Unable to detect fan speed",
    },
    "system": {"Driver version": "6.8.5"},
}


@pytest.mark.parametrize(
    "before", ["", "WARNING: AMD GPU device(s) is/are in a low-power state.\n"]
)
def test_what_rocm_smi_prints(before: str) -> None:
    found = parse_rocm_smi(before + json.dumps(ROCM_SMI) + "\n", "0000:c4:00.0")
    assert found == Reading(temperature_c=71, memory_temperature_c=62, power_w=742, clock_mhz=2100)


@pytest.mark.parametrize("printed", ["", "{", json.dumps({"card0": "N/A"}), "rocm-smi: not found"])
def test_rocm_smi_without_the_device(printed: str) -> None:
    assert parse_rocm_smi(printed, "0000:c4:00.0") is None


def test_processors_are_read_below_sys(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert cpu_reading([0, 1], tmp_path) is None
    for number, (name, inputs) in enumerate({"nvme": [99], "coretemp": [61, 83]}.items()):
        tree.write(f"sys/class/hwmon/hwmon{number}/name", name)
        for i, value in enumerate(inputs):
            tree.write(f"sys/class/hwmon/hwmon{number}/temp{i + 1}_input", value * 1000)
    for cpu, khz in enumerate((2_000_000, 2_200_000, 900_000)):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        tree.write(f"{folder}/cpufreq/scaling_cur_freq", khz)
        tree.write(f"{folder}/thermal_throttle/package_throttle_total_time_ms", 1500 * cpu)
    assert cpu_reading([0, 1], tmp_path) == Reading(
        temperature_c=83, clock_mhz=2100, throttled_s=1.5
    )


def test_the_last_third_counts_and_all_time_that_was_throttled() -> None:
    hot = Reading(temperature_c=88, clock_mhz=1200, throttled=("HwThermalSlowdown",))
    cool = Reading(temperature_c=60, clock_mhz=1700, throttled=())
    found = steady("NVML", [(i + 1.0, hot if i >= 40 else cool) for i in range(60)])
    assert (found.temperature_c, found.clock_mhz, found.temperature_range) == (88, 1200, (88, 88))
    assert found.throttled_s == pytest.approx(20)
    assert found.reasons == (("HwThermalSlowdown", 20),)
    early = steady("NVML", [(i + 1.0, cool if i >= 20 else hot) for i in range(60)])
    assert early.temperature_c == 60
    assert early.throttled_s == pytest.approx(20)


def test_a_counter_of_throttled_time_is_taken_as_it_is() -> None:
    found = steady("/sys", [(i + 1.0, Reading(throttled_s=100 + i / 4)) for i in range(5)])
    assert (found.throttled_s, found.temperature_c, found.temperature_range) == (1, None, None)
    assert steady("/sys", []).throttled_s is None


def test_a_sampler_reads_at_once_and_leaves_out_what_it_cannot_read() -> None:
    answers = iter([H100, None])
    with Sampler(lambda: next(answers, None), 0.01) as sampler:
        while not sampler.samples:
            pass
    assert [reading for _, reading in sampler.samples] == [H100]


def test_a_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "nvidia-smi", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    monkeypatch.setattr(programs, "LIMIT_S", 0.2)
    why, read = reader_of_gpu("5a", None, amd=False)
    assert read is None
    assert "nvidia-smi gave no answer within 0.2 s" in why
