"""Directories of tests that are visible to all their ranks."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.protocol.launcher_requests import DescribeRun

if TYPE_CHECKING:
    from pytest_mnode.controller.session import Run

_NAME_CHARS = 30


class SharedTmp:
    """Makes shared directories, and removes them by pytest's own rules.

    If nodes share this machine's kernel, they are below pytest's temporary directory; otherwise
    below the directory that all nodes share, which is removed with the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = itertools.count()

    def make(self, item: pytest.Item) -> Path | None:
        """A new directory for a test; None if nodes share no directory."""
        if self._base is None:
            return None
        name = re.sub(r"\W", "_", item.name)[:_NAME_CHARS]
        made = self._base / f"{name}{next(self._numbers)}"
        made.mkdir(mode=0o700, parents=True)
        return made

    @functools.cached_property
    def _base(self) -> Path | None:
        client = self._run.have_client()
        described = client.ask_launcher(DescribeRun())
        factory: Any = getattr(self._run.config, "_tmp_path_factory", None)  # None: -p no:tmpdir
        if described.shares_kernel and factory is not None:
            return Path(factory.getbasetemp()) / "shared"
        if not described.shares_files:
            return None
        return Path(described.scratch) / "tmp" / client.name.replace("/", "-")

    @staticmethod
    def end(made: Path, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        """Remove a test's directory if tmp_path_retention_policy does not keep it."""
        if not item.config.pluginmanager.hasplugin("tmpdir"):
            return  # without that plugin there is no policy
        policy = item.config.getini("tmp_path_retention_policy")
        if policy == "failed" and not any(report.failed for report in reports):
            shutil.rmtree(made, ignore_errors=True)
