"""A rack for tests that need one: shared within a module, as root and rootless in turn."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Link, Rack
from tests.inner import need

RunOn = Callable[..., "subprocess.CompletedProcess[str]"]


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


@pytest.fixture(scope="session")
def run_on() -> RunOn:
    """run_on(rack, node, argv, …): the completed command on a node."""

    def run_on(
        rack: Rack, node: Node, argv: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        (command,) = rack.commands([node], argv)
        settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 20}
        return subprocess.run(command, check=False, **settings, **options)

    return run_on
