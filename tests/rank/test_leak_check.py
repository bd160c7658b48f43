"""Leftovers of a test in its rank, without those of fixtures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_mnode.rank import leaks
from pytest_mnode.rank.leak_check import LeakCheck
from pytest_mnode.rank.leaks import Resources, lines
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


def test_memory_of_a_fixture_that_ends_with_the_test_is_not_the_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like the process group in the last test of a world: NCCL keeps its memory."""
    held = [1000 * MIB]
    monkeypatch.setattr(LeakCheck, "_resources", lambda _: Resources(host_bytes=held[0]))
    rank: Any = SimpleNamespace(made=None)
    check = LeakCheck(rank, WideFixtures())
    check.begin()
    fixture: Any = type("Fixture", (), {"scope": "session"})()
    setup = check.pytest_fixture_setup(fixture)
    next(setup)
    held[0] += 346 * MIB
    with pytest.raises(StopIteration):
        setup.send(None)
    check.pytest_fixture_post_finalizer(fixture)
    assert check._allowed.host_bytes == held[0]


def cuda(monkeypatch: pytest.MonkeyPatch, allocated: int, workspaces: int = 0) -> None:
    """A fake CUDA device in torch with this much allocated memory, with cuBLAS workspaces."""
    device = [allocated]

    def clear() -> None:
        device[0] -= workspaces

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: device[0])
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)


@pytest.mark.parametrize(
    ("allocated", "workspaces", "found"),
    [(65 * MIB, 65 * MIB, []), (65 * MIB, 0, ["65 MiB of device memory"])],
)
def test_workspaces_of_cublas_are_no_leak(
    monkeypatch: pytest.MonkeyPatch, allocated: int, workspaces: int, found: list[str]
) -> None:
    cuda(monkeypatch, allocated, workspaces)
    assert lines(Resources(device_bytes=allocated), Resources()) == found


def test_libraries_of_cuda_may_take_host_memory_at_their_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaks, "_host_bytes", lambda: 400 * MIB)
    left = Resources(host_bytes=400 * MIB)
    assert lines(left, Resources()) == [
        "400 MiB of memory (more than 256 MiB counts as a leak)",
    ]
    cuda(monkeypatch, 0)
    assert lines(left, Resources()) == []
    monkeypatch.setattr(leaks, "_host_bytes", lambda: 2000 * MIB)
    assert lines(Resources(host_bytes=2000 * MIB), Resources()) == [
        "2000 MiB of memory (more than 1024 MiB counts as a leak)",
    ]
