"""One rack for all tests of faults: undoing a fault must repair it for the next test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_mnode.launchers.rack import Link, Rack
from tests.inner import need_rack


@pytest.fixture(scope="session")
def rack() -> Iterator[Rack]:
    """Three nodes with a fabric of 80 Mbit/s and a management network of 16."""
    need_rack()
    with Rack(3, Link("fab0", 80), Link("mgmt0", 16), shm_bytes=8 << 20) as rack:
        yield rack
