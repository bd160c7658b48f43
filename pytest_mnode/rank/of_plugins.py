"""What other plugins have of a rank: started in its own process, and taken after each test."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.protocol.hub_messages import Collect
from pytest_mnode.rank import allure_plugin, benchmark_plugin, coverage_plugin
from pytest_mnode.rank.rank import Rank


def start(config: pytest.Config, rank: Rank, collect: Collect) -> None:
    allure_plugin.start(config, bool(collect.options.get("allure_report_dir")))
    benchmark_plugin.start(config, rank)
    coverage_plugin.start(config, rank.files, collect.coverage)


def taken(config: pytest.Config) -> dict[str, Any]:
    """Fields of TornDown."""
    return {
        "coverage": coverage_plugin.measured(config),
        "allure": allure_plugin.result(config),
    }
