"""The controller's side of a cleanup daemon that does not answer, or does not end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError, TimeLimitError
from pytest_mnode.launchers.cleanup import client
from pytest_mnode.launchers.cleanup.client import CleanupDaemon
from pytest_mnode.launchers.remote import bridge_client
from pytest_mnode.launchers.remote.bridge_client import BridgeClient
from tests.waiting import soon


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    with soon():
        yield


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[CleanupDaemon]:
    """A daemon that takes no order and does not end."""
    for limit in ("_CLOSE_S", "_KILL_S"):
        monkeypatch.setattr(client, limit, 0.2)
    monkeypatch.setattr(client, "_SEND_S", 1)
    made = CleanupDaemon(lambda _: None)
    pid = made.start([])
    os.kill(pid, signal.SIGSTOP)
    yield made
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_daemon_that_reads_no_orders_is_named(stopped: CleanupDaemon) -> None:
    def flood() -> None:
        for _ in range(100):  # far more than the socket holds
            stopped.order(remove=["x" * 10_000])

    with pytest.raises(ClusterError, match=rf"\(pid {stopped.pid}\) has read no order for 1 s"):
        flood()


def test_a_daemon_that_does_not_end_is_killed(stopped: CleanupDaemon) -> None:
    pid = stopped.pid
    assert pid is not None
    stopped.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_daemon_that_is_stopped_has_no_last_words(stopped: CleanupDaemon) -> None:
    assert stopped.last_words() == ""


class Stuck:
    """A process in state D: SIGKILL takes effect when the kernel lets it go, perhaps never."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid, self._process = process.pid, process

    def kill(self) -> None: ...

    def wait(self, limit_s: float) -> int:
        return self._process.wait(limit_s)


def test_a_daemon_that_outlives_sigkill_is_named(stopped: CleanupDaemon) -> None:
    real: Any = stopped._process
    stopped._process = Stuck(real)  # type: ignore[assignment]
    with pytest.raises(TimeLimitError, match=rf"\(pid {real.pid}\) still runs 0\.2 s after"):
        stopped.close()


def test_a_bridge_of_a_silent_daemon_is_given_up(
    stopped: CleanupDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_client, "_SLACK_S", 0.2)
    made = BridgeClient("/socket", lambda _: None)
    monkeypatch.setattr(made, "_daemon", stopped)
    with pytest.raises(ClusterError, match="not up in time"):
        made.start(["bridge"], 0.1, 0.1)
