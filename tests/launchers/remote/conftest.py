"""Common fixtures of this folder."""

from __future__ import annotations

import shlex
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mnode.launchers.remote import bootstrap, remote_proxy
from tests.launchers.remote.proxies import Way


@pytest.fixture
def way(tmp_path: Path) -> Way:
    """way(argv, shell=…): the local command that runs argv at the remote end.

    own: variables of the remote end, "NAME=VALUE". daemon, limits: see bootstrap.config.
    """

    def way(
        argv: list[str],
        shell: str = "",
        daemon: int | None = None,
        own: Sequence[str] = (),
        **limits: float,
    ) -> list[str]:
        far_end = shlex.join([sys.executable, "-I", "-S", "-c", bootstrap.BOOTSTRAP])
        there = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", *own]
        command = [*there, "sh", "-c", shell or f"echo Welcome; {far_end}; exit $?"]
        config = tmp_path / f"{uuid.uuid4().hex}.json"
        config.write_text(bootstrap.config(daemon, {"n1": command}, "", **limits))
        python = [sys.executable, "-S", "-E", "-s", str(Path(remote_proxy.__file__))]
        return [*python, str(config), "n1", *argv]

    return way
