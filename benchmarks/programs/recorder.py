"""pytest plugin of the benchmarks: writes every report, with its time, as a line of JSON.

It is loaded by `-p benchmarks.programs.recorder`. For pytest-mnode it also stamps the moment when
the controller learns of a rank's death. In a rank of pytest-mnode it does nothing, because only the
controller's report counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config), "mnode-bench-recorder")
    if config.pluginmanager.has_plugin("mnode"):
        _stamp_deaths()


class Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.config.pluginmanager.has_plugin("mnode-rank-session"):
            return
        rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
        _write(
            {
                "pytest": rank,
                "test": report.nodeid.rpartition("::")[2],
                "when": report.when,
                "outcome": report.outcome,
                "text": report.longreprtext,
                "time": time.time(),
            }
        )


def _stamp_deaths() -> None:
    from pytest_mnode.controller.world_test import OutcomeUpdater
    from pytest_mnode.protocol.messages import Death

    hear = OutcomeUpdater.apply_death

    def heard(self: OutcomeUpdater, death: Death, now: float) -> Iterable[int]:
        _write({"death_seen": time.time()})
        return hear(self, death, now)

    OutcomeUpdater.apply_death = heard  # type: ignore[method-assign]


def _write(data: dict[str, Any]) -> None:
    with Path(os.environ["MNODE_BENCH_RECORD"]).open("a") as file:
        file.write(json.dumps(data) + "\n")
