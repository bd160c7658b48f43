"""What other plugins get of the ranks of a test.

allure-pytest: one result per test, with a step per rank that holds the rank's own result.
pytest-benchmark: one benchmark per rank.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.outcome.outcome import Outcome

_LISTENER = "allure_listener"


def add_ranks(config: pytest.Config, outcome: Outcome) -> None:
    """Add a step for each rank to the allure result of the running test."""
    test = _result_of_test(config)
    if test is None:
        return
    import allure_commons  # type: ignore[import-not-found]
    from allure_commons.model2 import Status, TestStepResult  # type: ignore[import-not-found]

    for rank, state in outcome.states.items():
        step = TestStepResult(
            name=f"rank {rank} on {state.node}",
            status=Status.BROKEN,  # stays if the rank sent no result
            start=int(outcome.started * 1000),
            stop=int(outcome.stopped * 1000),
        )
        torn_down = state.torn_down
        sent = torn_down.allure if torn_down is not None and torn_down.allure else {}
        for result in sent.get("results", ()):
            of_step = ("status", "statusDetails", "steps", "attachments", "start", "stop")
            for name in (name for name in of_step if name in result):
                setattr(step, name, result[name])
        for name, body in sent.get("attachments", {}).items():
            allure_commons.plugin_manager.hook.report_attached_data(body=body, file_name=name)
        test.steps.append(step)


def set_times(config: pytest.Config, start_s: float, stop_s: float) -> None:
    """Set when ranks began and ended the running test, in seconds since 1970."""
    test = _result_of_test(config)
    if test is not None:
        test.start, test.stop = int(start_s * 1000), int(stop_s * 1000)


def _result_of_test(config: pytest.Config) -> Any:
    listener: Any = config.pluginmanager.getplugin(_LISTENER)
    return None if listener is None else listener.allure_logger.get_test(None)


RESULTS = "mnode_benchmarks"
"""Attribute of a merged report that holds the benchmark results of its ranks."""


def keep_benchmarks(config: pytest.Config, report: pytest.TestReport) -> None:
    """Add the results of a test's ranks to this process's benchmarks."""
    results = vars(report).pop(RESULTS, ())
    session: Any = getattr(config, "_benchmarksession", None)
    if not results or session is None:
        return
    from pytest_benchmark.stats import Metadata  # type: ignore[import-not-found]

    for result in sorted(results, key=lambda one: one["place"]["rank"]):
        suffix = f"[rank {result['place']['rank']}]"
        of_fixture = SimpleNamespace(
            name=result["name"] + suffix,
            fullname=result["fullname"] + suffix,
            group=result["group"],
            param=result["param"],
            params=result["params"],
            extra_info={**result["extra_info"], **result["place"]},
            cprofile_stats=None,
            has_error=False,
        )
        kept = Metadata(of_fixture, result["stats"]["iterations"], result["options"])
        for duration in result["stats"]["data"]:
            kept.stats.update(duration)
        session.benchmarks.append(kept)
