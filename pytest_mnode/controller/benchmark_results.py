"""pytest-benchmark results of ranks, kept in the controller as one benchmark per rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

RESULTS = "mnode_benchmarks"
"""Attribute of a merged report that holds the benchmark results of its ranks."""


def keep(config: pytest.Config, report: pytest.TestReport) -> None:
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
