"""pytest plugin: nodes simulated by one light client, and the controller's cost of each test."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.controller import pool
from pytest_mnode.launchers.local import Local


class _Light(Local):
    name = "light"

    def agent_command(self, argv: Sequence[str]) -> list[str]:  # noqa: ARG002  in its place
        return [sys.executable, "-m", "benchmarks.programs.light_ranks"]


def _started(wanted: str, nodes: int, *_: Any) -> tuple[_Light, str]:  # noqa: ARG001
    return _Light(nodes), "one client speaks for all ranks"


pool._started = _started  # type: ignore[assignment]
_began: dict[str, tuple[float, float]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    _began[nodeid] = time.perf_counter(), time.process_time()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    wall, cpu = _began[nodeid]
    spent = {"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    _write({"test": nodeid, **spent})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _write({"test": report.nodeid, "failed": report.longreprtext[:2000]})
        _write({"test": report.nodeid, "chars": len(report.longreprtext)})


def pytest_unconfigure() -> None:
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    _write({"peak_kib": int(peak.split()[1])})


def _write(record: dict[str, Any]) -> None:
    with Path(os.environ["MNODE_BENCH_RECORD"]).open("a") as file:
        file.write(json.dumps(record) + "\n")
