"""Common fixtures of this folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.remote.proxies import REMOTE_END, Way, proxy_command


@pytest.fixture
def way(tmp_path_factory: pytest.TempPathFactory) -> Way:
    """way(argv, shell=…): the local command that runs argv at the remote end.

    own: variables of the remote end, "NAME=VALUE". Other settings: see bootstrap.config.
    """
    directory: Path = tmp_path_factory.mktemp("way")

    def way(
        argv: list[str], shell: str = "", own: Sequence[str] = (), **settings: Any
    ) -> list[str]:
        shell = shell or f"echo Welcome; {shlex.join(REMOTE_END)}; exit $?"
        there = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", *own, "sh", "-c", shell]
        return proxy_command(directory, there, argv, **settings)

    return way
