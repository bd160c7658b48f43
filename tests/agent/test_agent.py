"""The agent between a hub, a fork server and elastic launchers that the test plays."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.agent import agent as agent_module
from pytest_mnode.agent.agent import Agent
from pytest_mnode.protocol.channel import LocalLine, Pipe
from pytest_mnode.protocol.messages import (
    BEAT,
    AgentOrder,
    BindingOrder,
    Call,
    Collect,
    Collected,
    Launch,
    NodeEntry,
    PartLost,
    Shape,
    TakeStacks,
    WorldInfo,
)
from tests.inner import OWN_ADDRESSES

LIMIT_S = 20.0
FORK_SERVER_PID = 7
NODES = tuple(NodeEntry(name, "127.0.0.1", None) for name in ("n0", "n1"))
ORDER = AgentOrder(agent=0, run_dir="", log_dir="", nodes=NODES)
WORLD = WorldInfo("w1", Shape(2, 1), ("n0", "n1"))


def launch(node_rank: int) -> Launch:
    return Launch(
        f"n{node_rank}", WORLD, node_rank, "127.0.0.1", 1, "gloo", 0, {}, BindingOrder("auto")
    )


class World:
    """An agent whose loop the test turns, with all its peers."""

    def __init__(self, order: AgentOrder = ORDER) -> None:
        self.line = LocalLine(lambda _, payload: self.heard.append(payload))
        self.heard: deque[bytes] = deque()
        """What the hub has received and the test has not taken."""
        ours, self.fork_server = Pipe.pair()
        self.agent = Agent(order, self.line, ours, FORK_SERVER_PID, input_fd=0)
        self.launchers: dict[str, Pipe] = {}

    def turn_until(self, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + LIMIT_S
        while not (found := condition()):
            assert time.monotonic() < end
            assert self.agent.turn()
        return found

    def pass_over_messages(self) -> None:
        while self.message():
            pass

    def message(self) -> Any:
        """The next message to the hub that is not a heartbeat."""
        while self.heard:
            payload = self.heard.popleft()
            if payload != BEAT and (message := pickle.loads(payload)) != Collected():
                return message
        return None

    def next_message(self) -> Any:
        return self.turn_until(self.message)

    def order(self, message: Any) -> None:
        self.line.received += 1
        self.line.put(message if isinstance(message, bytes) else pickle.dumps(message))

    def to_fork_server(self) -> list[Any]:
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(self.fork_server.fileno(), False)
            return [pickle.loads(payload) for payload in self.fork_server.receive()]
        return []

    def has_launched(self, node_rank: int) -> None:
        """A part of the world, whose elastic launcher the test plays."""
        self.order(launch(node_rank))
        [request] = self.turn_until(self.to_fork_server)
        assert isinstance(request, Launch)
        self.launchers[request.node] = Pipe.from_fd(self.fork_server.fds.popleft())

    def close(self) -> None:
        ends = [part.pipe for part in (*self.agent.parts.values(), *self.agent.ending)]
        for end in (*ends, *self.launchers.values(), self.fork_server, self.agent.fork_server):
            end.close()
        for store in self.agent._stores.values():
            store.close()
        self.line.close()


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An agent with both nodes ready, which reaps no process of the test; its input stays open."""
    monkeypatch.setattr(agent_module, "BEAT_S", 0.02)
    monkeypatch.setattr(processes, "reap", lambda: [(FORK_SERVER_PID, signal.SIGKILL)])
    read, write = os.pipe()
    stdin = os.dup(0)
    os.dup2(read, 0)
    made = World()
    try:
        made.fork_server.send(Collected())
        ready = [made.next_message() for _ in NODES]
        assert [message.args[0] for message in ready] == ["n0", "n1"]
        yield made
    finally:
        made.close()
        os.dup2(stdin, 0)
        for fd in (read, write, stdin):
            os.close(fd)


def test_orders_for_ranks_wait_in_the_fork_server(around: World) -> None:
    collect = Collect((), frozenset(), {}, None, "", "", (), "")
    around.order(BEAT)
    around.order(Call(0, "import_torch"))
    around.order(collect)
    got: list[Any] = []
    while len(got) < 2:
        got += around.turn_until(around.to_fork_server)
    assert got == [Call(0, "import_torch"), collect]


def test_the_first_node_gets_its_store_and_offers_another(around: World) -> None:
    before = around.agent._stores["n0"].getsockname()
    around.has_launched(0)
    store = socket.socket(fileno=around.fork_server.fds.popleft())
    assert store.getsockname() == before
    ready = around.next_message()
    assert (ready.method, ready.args[0]) == ("node_ready", "n0")
    assert ready.args[1] == around.agent._stores["n0"].getsockname()[1] != before[1]
    store.close()


WHOLE_MESSAGE = pickle.dumps(Call(1, "body_done", (0, ())))


@pytest.mark.parametrize(
    "last_words",
    [b"", b"\0\0\0\x99half of it", len(WHOLE_MESSAGE).to_bytes(4, "big") + WHOLE_MESSAGE],
    ids=["between messages", "within a message", "behind a message"],
)
def test_an_elastic_launcher_that_dies_costs_its_node_only(
    around: World, last_words: bytes
) -> None:
    """Its socket is closed with an order unread, which resets its connection."""
    for node_rank in (1, 0):
        around.has_launched(node_rank)
    around.fork_server.send(
        Call(0, "forked", ("n1", "w1", 2**22))
    )  # no process has such a large pid
    around.order(TakeStacks("n1", "w1"))
    around.pass_over_messages()
    end = around.launchers.pop("n1")
    os.write(end.fileno(), last_words)
    end.close()
    around.order(TakeStacks("n1", "w1"))
    around.order(Call(0, "stop_world", ("n9", "w1")))
    around.launchers["n0"].send(Call(1, "body_done", (1, ())))
    messages = [around.next_message() for _ in range(3 if WHOLE_MESSAGE in last_words else 2)]
    assert [m for m in messages if isinstance(m, PartLost)] == [
        PartLost("n1", "w1", "the elastic launcher of this node ended")
    ]
    assert Call(1, "body_done", (1, ())) in messages
    assert set(around.agent.parts) == {("n0", "w1")}


def test_a_launcher_that_stops_within_a_message_delays_no_other(around: World) -> None:
    for node_rank in (1, 0):
        around.has_launched(node_rank)
    around.pass_over_messages()
    os.write(around.launchers["n1"].fileno(), b"\0\0\xff\xff" + b"x" * 1000)
    around.launchers["n0"].send(Call(1, "body_done", (0, ())))
    assert around.next_message() == Call(1, "body_done", (0, ()))
    for _ in range(30):  # more than the socket of a peer that does not read can hold
        for _ in range(100):
            around.order(TakeStacks("n1", "w1"))
        around.agent.turn()
    assert not around.agent.parts["n1", "w1"].pipe.has_room()
    around.order(TakeStacks("n0", "w1"))
    os.set_blocking(around.launchers["n0"].fileno(), False)

    def asked() -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            return around.launchers["n0"].receive()
        return []

    assert pickle.loads(around.turn_until(asked)[0]) == TakeStacks("n0", "w1")
    os.write(around.launchers["n1"].fileno(), b"x" * (0xFFFF - 1000))


TREE = """
import os, subprocess, sys, time
from pytest_mnode import processes
processes.adopt_orphans()
if os.fork() == 0:  # a rank, whose own child outlives it
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    print(flush=True)
    time.sleep(60)
time.sleep(60)
"""


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    """An elastic launcher with one rank, which has a child."""
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made


def test_a_part_is_ended_with_processes_orphaned_meanwhile(
    around: World, tree: subprocess.Popen[bytes]
) -> None:
    around.has_launched(1)
    below = processes.descendants(tree.pid)
    assert len(below) == 2
    around.order(Call(0, "stop_world", ("n1", "w1")))
    around.turn_until(lambda: around.agent.ending)
    around.fork_server.send(Call(0, "forked", ("n1", "w1", tree.pid)))
    around.turn_until(lambda: not around.agent.ending)
    assert tree.wait(LIMIT_S) == -signal.SIGKILL
    assert all(map(processes.has_ended, below))


def test_what_a_launcher_that_ended_leaves_is_ended(
    around: World, tree: subprocess.Popen[bytes]
) -> None:
    """The launcher may be killed, and its ranks may have left processes."""
    around.has_launched(1)
    around.fork_server.send(Call(0, "forked", ("n1", "w1", tree.pid)))
    around.turn_until(lambda: around.agent.parts["n1", "w1"].pid)
    around.launchers["n1"].close()
    assert isinstance(around.next_message(), PartLost)
    around.turn_until(lambda: tree.poll() is not None)


def test_a_part_whose_fork_is_never_reported_is_given_up(
    around: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "LIMIT_S", 0.1)
    around.has_launched(1)
    around.order(Call(0, "stop_world", ("n1", "w1")))
    around.turn_until(lambda: around.agent.ending)
    around.turn_until(lambda: not around.agent.ending)


@pytest.mark.parametrize("asked", [False, True])
def test_how_the_fork_server_failed_or_ended_is_reported(around: World, asked: bool) -> None:
    around.fork_server.send(Collected(failure="no torch"))
    assert around.next_message() == Collected(failure="no torch")
    if asked:  # for ranks; the agent reads this before the end of the fork server
        around.order(launch(1))
    around.fork_server.close()
    around.agent._reap()
    failed = around.next_message()
    assert failed.failure == "the process that imports torch and the tests was killed by SIGKILL"


def test_the_status_of_the_fork_server_is_not_awaited_for_long(
    around: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stopped, or wait in the kernel."""
    monkeypatch.setattr(agent_module, "_STATUS_S", 0.1)
    monkeypatch.setattr(processes, "reap", list)
    around.fork_server.close()
    failed = around.next_message()
    assert failed.failure == "the process that imports torch and the tests ended"


def test_finalizers_of_modules_are_awaited(around: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reaped = iter(([], [(FORK_SERVER_PID, 0)]))
    monkeypatch.setattr(processes, "reap", lambda: next(reaped))
    around.agent.end_fork_server()
    assert list(reaped) == []


def test_a_fork_server_whose_finalizers_hang_is_not_awaited_for_long(
    around: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_FINALIZERS_S", 0.1)
    monkeypatch.setattr(processes, "reap", list)
    around.agent.end_fork_server()
    with pytest.raises(EOFError):
        around.fork_server.receive()


def test_silence_of_the_hub_ends_an_agent_on_another_machine(
    around: World, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(seconds=100.0)
    around.agent._clock = SimpleNamespace(now=lambda: clock.seconds)  # type: ignore[assignment]
    around.agent.order = AgentOrder(0, "", "", remote=True)
    assert around.agent.turn(), "the agent has no message from the hub yet, and waits"
    around.order(BEAT)
    around.turn_until(lambda: around.agent._heard)
    clock.seconds += around.agent.order.silence_s
    assert around.agent.turn()
    clock.seconds += 0.1
    around.order(BEAT)
    assert around.agent.turn(), "messages are read before silence is judged"
    clock.seconds += around.agent.order.silence_s + 0.1
    assert not around.agent.turn()
    assert "no message from the controller for 15 s" in capfd.readouterr().err


def test_a_turn_waits_for_an_event_until_the_next_beat(
    around: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_ms: list[int] = []

    def poll(wait_ms: int) -> list[tuple[int, int]]:
        waits_ms.append(wait_ms)
        return []

    monkeypatch.setattr(around.agent, "_poll", SimpleNamespace(poll=poll))
    around.agent._next_beat = time.monotonic() + 100
    assert around.agent.turn()
    monkeypatch.setattr(agent_module, "BEAT_S", 0.0)
    around.agent._next_beat = 0.0
    assert around.agent.turn()
    assert waits_ms == [pytest.approx(100_000, abs=9_000), 1]


def test_the_end_of_its_input_ends_the_agent(around: World) -> None:
    read, write = os.pipe()
    os.dup2(read, 0)
    threading.Timer(0.05, os.close, [write]).start()
    while around.agent.turn():
        pass
    os.close(read)


def test_what_follows_the_order_stays_for_the_hubs_connection(around: World) -> None:
    read, write = os.pipe()
    os.dup2(read, 0)
    os.write(write, b"the order\nthe first message")
    assert agent_module._first_line() == "the order\n"
    assert os.read(0, 100) == b"the first message"
    os.close(write)
    assert agent_module._first_line() == ""
    os.close(read)


LIGHT = """
import sys
import pytest_mnode.agent.agent, pytest_mnode.agent.fork_server
print([name for name in ("torch", "numpy", "pytest", "pydantic", "zmq") if name in sys.modules])
"""


def test_the_agent_imports_no_torch() -> None:
    """Its node may have no torch that can be imported, and can still be certified."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("address", [*OWN_ADDRESSES, "192.0.2.1"])
def test_a_node_listens_at_its_address_or_reports_the_reason(around: World, address: str) -> None:
    around.agent._offer(NodeEntry("n0", address, None))
    message = around.next_message()
    if address != "192.0.2.1":
        assert message.method == "node_ready"
    else:
        assert isinstance(message, Collected)
        assert message.failure.startswith("n0 cannot listen at its address 192.0.2.1: ")
