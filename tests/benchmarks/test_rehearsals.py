"""Rehearsals by numbers: few seeds of what `python -m benchmarks rehearsals` runs with many."""

from __future__ import annotations

import pytest

from benchmarks.rehearsals import Found, found, grid, half, limit, measure, refused
from pytest_mnode.spec.profiles import profile_names
from pytest_mnode.virtual.faults import FAULTS


@pytest.mark.parametrize("profile", profile_names())
def test_healthy_nights_of_every_profile_are_not_refused(profile: str) -> None:
    nodes = (2, 3, 4, 8)[profile_names().index(profile) % 4]
    assert refused(profile, nodes, range(1)) == []


@pytest.mark.parametrize(
    ("name", "strength"), [("slow_tx", 0.9), ("slow_gpu", None), ("missing_nic", None)]
)
def test_a_fault_has_the_right_name(name: str, strength: float | None) -> None:
    """None: at its limit. There a slow transmitter is one slow path, whose ends are suspects."""
    assert found(name, range(2), strength) == Found(nights=2, red=2, named=2)


@pytest.mark.parametrize("name", ["slow_nic", "slow_hbm"])
def test_no_night_hides_what_it_says_it_would_show(name: str) -> None:
    fault = FAULTS[name]
    assert fault.strength is not None
    one = found(name, range(2), half(fault, fault.strength))
    assert (one.nights, one.accused, one.hidden) == (2, 0, 0)


def test_a_limit_is_the_weakest_strength_that_is_always_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.rehearsals.SEARCHED", 3)
    monkeypatch.setattr("benchmarks.rehearsals.VERIFIED", 3)
    strength, steps = limit("slow_hbm"), grid(FAULTS["slow_hbm"])
    weaker = steps[steps.index(strength) - 3]
    assert found("slow_hbm", range(3), strength).red == 3
    assert found("slow_hbm", range(3), weaker).red < 3


def test_the_tables_name_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.rehearsals.profile_names", lambda: ("h100-ib", "rack"))
    text = measure(1, 1, (2,), ("driver",))
    assert "95 % upper bound" in text
    assert "driver" in text
