"""Common fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launchers.remote.proxies import Way


@pytest.fixture
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    made = Way(tmp_path_factory.mktemp("way"))
    yield made
    made.close()
