"""Imports each test module in a child first, to find what its import would leave in a process.

Also whether the import reads torchrun's variables, which only ranks have. Used only after an import
made a process unfit for forks, because it takes twice as long. `Trial` is a pytest plugin. So is
this module: pytest loads it before all conftest.py files, so that it can find which of them started
threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.env_reads import READS
from pytest_mnode.protocol.messages import Collect
from pytest_mnode.rank import exit_handlers

_UNKNOWN = "a plugin or a conftest.py, when pytest was configured,"
_SLOWER = "each rank imports these files itself (slower)"
_FINALIZERS_S = 3.0
"""Time for finalizers of what an import made, such as its temporary directories."""
_running: list[tuple[str, int]] = []
"""Number of running threads after each plugin, or conftest.py by its path, was imported."""


def pytest_plugin_registered(plugin_name: str) -> None:
    _running.append((plugin_name, len(processes.thread_names())))


class Trial:
    """pytest plugin that tries imports. lost: returns what a forked child would lack, as text.

    unfit: called with the files to leave out if this process is already unfit; never returns.
    """

    def __init__(self, lost: Callable[[], str], unfit: Callable[[dict[str, str]], Any]) -> None:
        self.found: dict[str, str] = {}
        """Why a module must not be imported here, by file."""
        self._culprit = _UNKNOWN
        self._lost = lost
        self._unfit = unfit

    def begin(self, collect: Collect) -> None:
        """Called after plugins and conftest.py files are imported, before they are configured."""
        self._collect = collect
        grown = (after for before, after in pairwise(_running) if after[1] > before[1])
        self._culprit, _ = next(grown, (_UNKNOWN, 0))

    def all_files(self, why: str, below: Path = Path("/")) -> dict[str, str]:
        return {file: why for file in self._collect.files if Path(file).is_relative_to(below)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Check the process after plugins and conftest.py files are configured, before modules."""
        if readers := read_by(self._collect.files):
            self._unfit(readers)
        if not (lost := self._lost()):
            return
        culprit = self._culprit
        if culprit.endswith("conftest.py"):
            folder = Path(culprit).parent
            why = starts(f"{folder.name}/conftest.py", lost)
            self._unfit(self.all_files(why, folder))
        self._unfit(self.all_files(starts(culprit, lost)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> pytest.CollectReport | None:
        if not isinstance(collector, pytest.Module) or not (why := self._tried(collector)):
            return None
        self.found[str(collector.path)] = why
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def _tried(self, module: pytest.Module) -> str:
        """What the import of a module would leave in this process, as text; "" if nothing."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            exit_handlers.disown()
            processes.adopt_orphans()  # so that daemons of the import end with this child too
            # An error is reported by the import itself.
            with contextlib.suppress(BaseException), READS.collecting(module.path):
                list(module.collect())
            try:
                os.write(write, self._why(module.path).encode())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            processes.kill_descendants()
            signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
            signal.setitimer(signal.ITIMER_REAL, _FINALIZERS_S)
            exit_handlers.finalize()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(write)
        os.set_blocking(read, False)  # a process of the import may still hold the other end
        why = ""
        with contextlib.suppress(BlockingIOError):
            why = os.read(read, 1 << 16).decode(errors="replace")
        os.close(read)
        if status:
            return f"its import ends the process (status {status}); {_SLOWER}"
        return why

    def _why(self, file: Path) -> str:
        if lost := self._lost():
            return starts("its import", lost)
        return reads(names) if (names := READS.of(file)) else ""


def starts(what: str, lost: str) -> str:
    """Why ranks import files themselves, if `what` starts something that forks would not have."""
    return (
        f"{what} starts {lost}; forked ranks would not have it, so {_SLOWER}. To fork ranks again, "
        "start it in a fixture or test, not at import"
    )


def reads(names: Sequence[str]) -> str:
    """Why ranks import files themselves, if their collection reads variables of a rank."""
    return (
        f"its import reads {', '.join(names)}; only a rank has its own, so {_SLOWER}. To fork "
        "ranks again, read it in a fixture or test, not at import"
    )


def read_by(files: Iterable[str], *, alone: bool = False) -> dict[str, str]:
    """Why ranks import these files themselves, for those that read variables of a rank.

    alone: without files that may only depend on a module which reads them.
    """
    names = READS.alone if alone else READS.of
    return {file: reads(found) for file in files if (found := names(Path(file)))}
