"""Messages to the fork server before it imports torch and after its collector died."""

from __future__ import annotations

import inspect
import os
import pickle
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


def test_a_collector_gets_a_request_for_ranks_with_its_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, of_collector = Pipe.pair()
    given, other = os.pipe()
    server = ForkServer(AgentOrder(0, "", ""), Pipe.pair()[0])
    monkeypatch.setattr(server, "_collector", ours)
    monkeypatch.setattr(fork_server, "take_fds", lambda *_: [given, None])
    message: Any = SimpleNamespace(own_imports=False)
    server._launch(message, own=lambda *_: None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given)
    assert [pickle.loads(one) for one in of_collector.receive()] == [message]
    [taken] = of_collector.fds
    os.write(other, b"x")
    assert os.read(taken, 1) == b"x"
    os.close(other)
    for pipe in (ours, of_collector, server.agent):
        pipe.close()


def test_ranks_that_import_for_themselves_hold_no_pipe_of_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, theirs = Pipe.pair()
    collector, of_collector = Pipe.pair()
    forked: list[Any] = []

    def fork(*_: object) -> Call:
        forked.append(_[-1])
        return Call(0, "forked", ("n0", "w1", 7))

    monkeypatch.setattr(fork_server, "fork_launcher", fork)
    server = ForkServer(AgentOrder(0, "", ""), theirs)
    message: Any = SimpleNamespace(own_imports=True)
    for has in (None, collector):
        monkeypatch.setattr(server, "_collector", has)
        server._launch(message, own=lambda *_: None)
    assert forked == [[], [collector]]
    assert [pickle.loads(one).args[2] for one in agent.receive()] == [7, 7]
    for pipe in (agent, theirs, collector, of_collector):
        pipe.close()


def test_files_of_modules_are_noted_before_the_next_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("modulesbyfile", "_filesbymodname"):
        monkeypatch.setattr(inspect, name, {})
    assert next(fork_server.prepared_step_by_step())
    assert fork_server.__name__ in vars(inspect)["modulesbyfile"].values()
