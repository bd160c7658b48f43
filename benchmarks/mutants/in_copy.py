"""A pytest plugin of a mutated run: loopback is up, files stay in order, tests are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.apart import loopback_up


def pytest_configure() -> None:
    loopback_up()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    given = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    order = {path: number for number, path in enumerate(given)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_runtest_logstart(nodeid: str) -> None:
    """The last test that began is the one that failed, crashed or took too long."""
    Path(os.environ["MUTANT_TEST"]).write_text(nodeid)
