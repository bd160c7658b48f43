"""Resources that a test leaks in its rank: child processes, threads, process groups, memory.

Finds the leaks of each test, and removes those that it can.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.marks import may_leave
from pytest_mnode.protocol.messages import TornDown
from pytest_mnode.rank.process_group import LAST_GROUP, GroupKeeper
from pytest_mnode.rank.recorder import OPERATION_COUNTS
from pytest_mnode.rank.wide_fixtures import WideFixtures
from pytest_mnode.suites import suite_of

HOST_MEMORY_LIMIT_BYTES = 256 * 2**20
HOST_MEMORY_LIMIT_ON_CUDA_BYTES = 1024 * 2**20
"""Where CUDA is in use: the driver, NCCL and cuBLAS take some hundred MiB each at their first use,
and keep them for the life of the process."""
DEVICE_MEMORY_LIMIT_BYTES = 32 * 2**20
_SETTLE_S = 0.2
_SHOWN = 80
"""Most characters shown of a command."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_HELPER_THREADS = (
    *(LAST_GROUP, OPERATION_COUNTS, "tqdm_monitor", "InductorSubproc", "fsspecIO"),
    *("asyncio_*", "AnyIO worker thread"),  # of an event loop, which a plugin may keep
)
_HELPER_MODULES = ("loky.", "joblib.externals.loky.")
_HELPER_PROCESSES = (
    *(".resource_tracker import main", ".forkserver import main"),  # multiprocessing and its forks
    *("torch/_inductor/compile_worker", "loky.backend.popen_loky_posix"),
)
"""Threads and processes that libraries start once and keep, because the next test uses them too."""
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a rank at one moment, or the difference of two moments."""

    children: frozenset[int] = frozenset()
    threads: frozenset[int] = frozenset()
    groups: frozenset[str] = frozenset()
    """Names of process groups; a world can destroy those itself."""
    timers: frozenset[int] = frozenset()
    host_bytes: int = 0
    device_bytes: int = 0

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.children - other.children,
            self.threads - other.threads,
            self.groups - other.groups,
            self.timers - other.timers,
            self.host_bytes - other.host_bytes,
            self.device_bytes - other.device_bytes,
        )

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.children | other.children,
            self.threads | other.threads,
            self.groups | other.groups,
            self.timers | other.timers,
            self.host_bytes + other.host_bytes,
            self.device_bytes + other.device_bytes,
        )

    @property
    def are_bare(self) -> bool:
        """Whether they are memory only."""
        return not (self.children or self.threads or self.groups or self.timers)

    def minus(self, gone: Resources) -> Resources:
        """These without `gone`; memory stays, because freed memory may still be the process's."""
        less = self - gone
        return replace(less, host_bytes=self.host_bytes, device_bytes=self.device_bytes)


def resources(own_group: object) -> Resources:
    """This process's resources now, without `own_group`, which is not the test's."""
    return Resources(
        frozenset(_children()),
        frozenset(_threads()),
        frozenset(groups(own_group)),
        frozenset(t for t in _TIMERS if signal.getitimer(t)[0]),
        _host_bytes(),
        _device_bytes(),
    )


def leaked_since(
    allowed: Resources, own_group: object, item: pytest.Item | None = None
) -> tuple[Resources, Resources]:
    """Resources beyond `allowed`, after those that are about to end had a moment to do so; and all.

    item: the test that may leave some of them.
    """
    end = time.monotonic() + _SETTLE_S
    while True:
        now = resources(own_group)
        left = now - allowed
        if item is not None and (left.children or left.threads or left.timers or _is_much(left)):
            left = _without_tolerated(left, may_leave(item))
        if not (left.children or left.threads) or time.monotonic() > end:
            return left, now
        time.sleep(0.01)


def _without_tolerated(left: Resources, may_leave: Sequence[str]) -> Resources:
    names = _threads()
    return replace(
        left,
        children=frozenset(p for p in left.children if not _is_one_of(_command(p), may_leave)),
        threads=frozenset(t for t in left.threads if not _is_one_of(names.get(t, ""), may_leave)),
        timers=frozenset() if "alarm" in may_leave else left.timers,
        host_bytes=0 if "memory" in may_leave else left.host_bytes,
        device_bytes=0 if "memory" in may_leave else left.device_bytes,
    )


def _is_one_of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def lines(left: Resources, allowed: Resources) -> list[str]:
    """Lines for the user, one per resource; process groups do not concern the user."""
    names = _threads() if left.threads else {}
    return [
        *(f"child process {pid} ({_command(pid)[:_SHOWN]})" for pid in sorted(left.children)),
        *(f"thread {names.get(ident, 'ended by now')!r}" for ident in sorted(left.threads)),
        *(f"an alarm due in {signal.getitimer(t)[0]:.1f} s" for t in sorted(left.timers)),
        *_memory(allowed, left),
    ]


def _children() -> list[int]:
    """Running child processes; a zombie holds no resources."""
    try:  # one system call if there are none, as after nearly every test
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    running = [pid for pid in processes.children(os.getpid()) if not processes.has_ended(pid)]
    return [p for p in running if not any(helper in _command(p) for helper in _HELPER_PROCESSES)]


def _threads() -> dict[int, str]:
    """Names by ident of other threads that run Python, without helpers, however they started."""
    others = sys._current_frames().keys() - {threading.get_ident()}
    if not others:
        return {}
    known = {thread.ident: thread for thread in threading.enumerate()}
    own = {ident: known.get(ident) for ident in others}
    compiling = _threads_that_compile()
    return {
        ident: f"{ident:#x}" if thread is None else thread.name
        for ident, thread in own.items()
        if thread is None or not (thread in compiling or _is_helper(thread))
    }


def _is_helper(thread: threading.Thread) -> bool:
    """Whether a thread is a library's own, by its name, class or function."""
    code = type(thread), getattr(thread, "_target", None)
    modules = [str(getattr(one, "__module__", "")) for one in code]
    return _is_one_of(thread.name, _HELPER_THREADS) or any(
        module.startswith(_HELPER_MODULES) for module in modules
    )


def _threads_that_compile() -> set[threading.Thread]:
    """Threads that torch.compile starts once; they have no name of their own."""
    module: Any = sys.modules.get("torch._inductor.async_compile")
    if module is None or not module.AsyncCompile.pool.cache_info().currsize:
        return set()
    threads: set[threading.Thread] = module.AsyncCompile.pool()._threads
    return threads


def groups(own_group: object) -> list[str]:
    """Names of the process groups of this process, without `own_group`."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None:
        return []
    return [str(name) for group, name in module._world.pg_names.items() if group is not own_group]


def _memory(allowed: Resources, left: Resources) -> list[str]:
    lines = []
    limit = _host_limit_bytes()
    if left.host_bytes > limit:
        gc.collect()
        grown = _host_bytes() - allowed.host_bytes
        if grown > limit:
            lines.append(
                f"{grown / 2**20:.0f} MiB of memory (more than "
                f"{limit / 2**20:.0f} MiB counts as a leak)"
            )
    if left.device_bytes > DEVICE_MEMORY_LIMIT_BYTES:
        gc.collect()
        _drop_workspaces()
        grown = _device_bytes() - allowed.device_bytes
        if grown > DEVICE_MEMORY_LIMIT_BYTES:
            lines.append(f"{grown / 2**20:.0f} MiB of device memory")
    return lines


def _is_much(left: Resources) -> bool:
    """Whether memory may be a leak, unless it is garbage."""
    return left.host_bytes > _host_limit_bytes() or left.device_bytes > DEVICE_MEMORY_LIMIT_BYTES


def _host_limit_bytes() -> int:
    on_cuda = _cuda() is not None
    return HOST_MEMORY_LIMIT_ON_CUDA_BYTES if on_cuda else HOST_MEMORY_LIMIT_BYTES


def _host_bytes() -> int:
    """Resident anonymous memory of this process."""
    with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123  read twice a test
        pages = file.read(200).split()
    return (int(pages[1]) - int(pages[2])) * _PAGE_BYTES


def _device_bytes() -> int:
    cuda = _cuda()
    return 0 if cuda is None else int(cuda.memory_allocated())


def _cuda() -> Any:
    """torch.cuda where this process uses a device; else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _drop_workspaces() -> None:
    """Free what torch keeps for cuBLAS, 32 MiB or more of a device once a product was computed.

    As torch's own CudaMemoryLeakCheck does (torch/testing/_internal/common_utils.py).
    """
    torch: Any = sys.modules["torch"]
    torch._C._cuda_clearCublasWorkspaces()


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return b" ".join(words).decode(errors="replace").strip() or "unnamed"


class LeakCheck:
    """pytest plugin of a rank: compares its resources before and after each test, and tells `wide`
    of its fixtures."""

    def __init__(self, groups: GroupKeeper, wide: WideFixtures) -> None:
        self._groups = groups
        self._wide = wide
        self._before = Resources()
        self._last: Resources | None = None
        """What the end of the test before found, if that still holds."""
        self._of_fixtures: dict[pytest.FixtureDef[Any], Resources] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Attribute resources to a wide-scope fixture until it is torn down."""
        __tracebackhide__ = True
        if fixturedef.scope == "function":
            return (yield)
        self._wide.begin(fixturedef, request)
        before = self._resources()
        try:
            return (yield)
        finally:
            self._of_fixtures[fixturedef] = self._resources() - before

    @pytest.hookimpl
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._wide.ended(fixturedef)
        if (its_own := self._of_fixtures.pop(fixturedef, None)) is not None:
            before = self._before.minus(its_own)
            # Memory it took in this test stays with the process: the driver's, and NCCL's.
            host_bytes = before.host_bytes + its_own.host_bytes
            self._before = replace(before, host_bytes=host_bytes)

    def begin(self) -> None:
        """Note the rank's resources before a test."""
        # Threads and processes are looked for again: they may end, and others get their numbers.
        kept, self._last = self._last, None
        self._before = kept if kept is not None and kept.are_bare else self._resources()
        # This includes the memory of existing fixtures, which must not count twice.
        for fixturedef, its_own in self._of_fixtures.items():
            self._of_fixtures[fixturedef] = replace(its_own, host_bytes=0, device_bytes=0)

    def forget(self) -> None:
        """Something else than a test runs in this rank."""
        self._last = None

    def end(self, item: pytest.Item, *, all_passed: bool) -> TornDown:
        """A test's leaks, and what they mean for the next one. Process groups are none, because
        nobody destroys those of a device mesh, and `Fabric.launch()` keeps its group. They are
        destroyed here, or with the ranks.
        """
        allowed = self._allowed
        left, now = leaked_since(allowed, self._groups.made, item)
        # Keys of destroyed groups stay in the store of the default group, so that group is renewed
        # too. If a wide-scope fixture is built on it, the groups live as long as the fixture.
        wide = self._wide.built_on_group or any(h.groups for h in self._of_fixtures.values())
        ended = bool(left.groups) and all_passed and not wide and self._groups.end(left.groups)
        found = tuple(lines(left, allowed))
        # Memory beyond a limit was measured again without garbage, which `now` has.
        self._last = None if _is_much(left) else now
        if found and suite_of(getattr(item, "cls", None)):
            # In the suite's own processes they would end with the test.
            return TornDown(reusable=False)
        stale = ended or (self._groups.stale_keys and not wide)
        reusable = ended or wide or not left.groups
        return TornDown(found, reusable=reusable, new_group=stale)

    @property
    def fixtures_with_groups(self) -> set[str]:
        """Names of wide-scope fixtures that made process groups; none if a group is gone."""
        made = {d.argname: held.groups for d, held in self._of_fixtures.items() if held.groups}
        exist = frozenset().union(*made.values()).issubset(groups(self._groups.made))
        return set(made) if exist else set()

    @property
    def has_only_own_group(self) -> bool:
        """Whether there is no process group that `end` would destroy."""
        return self._groups.intact and not groups(self._groups.made)

    def found(self) -> list[str]:
        """Leaks of fixtures that were torn down between tests, as lines for the user."""
        allowed = self._allowed
        left, _ = leaked_since(allowed, self._groups.made)
        return lines(left, allowed)

    @property
    def _allowed(self) -> Resources:
        return sum(self._of_fixtures.values(), self._before)

    def _resources(self) -> Resources:
        return resources(self._groups.made)
