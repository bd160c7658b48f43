"""Runs test classes that start their own processes in the ranks of a world instead.

In torch's classes each rank is both parent and child. As the parent it runs setUp and tearDown;
instead of waiting for children it acts as one, and runs the body in a separate instance. All ranks
inherit from rank 0 what children inherit from their parent.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from pytest_mnode import processes
from pytest_mnode.rank.rank import Rank
from pytest_mnode.rank.shared_test import SharedTest
from pytest_mnode.suites import Suite, suite_of

dist: Any = torch.distributed
_COMMON = "torch.testing._internal.common_distributed"
_DISTRIBUTED_TEST = "torch.testing._internal.distributed.distributed_test"
_TMP_FIXTURES = ("tmp_path", "tmpdir")
__tracebackhide__ = True  # of all frames of this file, because pytest looks here too


def pytest_mnode_in_rank(config: pytest.Config, rank: Rank, items: Iterable[pytest.Item]) -> None:
    """Register the plugin, if there is such a class."""
    if any(map(suite_of, {getattr(item, "cls", None) for item in items})):
        config.pluginmanager.register(Suites(rank), "mnode-suites")


class Suites:
    """pytest plugin of a rank: adapts the classes of test suites."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._parent: Any = None
        """The instance that runs setUp and tearDown of the current test."""
        self._adopted: set[Suite] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        cls: Any = getattr(item, "cls", None)
        if (suite := suite_of(cls)) is None:
            return (yield)
        if suite is not Suite.DEEPSPEED and suite not in self._adopted:
            self._adopted.add(suite)
            self._adopt_processes() if suite is Suite.PROCESSES else self._adopt_continuous()
        test = SharedTest.current = SharedTest(self._rank)
        cls.world_size = self._rank.world.size
        try:
            return (yield)
        finally:
            test.end(keep_group=suite is Suite.CONTINUOUS)
            self._parent = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Generator[None, object, object]:
        cls: Any = getattr(item, "cls", None)
        match suite_of(cls):
            case None:
                return (yield)
            case Suite.DEEPSPEED:
                _have_deepspeed(cls)
                _share_tmp(item)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(cls, "is_dist_test", False)  # its conftest.py starts no processes
                    return (yield)
            case _:
                # tearDown runs after all ranks have ended their bodies, as if a parent waited.
                self._parent = item.instance
                tear_down = item.instance.tearDown

                def end() -> None:
                    for path in SharedTest.current.temporary if SharedTest.current else ():
                        Path(path).touch()  # tearDown may remove the file
                    tear_down()

                item.instance.tearDown = lambda: item.addfinalizer(end)
                return (yield)

    # torch's MultiProcessTestCase.

    def _adopt_processes(self) -> None:
        base: Any = sys.modules[_COMMON].MultiProcessTestCase
        self._run_test, self._join = base.run_test, base._join_processes
        torch_set_up = base.setUp

        def set_up(case: Any) -> None:
            torch_set_up(case)
            if SharedTest.current is not None:
                SharedTest.current.use_name(case.file_name)

        def join(case: Any, body: Callable[[], None]) -> None:
            self._be_child(case, body)

        def run(case: Any, name: str, pipe: Any) -> None:
            self._run_body(case, name, pipe)

        base.setUp = set_up
        base._start_processes = lambda *_: None  # this rank is the child
        base._join_processes, base.run_test = join, run
        module: Any = sys.modules.get(_DISTRIBUTED_TEST)
        if module is not None:
            module.Barrier.sync = _barrier

    def _be_child(self, parent: Any, body: Callable[[], None]) -> None:
        assert SharedTest.current is not None
        SharedTest.current.inherit(parent.file_name)
        place = (self._rank.world.rank, parent._current_test_name(), SharedTest.current.file_name)
        fake_group = getattr(parent, "fake_pg", False)
        if body in parent.skip_return_code_checks or body in parent.special_return_code_checks:
            self._have_child(parent, body, place, fake_group)
            return
        with _exit_codes():
            type(parent)._run(*place, None, fake_pg=fake_group)

    def _run_body(self, child: Any, name: str, pipe: Any) -> None:
        if self._rank.is_child:
            self._run_test(child, name, pipe)
            return
        child._outcome = self._parent._outcome  # subtests are reported there
        sys.modules["torch.testing._internal.common_utils"].set_rng_seed()
        # The group is destroyed after all bodies: a rank that left early would fail joining ranks.
        getattr(child, name)()

    def _have_child(
        self, parent: Any, body: Callable[[], None], place: tuple[int, str, str], fake_group: bool
    ) -> None:
        """Run a body that may end its process in a child of this rank; torch checks the child."""
        cuda: Any = torch.cuda
        if cuda.is_initialized():
            raise RuntimeError(
                "this test expects its process to end, so it needs a new process, but this rank "
                "has already used its device; give the mnode mark reuse='fresh'"
            )
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()

        def run() -> None:
            processes.die_with_parent(self._rank.pid)
            type(parent)._run(*place, there, fake_pg=fake_group)

        process = context.Process(target=run)
        process.start()
        assert process.pid is not None
        parent.processes, parent.pid_to_pipe = [process], {process.pid: here}
        if place[0] != 0:  # torch checks the exit code of the first process only
            parent.skip_return_code_checks.append(body)
        self._join(parent, body)

    # torch's MultiProcContinuousTest.

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside the wrapper that checks for leaks
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: Any
    ) -> Generator[None, object, object]:
        """Begin a class's processes with setUpClass, so that their group belongs to the class."""
        result = yield
        if "setUpClass" in fixturedef.argname and suite_of(request.cls) is Suite.CONTINUOUS:
            request.cls._ensure_processes_spawned()
        return result

    def _adopt_continuous(self) -> None:
        base: Any = sys.modules[_COMMON].MultiProcContinuousTest
        both_parts = base._worker_run_main_wait

        def with_subtests(case: Any, body: Callable[[], None]) -> Any:
            @functools.wraps(body)
            def run(instance: Any) -> None:
                if self._parent is not None:
                    instance._outcome = self._parent._outcome
                both(instance)

            both = both_parts(case, body).__func__
            return types.MethodType(run, case)

        base._spawn_processes = classmethod(self._begin_class)
        base._worker_run_main_wait = with_subtests

    def _begin_class(self, cls: Any, size: int) -> None:
        assert SharedTest.current is not None
        worker = _Worker(cls)
        cls.processes = cls.task_queues = cls.completion_queues = [worker]
        cls.rank, cls.world_size = self._rank.world.rank, size
        cls.rdvz_file = SharedTest.current.file_name = f"{tempfile.gettempdir()}/{cls.__name__}"
        with _exit_codes():
            cls._init_pg(cls.rank, size, cls.rdvz_file)


class _Worker:
    """Stands for a process and its queues: `get`, which waits for a result, runs the test."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._test = ""

    def put(self, test: str | None) -> None:
        self._test = test or ""

    def get(self, timeout: float) -> str:  # noqa: ARG002  the world has a limit
        with _exit_codes():
            self._cls._run_test_given_id(self._test)
        return self._test

    def join(self) -> None:
        self._cls._processes_spawned = False
        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    """Turn torch's exit codes for skipped tests into SkipTest."""
    try:
        yield
    except SystemExit as left:
        for skip in sys.modules[_COMMON].TEST_SKIPS.values():
            if skip.exit_code == left.code:
                raise unittest.SkipTest(skip.message) from None
        if left.code:
            raise


def _barrier(wait_for: int | None = None, timeout: float = 10) -> None:
    assert SharedTest.current is not None
    SharedTest.current.barrier(wait_for, timeout)


def _have_deepspeed(cls: Any) -> None:
    """Initialize DeepSpeed's layer over the default group; skip if it needs an accelerator."""
    deepspeed: Any = sys.modules.get("deepspeed")
    if deepspeed is None:
        return
    needs_device = getattr(cls, "requires_cuda_env", False)
    if needs_device and not deepspeed.accelerator.get_accelerator().is_available():
        pytest.skip("only supported in accelerator environments.")
    if getattr(cls, "init_distributed", True):
        deepspeed.init_distributed(dist_backend=dist.get_backend())


def _share_tmp(item: Any) -> None:
    """Give the ranks of a DeepSpeed test the same temporary directory."""
    assert SharedTest.current is not None
    for name in sorted(item.funcargs.keys() & set(_TMP_FIXTURES)):
        own = item.funcargs[name]
        item.funcargs[name] = type(own)(SharedTest.current.of_rank_0(name, str(own)))
