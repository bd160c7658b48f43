"""A rack for tests that need one: shared within a module, as root and rootless in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_mnode.launchers.rack import Link, Rack
from tests.inner import need


def _require(mode: str) -> None:
    reason = Rack.unavailable(mode)
    need(reason and f"no rack ({mode}): {reason}")


@pytest.fixture(scope="session")
def _rack_possible() -> None:
    _require("auto")


@pytest.fixture(scope="module", params=["root", "rootless"])
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    if mode == "root" and os.geteuid() != 0:
        pytest.skip("not root")
    _require(mode)
    return mode


@pytest.fixture(scope="module")
def rack(mode: str) -> Iterator[Rack]:
    """Three nodes with a fabric of 80 Mbit/s and a management network of 16."""
    rack = Rack(3, Link("fab0", 80), Link("mgmt0", 16), mode=mode, shm_bytes=8 << 20)
    with rack:
        yield rack


@pytest.fixture
def one_node(_rack_possible: None) -> Iterator[Rack]:
    """A rack of one node, the cheapest, for tests that break it."""
    with Rack(1) as rack:
        yield rack
