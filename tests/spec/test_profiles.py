"""Profiles of common systems load, certify nothing unchanged, and have a source for each number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_mnode.spec import bandwidth, default_spec_path, doubts, load_spec
from pytest_mnode.spec.preflight import PreflightCriterion

PROFILES = sorted(set(default_spec_path().parent.glob("*.yaml")) - {default_spec_path()})
_MARK = re.compile(r"\[(\d+|choice)\]")
profiles = pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)


def test_each_common_system_has_a_profile() -> None:
    names = [path.stem for path in PROFILES]
    assert {"a100-ib", "h100-ib", "h100-roce", "h100-efa"} <= set(names)


@profiles
def test_a_profile_loads_and_certifies_nothing_before_it_is_confirmed(path: Path) -> None:
    spec = load_spec(path)
    assert not spec.confirmed
    # A profile cannot know the directory of checkpoints: its copy has to name it.
    unconfirmed, unplaced = doubts(spec)
    assert unconfirmed.startswith("confirmed: false")
    assert unplaced.startswith("criteria.restart: promised, and storage.checkpoints names no")


@profiles
def test_each_number_of_a_profile_has_a_source(path: Path) -> None:
    lines = path.read_text().splitlines()
    listed = {
        mark[1]
        for line in lines
        if (mark := re.match(r"# \[(\d+|choice)\] \S.*", line)) is not None
    }
    used: set[str] = set()
    above: list[str] = []  # source marks in the comment lines before this one
    body = lines.index(next(line for line in lines if line.startswith("name:")))
    for line in lines[body + 1 :]:
        value, _, comment = line.partition("#")
        marks = _MARK.findall(comment)
        if not value.strip():
            above += marks
            continue
        numbers = re.findall(r"(?<![\w_])\d[\d.]*", value.partition(":")[2])
        assert marks or above or not numbers, line
        used |= {*marks, *above}
        above = []
    assert used == listed, f"sources of no value: {sorted(listed - used)}"


@profiles
def test_a_profile_is_of_one_system(path: Path) -> None:
    spec = load_spec(path)
    assert spec.accelerators.per_node == 8
    kinds = {"ib": "infiniband", "roce": "roce", "efa": "efa"}
    assert spec.fabric.kind == kinds[path.stem.partition("-")[2]]
    assert path.stem.partition("-")[0].upper() in str(spec.accelerators.model)
    total = bandwidth.line_rate_gbytes_s(spec.fabric)
    assert total == {"a100": 200, "h100": 400}[path.stem.partition("-")[0]]
    assert isinstance(spec.criteria.preflight, PreflightCriterion)
    assert {"preflight", "mesh", "numa", "devices", "fabric", "restart"} <= set(
        spec.promised_criteria
    )
