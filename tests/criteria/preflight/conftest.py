"""Recorded machines, and a spec that promises what is judged of paths."""

from __future__ import annotations

import pytest

from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import promising
from tests.recorded import recorded

__all__ = ["recorded", "spec"]


@pytest.fixture(scope="session")
def spec() -> Spec:
    """A spec that promises all questions of links, paths, names and clocks."""
    return promising(
        "{reachable: {networks: [fabric, management]}, names: {}, interfaces: {}, speed: {}, "
        "mtu: {}, clocks: {skew: 50 ms}, payload: {}}",
    )
