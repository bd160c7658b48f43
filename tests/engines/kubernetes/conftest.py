"""All nodes are ready before each test, whatever the previous test did."""

from __future__ import annotations

import pytest

from tests.engines.kubernetes.bed import KubernetesOnRack


@pytest.fixture(autouse=True)
def _nodes_ready(request: pytest.FixtureRequest) -> None:
    if "bed" in request.fixturenames:
        bed: KubernetesOnRack = request.getfixturevalue("bed")
        bed.await_ready()
