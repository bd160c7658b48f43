"""Recorded machines, and a spec that promises what is judged of paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import spec_of
from tests.recorded import recorded

__all__ = ["recorded", "spec"]


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """A spec that promises all questions of links, paths, names and clocks."""
    return spec_of(
        tmp_path,
        "{reachable: {networks: [fabric, management]}, names: {}, interfaces: {}, speed: {}, "
        "mtu: {}, clocks: {skew: 50 ms}, payload: {}}",
    )
