"""Imports each test module in a child first, to know what its import would leave in a process.

Only where an import did harm before: it takes twice as long. `Trial` is pytest's plugin; so is this
module, which pytest loads before all conftest.py files, to know which of them started threads.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.protocol.hub_messages import Collect

_UNKNOWN = "a plugin or a conftest.py, when pytest was configured,"
_running: list[tuple[str, int]] = []
"""How many threads ran when a plugin, or a conftest.py by its path, had been imported."""


def pytest_plugin_registered(plugin_name: str) -> None:
    _running.append((plugin_name, len(processes.thread_names())))


class Trial:
    """lost: what a forked child of this process would lack, in words.

    unfit: called with the files to leave out where this process is unfit already; does not return.
    """

    def __init__(self, lost: Callable[[], str], unfit: Callable[[dict[str, str]], Any]) -> None:
        self.found: dict[str, str] = {}
        """Why a module is not to be imported here, by file."""
        self._culprit = _UNKNOWN
        self._lost = lost
        self._unfit = unfit

    def begin(self, collect: Collect) -> None:
        """When plugins and conftest.py files are imported, and before they are configured."""
        self._collect = collect
        grown = (after for before, after in pairwise(_running) if after[1] > before[1])
        self._culprit, _ = next(grown, (_UNKNOWN, 0))

    def all_files(self, why: str, below: Path = Path("/")) -> dict[str, str]:
        return {file: why for file in self._collect.files if Path(file).is_relative_to(below)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """When plugins and conftest.py files are configured, before the first module."""
        if not (lost := self._lost()):
            return
        culprit = self._culprit
        if culprit.endswith("conftest.py"):
            folder = Path(culprit).parent
            self._unfit(self.all_files(f"{folder.name}/conftest.py starts {lost}", folder))
        self._unfit(self.all_files(f"{culprit} starts {lost}"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> pytest.CollectReport | None:
        if not isinstance(collector, pytest.Module) or not (why := self._tried(collector)):
            return None
        self.found[str(collector.path)] = why
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def _tried(self, module: pytest.Module) -> str:
        """What the import of a module would leave; "" where nothing."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            processes.adopt_orphans()  # what the import makes a daemon ends with it too
            with contextlib.suppress(BaseException):  # an error is reported by the import itself
                list(module.collect())
            try:
                os.write(write, self._lost().encode())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            processes.kill_descendants()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(write)
        os.set_blocking(read, False)  # something that the import started may hold the other end
        lost = ""
        with contextlib.suppress(BlockingIOError):
            lost = os.read(read, 1 << 16).decode(errors="replace")
        os.close(read)
        if status:
            return f"its import ends the process (status {status})"
        return f"its import starts {lost}" if lost else ""
