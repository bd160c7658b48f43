"""Imports again, as rank 0 would, test modules that only torchrun's variables let be collected.

Such a module skips itself, or raises, where RANK is not set, as in the controller. The tests in it
that run in ranks are kept. Of the others, which run in the controller, the first import decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_mnode.controller.session import Run
from pytest_mnode.env_reads import READS
from pytest_mnode.marks import FEWEST_NODES, runs_in_ranks
from pytest_mnode.protocol.messages import Shape
from pytest_mnode.skipping import skip_reason

_NO_RANK = "torchrun's variables are set in ranks only: to run it there, add @pytest.mark.mnode"


class ImportAgain:
    """pytest plugin of the controller; imports as in the world of most tests."""

    def __init__(self, run: Run) -> None:
        shape = Shape(run.nodes or FEWEST_NODES, run.procs_per_node)
        size, local_size = str(shape.size), str(shape.procs_per_node)
        # Without MASTER_PORT, so that a module which creates its group at import does not wait.
        self._env = {
            **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"),
            **{"WORLD_SIZE": size, "ROLE_WORLD_SIZE": size, "LOCAL_WORLD_SIZE": local_size},
            **{"GROUP_WORLD_SIZE": str(shape.nodes), "MASTER_ADDR": "127.0.0.1"},
            **{"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
        }
        self._first: dict[Path, pytest.CollectReport] = {}
        self._again = False

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        first = yield
        if first.passed or self._again or not isinstance(collector, pytest.Module):
            return first
        if not READS.alone(collector.path):
            return first
        second = self._imported_again(collector)
        if not second.passed:
            return first
        self._first[collector.path] = first
        return second

    def _imported_again(self, module: pytest.Module) -> pytest.CollectReport:
        others = {name: sys.modules.pop(name) for name in READS.modules if _is_users(name)}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._env.items():
                if name not in os.environ:
                    patch.setenv(name, value)
            self._again = True
            try:
                report: pytest.CollectReport = module.ihook.pytest_make_collect_report(
                    collector=module
                )
            finally:
                self._again = False
                sys.modules.update(others)  # other tests of the controller use these
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if (first := self._first.get(item.path)) is None or runs_in_ranks(item):
            return
        if first.skipped:
            pytest.skip(skip_reason(first))
        pytest.fail(f"{first.longreprtext}\n{_NO_RANK}", pytrace=False)


def _is_users(name: str) -> bool:
    """Whether a module is none of the installed ones, which may not stand a second import."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or "/lib/python3"
    return module is not None and "/lib/python3" not in file
