"""Nodes without a launcher, for tests that say themselves how a command starts on each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence

from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.limits import Limits


class LoneNodes(Nodes):
    """Nodes of these names, whose commands get the environment of the test."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(_no_launcher, tuple(names))

    @property
    def limits(self) -> Limits:
        return Limits()

    @property
    def run_id(self) -> str:
        return tempfile.gettempdir()

    def env(
        self, env: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        return {**os.environ, **(defaults or {}), **(env or {})}


def _no_launcher(request: object) -> None:
    raise AssertionError(f"the launcher is not asked for {request}")
