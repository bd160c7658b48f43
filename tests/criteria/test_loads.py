"""Devices at the end of a load: hot ones, capped ones, throttled ones, and those nobody sees."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from pytest_mnode.checks.devices.under_load import judge_load
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.load_readings import Reading, Steady
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring import under_load
from pytest_mnode.measuring.under_load import RankLoad, devices_under_load
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import LoadPromise
from tests.waiting import until

FINE: dict[str, Any] = {
    "temperature_c": 64,
    "temperature_range": (63, 65),
    "memory_temperature_c": 80,
    "power_w": 690,
    "clock_mhz": 1500,
    "throttled_s": 0.0,
}


def judged(promise: dict[str, Any], *, shown: bool = True, **odd: Any) -> dict[str, Measurement]:
    """First measurement of each kind, of four nodes with two devices; those of node 1 are odd."""
    rows = []
    for rank in range(8):
        node, place = divmod(rank, 2)
        # The device at the second place stands in the warm air of the first one.
        values = FINE | {"temperature_c": 64 + 8 * place}
        values |= {"temperature_range": (63 + 8 * place, 65 + 8 * place)}
        values |= odd if node == 1 else {}
        name = Culprit.rank(f"rank {rank} on node{node}", f"node{node}", rank)
        seen = Steady(by="NVML", samples=60, seconds=60.0, **values)
        rows.append(RankLoad(name, place, seen if shown or node != 1 else None, "no NVML"))
    found = judge_load(rows, LoadPromise.model_validate(promise), 4)
    return {one.name.partition(" under load")[0]: one for one in reversed(found)}


@pytest.mark.parametrize(
    ("reading", "why"), [(Reading(temperature_c=60), ""), (None, "NVML was not read once")]
)
def test_a_device_that_was_never_read_is_not_seen(
    monkeypatch: pytest.MonkeyPatch, reading: Reading | None, why: str
) -> None:
    reads = list[Reading | None]()

    def read() -> Reading | None:
        reads.append(reading)
        return reading

    monkeypatch.setattr(under_load, "_reader", lambda *_: ("NVML", read, ""))
    monkeypatch.setattr(under_load, "_work", lambda *_: until(lambda: len(reads) > 1))
    monkeypatch.setattr(under_load, "_LEAST_EVERY_S", 0.001)
    monkeypatch.setattr(under_load, "barrier", lambda _: None)
    monkeypatch.setattr(under_load, "gathered", lambda one: (one,))
    promise = LoadPromise.model_validate({"for": "10 ms", "size": 8})
    world = World(0, 1, 0, 1, "n0", ("n0",))
    [found] = devices_under_load(promise, world, torch.device("cpu"))
    assert (found.why, found.seen is None) == (why, bool(why))


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_a_device_that_cannot_work_has_the_reason(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    monkeypatch.setattr(under_load, "_reader", lambda *_: ("", None, "no NVML"))
    monkeypatch.setattr(under_load, "_work", Mock(side_effect=kind("out of memory\nC++ stack")))
    monkeypatch.setattr(under_load, "barrier", lambda _: None)
    monkeypatch.setattr(under_load, "gathered", lambda one: (one,))
    world = World(0, 1, 0, 1, "n0", ("n0",))
    [found] = devices_under_load(LoadPromise.model_validate({}), world, torch.device("cpu"))
    assert (found.seen, found.why) == (None, "out of memory")


HOT = {"temperature_c": 91, "temperature_range": (91, 91)}


@pytest.mark.parametrize(
    ("promise", "odd", "name", "verdict", "value"),
    [
        ({"temperature_at_most": "87 °C"}, {}, "temperature", "pass", 72),
        ({"temperature_at_most": "87 °C"}, HOT, "temperature", "fail", 91),
        (
            {"temperature_at_most": "87 °C"},
            {"temperature_c": 88, "temperature_range": (86, 89)},
            "temperature",
            "inconclusive",
            88,
        ),
        (
            {"temperature_at_most": "87 °C"},
            {"temperature_c": None},
            "temperature",
            "inconclusive",
            None,
        ),
        ({}, HOT, "temperature", "None", 91),
        (
            {"memory_temperature_at_most": "95 C"},
            {"memory_temperature_c": 97},
            "memory temperature",
            "fail",
            97,
        ),
        ({"temperature_spread_at_most": "15 °C"}, {}, "temperature above its place's", "pass", 0),
        ({"temperature_spread_at_most": "15 °C"}, HOT, "temperature above its place's", "fail", 27),
        ({"throttled_at_most": "0 s"}, {}, "time throttled", "pass", 0),
        ({"throttled_at_most": "0 s"}, {"throttled_s": 20.0}, "time throttled", "fail", 20),
        ({"throttled_at_most": "3 s"}, {"throttled_s": 2.0}, "time throttled", "pass", 2),
        (
            {"throttled_at_most": "0 s"},
            {"throttled_s": None},
            "time throttled",
            "inconclusive",
            None,
        ),
        ({"clock_at_least_fraction": 0.9}, {}, "clock", "pass", 1500),
        ({"clock_at_least_fraction": 0.9}, {"clock_mhz": 1200}, "clock", "fail", 1200),
        ({"power_at_least_fraction": 0.9}, {"power_w": 500}, "power", "fail", 500),
        ({"power_at_least_fraction": 0.9}, {"power_w": None}, "power", "inconclusive", None),
        ({"power_at_least_fraction": 0.9}, {"power_w": 0}, "power", "inconclusive", None),
    ],
)
def test_verdicts(
    promise: dict[str, Any], odd: dict[str, Any], name: str, verdict: str, value: float | None
) -> None:
    found = judged(promise, **odd)[name]
    assert (str(found.verdict), found.value) == (verdict, value)
    if verdict == "fail":
        assert found.culprit is not None
        assert found.culprit.nodes == {"node1"}


def test_samples_of_the_worst_device_are_its_interval() -> None:
    found = judged({"temperature_at_most": "95 °C"}, temperature_c=88, temperature_range=(86, 89))
    assert found["temperature"].interval == (86, 89)


def test_why_a_clock_was_held_back_is_said() -> None:
    reasons = (("HwThermalSlowdown", 20),)
    found = judged({"throttled_at_most": "0 s"}, throttled_s=20.0, reasons=reasons)
    culprit = found["time throttled"].culprit
    assert culprit is not None
    assert culprit.startswith("rank 2 on node1 (20 s, HwThermalSlowdown in 20 samples)")


def test_a_device_that_still_warms_is_named() -> None:
    found = judged({}, temperature_range=(60, 66))
    assert found["temperature"].note.endswith("not settled: rank 2 on node1, rank 3 on node1")


def test_a_device_that_nothing_shows_is_inconclusive() -> None:
    found = judged({"temperature_at_most": "87 °C"}, shown=False)["temperature"]
    assert (str(found.verdict), found.value) == ("inconclusive", None)
    assert "rank 2 on node1: no NVML" in found.note
