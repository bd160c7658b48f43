"""How long the cleanup daemon waits for an event."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from pytest_mnode.launchers.cleanup.daemon import IDLE_S, Daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """Without handlers of signals in this process."""
    made = object.__new__(Daemon)
    made.channel, other = socket.socketpair()
    made.wake, write = os.pipe()
    made.terminated = False
    yield made
    for end in (made.channel, other):
        end.close()
    for fd in (made.wake, write):
        os.close(fd)


@pytest.mark.parametrize(
    ("busy", "wait_ms"),
    [([False], IDLE_S * 1000), ([False, True], 20), ([True, False], 20)],
)
def test_a_daemon_with_a_busy_task_looks_often(
    busy: list[bool], wait_ms: float, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        daemon.terminated = True

    poll = Mock(**{"poll.return_value": []})
    monkeypatch.setattr(select, "poll", lambda: poll)
    tasks = [Mock(busy=one, descriptors=list, turn=Mock(side_effect=end)) for one in busy]
    daemon.tasks = {str(number): task for number, task in enumerate(tasks)}
    daemon.serve(None)
    poll.poll.assert_called_once_with(wait_ms)
    for task in tasks:
        task.turn.assert_called_once_with()
