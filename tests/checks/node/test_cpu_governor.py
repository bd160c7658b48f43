"""Governors of CPUs, from made trees of /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.checks.node.cpu_governor import CpuGovernorIsAsPromised
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts


def machine(root: Path, *governors: str, preference: str = "", online: str = "") -> Path:
    """CPUs 0, 1, … with these governors; "" for a CPU without cpufreq."""
    files = {"online": online or f"0-{len(governors) - 1}"}
    for cpu, governor in enumerate(governors):
        if governor:
            files[f"cpu{cpu}/cpufreq/scaling_governor"] = governor
        if preference:
            files[f"cpu{cpu}/cpufreq/energy_performance_preference"] = preference
    return tree(root, {f"sys/devices/system/cpu/{name}": text for name, text in files.items()})


FAST, SLOW = "performance", "powersave"


@pytest.mark.parametrize(
    ("promise", "cpus", "verdict", "words"),
    [
        (FAST, (FAST, FAST), "p", ""),
        (FAST, (FAST, SLOW, SLOW), "f", "powersave on CPUs 1-2"),
        (FAST, ("", ""), "i", "CPUs 0-1 have no cpufreq/scaling_governor"),
        (FAST, (FAST, ""), "i", "CPUs 1 have no"),
        (FAST, (SLOW, ""), "f", "(powersave)"),
        (SLOW, (SLOW, SLOW), "p", ""),
    ],
)
def test_each_cpu_has_the_promised_one(
    tmp_path: Path, promise: str, cpus: tuple[str, ...], verdict: str, words: str
) -> None:
    found = judged(CpuGovernorIsAsPromised, promise, {"a": machine(tmp_path, *cpus)})
    assert verdicts(found) == verdict
    assert blamed(found) == ({"a"} if verdict == "f" else set())
    assert words in str(found["a"][0])


@pytest.mark.parametrize(
    ("odd", "preference", "expected"),
    [
        ((FAST, FAST), "", "p p f"),  # the others have a preference, and it has none
        ((FAST, SLOW), FAST, "p p f"),
        ((FAST, FAST), "power", "p p f"),
        ((FAST, FAST), FAST, "p p p"),
    ],
)
def test_the_odd_node_is_found(
    tmp_path: Path, odd: tuple[str, ...], preference: str, expected: str
) -> None:
    nodes = {name: machine(tmp_path / name, FAST, FAST, preference=FAST) for name in "ab"}
    nodes["c"] = machine(tmp_path / "c", *odd, preference=preference)
    found = judged(CpuGovernorIsAsPromised, "same", nodes)
    assert verdicts(found) == expected
    assert blamed(found) == ({"c"} if "f" in expected else set())


def test_a_cpu_that_is_offline_does_not_count(tmp_path: Path) -> None:
    found = judged(CpuGovernorIsAsPromised, FAST, {"a": machine(tmp_path, FAST, SLOW, online="0")})
    assert verdicts(found) == "p"


def test_virtual_machines_without_governors_are_alike(tmp_path: Path) -> None:
    nodes = {name: machine(tmp_path / name, "") for name in "ab"}
    assert verdicts(judged(CpuGovernorIsAsPromised, "same", nodes)) == "p p"


@pytest.mark.parametrize(
    ("cpus", "drafted"), [((FAST, FAST), FAST), ((SLOW, SLOW), "same"), (("", ""), "same")]
)
def test_what_is_drafted_is_kept(tmp_path: Path, cpus: tuple[str, ...], drafted: str) -> None:
    root = machine(tmp_path, *cpus)
    rows = rows_of(CpuGovernorIsAsPromised, "same", root).rows
    assert CpuGovernorIsAsPromised.draft({"a": rows, "b": rows}) == drafted
    kept = judged(CpuGovernorIsAsPromised, drafted, {"a": root, "b": root})
    assert verdicts(kept) == "p p"
