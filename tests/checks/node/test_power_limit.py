"""Power limits of GPUs, from a stand-in for NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.checks.node.power_limit import PowerLimitsAreAsPromised
from pytest_mnode.evidence.reading import CheckRows
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts

OPEN = list[int]()
"""Calls of nvmlInit without their nvmlShutdown."""


def _answer(watts: float) -> int:
    if not watts:
        raise OSError("lost")
    return int(watts * 1e3)


def gpus(monkeypatch: pytest.MonkeyPatch, *watts: float, default: float = 700) -> CheckRows:
    """What a node with these limits reads; 0 for a GPU that does not answer."""
    nvml = SimpleNamespace(
        nvmlInit=lambda: OPEN.append(1),
        nvmlShutdown=OPEN.pop,
        nvmlDeviceGetCount=lambda: len(watts),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetEnforcedPowerLimit=lambda i: _answer(watts[i]),
        nvmlDeviceGetPowerManagementDefaultLimit=lambda i: int(default * 1e3),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    read = rows_of(PowerLimitsAreAsPromised, "same")
    assert OPEN == []
    return read


@pytest.mark.parametrize(
    ("promise", "watts", "verdict", "words"),
    [
        ("default", (700, 700), "p", ""),
        ("default", (700, 500), "f", "GPU 1: 71.4286 %"),
        ("default", (700, 750), "p", ""),
        ("700", (700, 699.5), "f", "GPU 1: 699.5 W"),
        ("650", (700, 650), "p", ""),
        ("700", (700, 0), "i", "GPU 1: NVML: lost"),
        ("700", (500, 0), "f", "GPU 0: 500 W"),
        ("700", (), "i", "no power limit of GPUs was found"),
    ],
)
def test_a_low_limit_is_found(
    monkeypatch: pytest.MonkeyPatch,
    promise: str,
    watts: tuple[float, ...],
    verdict: str,
    words: str,
) -> None:
    found = judged(PowerLimitsAreAsPromised, promise, {"a": gpus(monkeypatch, *watts)})
    assert verdicts(found) == verdict
    assert words in str(found["a"][0])
    assert blamed(found) == ({"a"} if verdict == "f" else set())


@pytest.mark.parametrize(("watts", "verdict"), [("750", "p"), ("500", "f"), ("", "i")])
def test_limits_of_amd_are_in_sysfs(tmp_path: Path, watts: str, verdict: str) -> None:
    sensor = "sys/class/drm/card1/device/hwmon/hwmon5"
    files = {f"{sensor}/name": "amdgpu", f"{sensor}/power1_cap_default": "750000000"}
    files |= {f"{sensor}/power1_cap": f"{watts}000000"} if watts else {}
    root = tree(tmp_path, files | {"sys/class/drm/card1-DP-1/status": "off"})
    found = judged(PowerLimitsAreAsPromised, "default", {"a": root})
    assert verdicts(found) == verdict
    assert blamed(found) == ({"a"} if verdict == "f" else set())


def test_the_odd_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {name: gpus(monkeypatch, 700, 700) for name in "ab"}
    nodes["c"] = gpus(monkeypatch, 700, 600)
    found = judged(PowerLimitsAreAsPromised, "same", nodes)
    assert verdicts(found) == "p p f"
    assert blamed(found) == {"c"}
    assert "GPU 1: 600 W, 700 W on 2 of 3 nodes" in found["c"][0].note


def test_without_nvml_it_is_inconclusive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = judged(PowerLimitsAreAsPromised, "default", {"a": Path("/"), "b": tmp_path})
    assert verdicts(found) == "i i"
    assert "pynvml" in found["a"][0].note


@pytest.mark.parametrize(
    ("watts", "drafted"), [((700, 700), "default"), ((600, 600), "same"), ((0, 700), None)]
)
def test_what_is_drafted(
    monkeypatch: pytest.MonkeyPatch, watts: tuple[float, ...], drafted: str | None
) -> None:
    rows = gpus(monkeypatch, *watts).rows
    assert PowerLimitsAreAsPromised.draft({"a": rows, "b": rows}) == drafted
