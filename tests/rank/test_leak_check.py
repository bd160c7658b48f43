"""What a test left in its rank, beside what fixtures hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.rank.leak_check import LeakCheck
from pytest_mnode.rank.leaks import Resources
from pytest_mnode.rank.wide_fixtures import WideFixtures

MIB = 2**20


@pytest.mark.parametrize("fixture_mib", [600, -600])
def test_memory_of_a_fixture_counts_once(monkeypatch: pytest.MonkeyPatch, fixture_mib: int) -> None:
    held = [1000 * MIB]
    monkeypatch.setattr(LeakCheck, "_resources", lambda _: Resources(host_bytes=held[0]))
    rank: Any = SimpleNamespace(made=None)
    check = LeakCheck(rank, WideFixtures())
    check.begin()
    fixture: Any = type("Fixture", (), {"scope": "module"})()
    setup = check.pytest_fixture_setup(fixture)
    next(setup)
    held[0] += fixture_mib * MIB
    with pytest.raises(StopIteration):
        setup.send(None)
    check.begin()
    assert check._allowed.host_bytes == held[0]
