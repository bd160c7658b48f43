"""The line below pytest's output, whose guard does not end."""

from __future__ import annotations

import os
import subprocess
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.controller import live_line
from pytest_mnode.controller.live_line import LiveLine


def test_a_guard_that_is_stopped_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_line, "_GUARD_END_S", 0.2)
    made: Any = LiveLine.__new__(LiveLine)
    made._capture, made._over = SimpleNamespace(suspend_global_capture=None), threading.Event()
    made._lock, made._shown, made._fd = threading.RLock(), "", os.dup(2)
    made._thread = threading.Thread(target=made._over.wait, args=(60,))
    made._thread.start()
    made._guard = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE)
    made.__exit__()
    assert made._guard.wait(0) == -9
