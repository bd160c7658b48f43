"""What the fork server does before it imports torch."""

from __future__ import annotations

from itertools import permutations

import pytest

from pytest_mnode.agent.fork_server import ForkServer
from pytest_mnode.agent.pipe import Pipe
from pytest_mnode.protocol.agent_messages import AgentOrder, StartForkServer
from pytest_mnode.protocol.hub_messages import Collect

MESSAGES = (StartForkServer(), Collect((), frozenset(), {}, None, "/", "/", (), "/tmp"))


@pytest.mark.parametrize("sent", list(permutations(MESSAGES)))
def test_it_starts_whatever_is_sent_first(sent: tuple[object, ...]) -> None:
    """A run that asks its launcher something first sends Collect before it wants ranks."""
    agent, theirs = Pipe.pair()
    server = ForkServer(AgentOrder(0, "", {}, "", ""), theirs)
    for message in sent:
        agent.send(message)
    agent.close()  # a message that was dropped ends the wait by EOFError
    assert server.wait_for(StartForkServer) == MESSAGES[0]
    assert server.wait_for(Collect) == MESSAGES[1]
    theirs.close()
