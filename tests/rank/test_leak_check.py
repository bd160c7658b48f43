"""Leftovers of a test in its rank, without those of fixtures."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_mnode.rank import leaks
from pytest_mnode.rank.leak_check import LeakCheck
from pytest_mnode.rank.leaks import Resources, lines
from pytest_mnode.rank.wide_fixtures import WideFixtures

MIB = 2**20


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of memory that the rank holds."""
    found = [1000 * MIB]
    monkeypatch.setattr(LeakCheck, "_resources", lambda _: Resources(host_bytes=found[0]))
    return found


def checked(held: list[int], scope: str, fixture_mib: int) -> tuple[LeakCheck, Any]:
    """The check of a test that sets a fixture up, and the fixture, which takes so much memory."""
    rank: Any = SimpleNamespace(made=None)
    check = LeakCheck(rank, WideFixtures())
    check.begin()
    fixture: Any = type("Fixture", (), {"scope": scope})()
    setup = check.pytest_fixture_setup(fixture)
    next(setup)
    held[0] += fixture_mib * MIB
    with pytest.raises(StopIteration):
        setup.send(None)
    return check, fixture


@pytest.mark.parametrize("fixture_mib", [600, -600])
def test_memory_of_a_fixture_counts_once(held: list[int], fixture_mib: int) -> None:
    check, _ = checked(held, "module", fixture_mib)
    check.begin()
    assert check._allowed.host_bytes == held[0]


def test_memory_of_a_fixture_that_ends_with_the_test_is_not_the_tests(held: list[int]) -> None:
    """Like the process group in the last test of a world: NCCL keeps its memory."""
    check, fixture = checked(held, "session", 346)
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


def test_threads_that_torch_compile_keeps_are_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = SimpleNamespace(pool=functools.cache(lambda: ThreadPoolExecutor(1)))
    module = SimpleNamespace(AsyncCompile=compiling)
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", module)
    before = leaks._threads()
    with compiling.pool() as pool, ThreadPoolExecutor(1) as other:
        for one in (pool, other):
            one.submit(int).result()
        [left] = leaks._threads().keys() - before.keys()
        assert left in [thread.ident for thread in other._threads]


def test_a_thread_of_joblib_is_no_leak() -> None:
    class Manager(threading.Thread):
        __module__ = "joblib.externals.loky.process_executor"

        def run(self) -> None:
            over.wait()

    before, over = leaks._threads(), threading.Event()
    manager = Manager()
    manager.start()
    assert leaks._threads() == before
    over.set()
    manager.join()


def test_a_child_that_does_not_end_is_left_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_SETTLE_S", 0.1)
    before = leaks.resources(None)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert leaks.leaked_since(before, None, ()).children == {child.pid}
        child.kill()


def test_a_child_that_is_about_to_end_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leaks.resources(None)
    with subprocess.Popen(["sleep", "60"]) as child:

        def end(_: float) -> None:
            child.kill()
            child.wait()

        monkeypatch.setattr(time, "sleep", end)
        assert not leaks.leaked_since(before, None, ()).children


def _of_module(name: str) -> type[threading.Thread]:
    return type("Thread", (threading.Thread,), {"__module__": name})


@pytest.mark.parametrize(
    ("kind", "name", "counts"),
    [
        (threading.Thread, "mine", True),
        (threading.Thread, "tqdm_monitor", False),
        (threading.Thread, "asyncio_3", False),
        (_of_module("loky.process_executor"), "mine", False),
        (_of_module("lokymotive"), "mine", True),
    ],
)
def test_threads_that_libraries_keep_are_no_leaks(
    kind: type[threading.Thread], name: str, counts: bool
) -> None:
    before, ends = leaks.resources(None).threads, threading.Event()
    thread = kind(target=ends.wait, name=name)
    thread.start()
    try:
        assert (thread.ident in leaks.resources(None).threads - before) == counts
    finally:
        ends.set()
        thread.join()
