"""Under load one node is hot, one has a low clock, and one is throttled for a third of the time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_mnode.machine.cpus import format_cpulist
from tests.acceptance import hardware
from tests.acceptance.certified import certify, spec_of
from tests.inner import need_rack
from tests.red import turns_red
from tests.trees import Tree

LOAD = "test_devices_stay_cool_and_fast_under_load"
CPUS = sorted(os.sched_getaffinity(0))
_OF_A_CPU = "sys/devices/system/cpu/cpu{}/thermal_throttle/package_throttle_total_time_ms"
COUNTERS = [_OF_A_CPU.format(cpu) for cpu in CPUS]


def _node(root: Path, degrees: int, mhz: int) -> None:
    """A node whose processors show this temperature and clock."""
    tree = Tree(root)
    tree.write("sys/class/hwmon/hwmon0/name", "coretemp")
    tree.write("sys/class/hwmon/hwmon0/temp1_input", degrees * 1000)
    for cpu in CPUS:
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", mhz * 1000)
    for counter in COUNTERS:
        tree.write(counter, 4000)
    hardware.server(root, format_cpulist(CPUS))


@contextlib.contextmanager
def _throttled(counters: Sequence[Path]) -> Iterator[None]:
    """Counters of milliseconds rise for a third of the time."""
    over = threading.Event()

    def rise() -> None:
        value = 4000
        while not over.wait(0.03):
            value += 10
            for counter in counters:
                with counter.open("r+b", buffering=0) as file:
                    os.pwrite(file.fileno(), b"%08d\n" % value, 0)

    thread = threading.Thread(target=rise)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@turns_red("devices", LOAD)
def test_a_hot_a_slow_and_a_throttled_node_are_named(tmp_path: Path) -> None:
    need_rack()
    roots = [tmp_path / f"node{number}" for number in range(4)]
    for root, degrees, mhz in zip(roots, (70, 96, 71, 70), (2500, 2490, 1500, 2510), strict=True):
        _node(root, degrees, mhz)
    load = {
        **{"for": "2 s", "dtype": "float32", "size": 128, "temperature_at_most": "87 °C"},
        **{"temperature_spread_at_most": "15 °C", "clock_at_least_fraction": 0.8},
        "throttled_at_most": "100 ms",
    }
    page = spec_of(tmp_path, criteria={"devices": {"under_load": load}})
    shown = ",".join(f"machine_shown:{root.name}:{root}" for root in roots)
    with _throttled([roots[3] / counter for counter in COUNTERS]):
        done = certify(
            tmp_path,
            page,
            *("-p", "tests.acceptance.hardware_faults", f"--mnode-fault={shown}"),
            files=[f"test_devices.py::{LOAD}"],
            cold=False,
        )
    verdict, found = done.case("devices", LOAD)
    assert verdict == "fail", done.run.output
    failed = done.failed("devices")
    assert failed.pop("time throttled under load, highest").startswith("rank 3 on node3 (0.")
    assert failed == {
        "temperature under load, highest": "rank 1 on node1 (96 °C)",
        "temperature above its place's under load, highest": "rank 1 on node1 (25.5 °C)",
        "clock under load, slowest rank": "rank 2 on node2 (1500 MHz, median 2500)",
    }
    assert found["temperature under load, highest"]["note"].endswith("samples by /sys")
