"""Processes below a relay that end: what is lost with them, and that nothing else is."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_mnode.agent.agent import Agent, _Running
from pytest_mnode.agent.fork_server import Forge
from pytest_mnode.protocol.messages import (
    AgentLost,
    BindingOrder,
    GateOrder,
    Launch,
    NodeEntry,
    PartLost,
    Pong,
    Shape,
    StopWorld,
    TakeStacks,
    WorldInfo,
)

ORDER = GateOrder(gate=0, endpoint="", keys={}, run_dir="", log_dir="")
WORLD = WorldInfo("w1", Shape(2, 1), ("n0", "n1"))
LAUNCH = Launch("n0", WORLD, 0, "127.0.0.1", 1, "gloo", 0, {}, BindingOrder("auto"))
ORDERS = {
    "none": (),
    "launch": (LAUNCH,),
    "stop": (StopWorld("n0", "w1"),),
    "stop, stacks and launch": (StopWorld("n0", "w1"), TakeStacks("n0", "w1"), LAUNCH),
}


def between_messages(end: Connection) -> None:
    """Its end is closed, and nothing of it is left to be read."""
    end.close()


def behind_a_message(end: Connection) -> None:
    end.send_bytes(pickle.dumps(Pong(0, 1)))
    end.close()


def within_a_message(end: Connection) -> None:
    with socket.socket(fileno=end.fileno()) as raw:  # closes it
        raw.send(struct.pack("!i", 1000) + b"half of it")
    end._handle = None  # type: ignore[attr-defined]


def with_an_order_unread(end: Connection) -> None:
    """A socket closed with unread data resets its connection."""
    assert end.poll(0)
    end.close()


DEATHS = (between_messages, behind_a_message, within_a_message, with_an_order_unread)


@pytest.fixture
def pipes() -> Iterator[list[tuple[Connection, Connection]]]:
    """(ours, theirs): to the gate, and to the agents of n0 and n1."""
    made = [Pipe() for _ in range(3)]
    yield made
    for end in (end for pair in made for end in pair):
        end.close()


def read(end: Connection) -> list[Any]:
    found = []
    while end.poll(0):
        found.append(pickle.loads(end.recv_bytes()))
    return found


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize("orders", ORDERS)
def test_an_agent_that_dies_costs_its_node_only(
    pipes: list[tuple[Connection, Connection]], orders: str, dies: Any
) -> None:
    (gate, hub), (first, its), (second, other) = pipes
    forge = Forge(ORDER, gate)
    forge.agents = {"n0": first, "n1": second}
    if dies is with_an_order_unread:
        first.send_bytes(b"an order")
    dies(its)
    for order in ORDERS[orders]:
        hub.send_bytes(pickle.dumps(order))
    other.send_bytes(pickle.dumps(Pong(1, 1)))
    told = []
    for _ in range(len(ORDERS[orders]) + 2):
        hub.send_bytes(pickle.dumps(StopWorld("n1", "w0")))  # there is always something to do
        forge.turn()
        told += read(hub)
    lost = [message for message in told if isinstance(message, AgentLost)]
    assert lost == [AgentLost("n0")]
    assert Pong(1, 1) in told
    assert set(forge.agents) == {"n1"}
    assert read(other)[0] == StopWorld("n1", "w0")
    hub.send_bytes(pickle.dumps(LAUNCH))
    while not (told := read(hub)):
        forge.turn()
    assert told == [PartLost("n0", "w1", "its agent has ended")]


@pytest.mark.parametrize("dies", [between_messages, within_a_message])
def test_an_elastic_launcher_that_dies_costs_its_world_only(
    pipes: list[tuple[Connection, Connection]], dies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (forge, hub), (ours, elastic), _ = pipes
    agent = Agent(ORDER, NodeEntry("n0", 0, "127.0.0.1", None, None), forge, cast("Any", None))
    stopped: list[str] = []
    monkeypatch.setattr(agent, "_stop", stopped.append)
    agent.worlds["w1"] = _Running(LAUNCH, 0, ours)
    dies(elastic)
    agent._from_elastic(ours)
    agent.store.close()
    assert stopped == ["w1"]
    assert read(hub) == [PartLost("n0", "w1", "the elastic launcher of this node ended")]


def test_a_rank_that_died_meanwhile_has_no_c_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pid is forgotten with its death; that must not end the agent."""
    monkeypatch.setattr("pytest_mnode.agent.agent.native_frames", lambda pid: f"C stack of {pid}")
    running = SimpleNamespace(launch=LAUNCH, pids={1: 41})
    node: Any = SimpleNamespace(worlds={"w1": running})
    assert Agent._native(node, "w1", (0, 1)) == {1: "C stack of 41"}
    assert Agent._native(node, "w2", (0,)) == {}
