"""pytest-xdist: each worker is a client of the hub of the process that started it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.session import Run
from pytest_mnode.errors import MnodeError
from pytest_mnode.evidence.file import RECORD
from pytest_mnode.protocol.channel import UnixLine

_INPUT = "mnode"
"""Key of our data in the input that pytest-xdist sends to a worker."""


def join(run: Run, workerinput: dict[str, Any]) -> None:
    """In a worker: connect to the hub of the process that started it, if that has one."""
    if (given := workerinput.get(_INPUT)) is not None:
        name = given["client"]
        line = UnixLine(name, given["path"], given["token"])
        limits = run.settings.limits(given["nodes"])
        run.client = Client(name, line, limits, number=given["number"])
        run.launcher, run.reason = given["launcher"], given["reason"]


ROWS_OF_WORKER = "mnode_rows"
"""Attribute of a worker's report: rows of checks for the evidence, which the controller writes."""


class WorkerRows:
    """pytest plugin of a worker: sends rows of checks with its next report."""

    def __init__(self, config: pytest.Config) -> None:
        self._rows: list[Mapping[str, Any]] = []
        config.stash[RECORD] = self._rows.extend

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._rows:
            setattr(report, ROWS_OF_WORKER, self._rows.copy())
            self._rows.clear()


class XdistController:
    """pytest plugin of the process that starts workers."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = itertools.count(1)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the hub's address to a worker that is about to start, by standard input."""
        run = self._run
        if run.nodes is None:
            return
        spec = node.gateway.spec
        if not spec.popen or spec.via:
            raise pytest.UsageError(
                f"--tx: {spec} is not a process of this machine, and only such processes can use "
                "nodes; use -n, and list other machines as nodes in --mnode-hostfile"
            )
        try:
            pool = run.make_pool()
        except MnodeError as error:
            raise pytest.UsageError(str(error)) from None
        node.workerinput[_INPUT] = {
            "path": pool.path,
            "token": pool.token,
            "client": f"client/{node.gateway.id}-{os.getpid()}",
            "number": next(self._numbers),
            "nodes": run.nodes,
            "launcher": run.launcher,
            "reason": run.reason,
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Free the nodes of a worker that ended."""
        given = node.workerinput.get(_INPUT)
        if given is not None and self._run.client is not None:
            self._run.client.tell("forget", given["client"])
