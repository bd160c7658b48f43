"""Leftovers of a test in its rank, without those of fixtures."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_mnode import processes
from pytest_mnode.rank import leaks
from pytest_mnode.rank.leaks import LeakCheck, Resources, lines
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
    fixture: Any = type("Fixture", (), {"scope": scope, "func": len, "argnames": ()})()
    request: Any = None
    setup = check.pytest_fixture_setup(fixture, request)
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


@pytest.mark.parametrize(
    ("at_end", "function_between", "again"),
    [
        (Resources(), False, 0),
        (Resources(), True, 1),
        (Resources(threads=frozenset({2})), False, 1),
        (Resources(children=frozenset({9})), False, 1),
        (Resources(groups=frozenset({"0"})), False, 1),
        (Resources(timers=frozenset({0})), False, 1),
    ],
)
def test_what_the_end_of_a_test_found_is_the_next_begin_if_nothing_can_change(
    monkeypatch: pytest.MonkeyPatch, at_end: Resources, function_between: bool, again: int
) -> None:
    """Such as a thread that may stay, and ends: the next one may have its number."""
    rank: Any = SimpleNamespace(made=None, stale_keys=False, end=lambda _: True)
    check, reads = LeakCheck(rank, WideFixtures()), itertools.count()

    def read(_: LeakCheck) -> Resources:
        next(reads)
        return at_end

    monkeypatch.setattr(LeakCheck, "_resources", read)
    monkeypatch.setattr(leaks, "leaked_since", lambda *_: (Resources(), at_end))
    item: Any = SimpleNamespace(get_closest_marker=lambda _: None, config=None)
    monkeypatch.setattr("pytest_mnode.rank.leaks.may_leave", lambda _: ())
    check.begin()
    check.end(item, all_passed=True)
    if function_between:
        check.forget()
    before = next(reads)
    check.begin()
    assert (next(reads) - before - 1, check._before) == (again, at_end)


def test_garbage_of_a_test_hides_no_leak_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was freed while a test's end looked for leaks is not what the next one begins with."""
    rank: Any = SimpleNamespace(made=None, stale_keys=False)
    check, garbage, kept = LeakCheck(rank, WideFixtures()), [0], [0]
    monkeypatch.setattr(leaks, "_threads", dict)
    monkeypatch.setattr(leaks, "_children", lambda: [])
    monkeypatch.setattr(leaks, "may_leave", lambda _: ())
    monkeypatch.setattr(leaks, "_host_bytes", lambda: garbage[0] + kept[0])
    monkeypatch.setattr(gc, "collect", lambda: garbage.__setitem__(0, 0))
    item: Any = SimpleNamespace()
    check.begin()
    garbage[0] = 600 * MIB
    assert check.end(item, all_passed=True).leaks == ()
    check.begin()
    kept[0] = 500 * MIB
    leak = "500 MiB of memory (more than 256 MiB counts as a leak)"
    assert check.end(item, all_passed=True).leaks == (leak,)


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


def test_what_has_gone_is_left_no_longer_except_memory() -> None:
    left = Resources(children=frozenset({1, 2}), threads=frozenset({7}), host_bytes=5)
    gone = Resources(children=frozenset({2, 3}), timers=frozenset({0}), host_bytes=3)
    assert left.minus(gone) == replace(left, children=frozenset({1}))


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
        assert leaks.leaked_since(before, None)[0].children == {child.pid}
        child.kill()


def test_a_child_that_is_about_to_end_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leaks.resources(None)
    with subprocess.Popen(["sleep", "60"]) as child:

        def end(_: float) -> None:
            child.kill()
            child.wait()

        monkeypatch.setattr(time, "sleep", end)
        assert not leaks.leaked_since(before, None)[0].children


def test_processes_that_libraries_keep_are_no_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {
        1: "python -c from multiprocessing.resource_tracker import main;main(5)",
        2: "python -c from multiprocessing.forkserver import main; main(7, 8)",
        3: "python /lib/torch/_inductor/compile_worker/__main__.py --workers=4",
        4: "python -m joblib.externals.loky.backend.popen_loky_posix --process-name",
        5: "python -m serve",
        6: "ended",
    }
    monkeypatch.setattr(os, "waitid", lambda *_: None)
    monkeypatch.setattr(processes, "children", lambda _: list(commands))
    monkeypatch.setattr(processes, "has_ended", lambda pid: commands[pid] == "ended")
    monkeypatch.setattr(leaks, "_command", commands.get)
    assert leaks._children() == [5]


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
