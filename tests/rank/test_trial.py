"""The trial import of a module in a separate process."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.rank import trial
from pytest_mnode.rank.trial import Trial


def tried(collect: Callable[[], list[object]], path: Path) -> str:
    lost: Any = lambda: ""  # noqa: E731
    options: Any = None
    module: Any = SimpleNamespace(collect=collect, path=path)
    return Trial(lost, options)._tried(module)


def test_daemons_of_an_import_end_with_the_trial(tmp_path: Path) -> None:
    noted = tmp_path / "pid"

    def collect() -> list[object]:
        if os.fork() == 0:
            os.setsid()
            if (pid := os.fork()) == 0:
                time.sleep(60)
            noted.write_text(str(pid))
            os._exit(0)
        while not noted.exists() or not noted.read_text():
            time.sleep(0.01)
        return []

    assert tried(collect, tmp_path) == ""
    assert not Path("/proc", noted.read_text()).exists()


def test_finalizers_of_an_import_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process goes on with what was made before, whose finalizers are its own."""
    monkeypatch.setattr(trial, "_FINALIZERS_S", 0.3)
    objects: list[set[int]] = [set(), set(), set()]
    weakref.finalize(objects[0], (tmp_path / "too early").touch)

    def collect() -> list[object]:
        weakref.finalize(objects[1], time.sleep, 60)
        weakref.finalize(objects[2], (tmp_path / "quick").touch)
        return []

    assert tried(collect, tmp_path) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["quick"]
