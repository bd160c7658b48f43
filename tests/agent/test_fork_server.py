"""Messages to the fork server before it imports torch and after its collector died."""

from __future__ import annotations

import inspect
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.agent import fork_server
from pytest_mnode.agent.fork_server import ForkServer
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import AgentOrder, Call, Collect

MESSAGES = (Call(0, "import_torch"), Collect((), frozenset(), {}, None, "/", "/", (), "/tmp"))


@pytest.mark.parametrize("sent", list(permutations(MESSAGES)))
def test_any_first_message_is_handled(sent: tuple[object, ...]) -> None:
    """A run that queries its launcher first sends Collect before it requests ranks."""
    agent, theirs = Pipe.pair()
    server = ForkServer(AgentOrder(0, "", ""), theirs)
    for message in sent:
        agent.send(message)
    agent.close()  # a dropped message ends the wait by EOFError
    assert server.wait_for(Call) == MESSAGES[0]
    assert server.wait_for(Collect) == MESSAGES[1]
    theirs.close()


def test_ranks_requested_after_the_collector_died_do_not_end_the_fork_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector's exit status arrives a moment later."""
    agent, theirs = Pipe.pair()
    collector, of_collector = Pipe.pair()
    of_collector.close()
    server = ForkServer(AgentOrder(0, "", ""), theirs)
    monkeypatch.setattr(server, "_collector", collector)
    monkeypatch.setattr("pytest_mnode.agent.fork_server.take_fds", lambda *_: [])
    message: Any = SimpleNamespace(own_imports=False)
    server._launch(message, own=lambda *_: None)
    for pipe in (agent, theirs, collector):
        pipe.close()


def test_files_of_modules_are_noted_before_the_next_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("modulesbyfile", "_filesbymodname"):
        monkeypatch.setattr(inspect, name, {})
    assert next(fork_server.prepared_step_by_step())
    assert fork_server.__name__ in vars(inspect)["modulesbyfile"].values()
