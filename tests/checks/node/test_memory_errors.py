"""Errors of the host's memory, from made trees of EDAC and from what ras-mc-ctl prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_mnode.checks.node.memory_errors import MemoryHasFewErrors, parse_counts
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts
from tests.programs import write_program

MC = "sys/devices/system/edac/mc/mc0"
DAY = "86400"


def edac(**dimms: tuple[int, int]) -> dict[str, str]:
    """A controller with these DIMMs, by label, after ten days."""
    files = {f"{MC}/seconds_since_reset": "864000"}
    sums = [sum(counts[i] for counts in dimms.values()) for i in range(2)]
    files |= {f"{MC}/ce_count": str(sums[0]), f"{MC}/ue_count": str(sums[1])}
    for i, (label, (ce, ue)) in enumerate(dimms.items()):
        files |= {
            f"{MC}/dimm{i}/dimm_label": label,
            f"{MC}/dimm{i}/dimm_ce_count": str(ce),
            f"{MC}/dimm{i}/dimm_ue_count": str(ue),
        }
    return files


GOOD = edac(CPU0_DIMM_A1=(12, 0), CPU0_DIMM_B1=(0, 0))


@pytest.mark.parametrize(
    ("files", "expected", "words"),
    [
        (GOOD, "pp", ""),
        (edac(CPU0_DIMM_A1=(250, 0), CPU0_DIMM_B1=(0, 0)), "fp", "mc0 CPU0_DIMM_A1: 25 /day"),
        (edac(CPU0_DIMM_A1=(0, 0), CPU0_DIMM_B1=(0, 1)), "pf", "mc0 CPU0_DIMM_B1: 1"),
        (GOOD | {f"{MC}/ue_count": "2"}, "pf", "mc0: 2"),  # of no DIMM that is known
        (GOOD | {f"{MC}/seconds_since_reset": "3600"}, "pp", ""),  # an hour counts as a day
        (GOOD | {f"{MC}/seconds_since_reset": "x", "proc/uptime": f"{DAY}.1 5"}, "pp", ""),
        (GOOD | {f"{MC}/seconds_since_reset": "x"}, "ip", "no time since"),
        (GOOD | {f"{MC}/dimm1/dimm_ue_count": "x"}, "pi", "no count of uncorrected errors"),
        ({f"{MC}/ce_count": "0", f"{MC}/ue_count": "0"}, "pp", ""),  # a driver without DIMMs
        ({f"{MC}/ue_count": "3"}, "if", "mc0: 3"),
        ({"sys/class": ""}, "ii", "no controller in /sys/devices/system/edac/mc"),
    ],
)
def test_errors_by_dimm_and_day(
    tmp_path: Path, files: Mapping[str, str], expected: str, words: str
) -> None:
    nodes = {"a": tree(tmp_path / "a", GOOD), "b": tree(tmp_path / "b", files)}
    found = judged(MemoryHasFewErrors, "{}", nodes)
    assert verdicts(found) == f"pp {expected}"
    assert words in " ".join(one.note for one in found["b"])
    assert blamed(found) == ({"b"} if "f" in expected else set())


def test_a_rate_may_be_promised(tmp_path: Path) -> None:
    root = tree(tmp_path, GOOD)
    promise = "{corrected_per_day_at_most: 1}"
    assert verdicts(judged(MemoryHasFewErrors, promise, {"a": root})) == "fp"


COUNTS = """Label\t\t\tCE\tUE
CPU_SrcID#0_MC#0_Chan#0_DIMM#0\t0\t0
mc#0csrow#2channel#1\t7\t1
"""


def test_ras_mc_ctl_is_asked_where_sysfs_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_counts(COUNTS)[1:] == [("mc#0csrow#2channel#1", 7, 1)]
    assert parse_counts("ras-mc-ctl: Error: No DIMMs found in /sys\n") == []
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("pytest_mnode.machine.sysfs.entries", lambda _: ())
    found = judged(MemoryHasFewErrors, "{}", {"a": Path("/")})
    assert verdicts(found) == "ii"
    assert "install rasdaemon" in found["a"][0].note
    write_program(tmp_path / "ras-mc-ctl", f"#!/bin/sh\ncat <<'E'\n{COUNTS}E\n")
    found = judged(MemoryHasFewErrors, "{}", {"a": Path("/")})
    assert verdicts(found) == "pf"
    assert "mc#0csrow#2channel#1" in found["a"][1].note


def test_what_is_drafted(tmp_path: Path) -> None:
    rows = rows_of(MemoryHasFewErrors, "{}", tree(tmp_path, GOOD)).rows
    assert MemoryHasFewErrors.draft({"a": rows}) == {}
    assert MemoryHasFewErrors.draft({"a": rows, "b": ()}) is None
