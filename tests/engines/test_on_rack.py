"""Engines on a rack leave nothing, even if their process is killed."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from tests.engines.on_rack import remove_abandoned


def test_leftovers_of_an_interrupted_run_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = time.time() - 3600
    for name in ("left", "used", "new", "other"):
        (tmp_path / f"mnode-k8s-{name}").mkdir()
        (tmp_path / f"mnode-k8s-{name}" / ("lock" if name != "other" else "file")).touch()
    for name in ("left", "used", "other"):
        os.utime(tmp_path / f"mnode-k8s-{name}", (old, old))
    with (tmp_path / "mnode-k8s-used" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_abandoned("mnode-k8s-")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"mnode-k8s-new", "mnode-k8s-other", "mnode-k8s-used"}
