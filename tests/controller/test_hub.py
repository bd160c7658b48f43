"""The hub's loop, driven by the test: what delays it, and which nodes it calls lost."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_mnode.controller.agents import RunDirectories
from pytest_mnode.controller.hub import Hub
from pytest_mnode.controller.worlds import PoolFacts
from pytest_mnode.errors import (
    ClusterError,
    MnodeError,
    NodeLostError,
    RankError,
    TimeLimitError,
)
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.slurm.commands import SlurmError
from pytest_mnode.launchers.slurm.launcher import Slurm
from pytest_mnode.launchers.ssh import Ssh
from pytest_mnode.limits import Limits
from pytest_mnode.protocol.channel import LocalLine
from pytest_mnode.protocol.launcher_requests import (
    DescribeRun,
    LauncherRequest,
    LinkRates,
    PowerOff,
    PowerOn,
    SetLinkPresent,
    SetLinkRate,
    SetLinkUp,
    SetPairRate,
)
from pytest_mnode.protocol.messages import (
    BEAT,
    HUB,
    Answer,
    Call,
    Collect,
    Lease,
)

LIMIT_S = 30.0
SILENT_TURNS = 20
BOOT_TURNS = 310


class TwoMachines(Launcher):
    """Two machines whose agents send nothing by themselves; requests to it wait for `go`."""

    name = "ssh"
    shared_kernel = False
    python = "/opt/python"
    nodes: Sequence[Node] = (Node("n0", 0, "10.0.0.1"), Node("n1", 1, "10.0.0.2"))

    def __init__(self) -> None:
        self.go = threading.Event()
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        return [["cat"] for _ in nodes]

    def ask(self, request: LauncherRequest) -> Any:
        match request:
            case PowerOff() | Slow():
                return request.node if self.go.wait(LIMIT_S) else "nobody let it go on"
            case _:
                raise KeyError("n7")


@dataclass(frozen=True)
class Slow(LauncherRequest):
    node: str
    does: ClassVar[str] = "be slow"


@dataclass
class Switchboard:
    """Queues of messages to be read, and of sent messages."""

    queued: deque[tuple[str, str, bytes]] = field(default_factory=deque)
    sent: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=contextlib.nullcontext)
    path = token = ""

    def arrived(self) -> Iterator[tuple[str, str, bytes]]:
        while self.queued:
            yield self.queued.popleft()

    pipes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def take_machine(self, name: str, reads: int, writes: int, _: Any) -> None:
        self.pipes[name] = reads, writes

    def received(self, _: str) -> int:
        return 0

    def drop(self, name: str) -> None:
        for fd in self.pipes.pop(name, ()):
            os.close(fd)

    def send(self, destinations: Sequence[str], source: str, payload: bytes) -> None:
        sent = pickle.loads(payload) if payload != BEAT else None
        self.sent += [sent] * len(destinations)


@pytest.fixture
def launcher() -> TwoMachines:
    return TwoMachines()


def hub_of(launcher: Any, directory: Path) -> Hub:
    place = RunDirectories(str(directory), str(directory))
    facts = PoolFacts("gloo", 0, 1)
    switchboard: Any = Switchboard()
    return Hub(launcher, switchboard, facts, place)


@pytest.fixture
def hub(launcher: TwoMachines, tmp_path: Path) -> Iterator[Hub]:
    """A started hub that has messages from both agents."""
    made = hub_of(launcher, tmp_path)
    made.local_line("client/0").send(HUB, Call(0, "start"))
    beat(made)
    made.turn()
    yield made
    launcher.go.set()
    made.agents.close()


def beat(hub: Hub) -> None:
    """Queue a message from each agent."""
    queued: deque[tuple[str, str, bytes]] = hub.switchboard.queued  # type: ignore[attr-defined]
    queued += [(agent, HUB, BEAT) for agent in ("agent/0.0", "agent/1.0")]


def pass_time(hub: Hub, seconds: float) -> None:
    """Seconds since the hub last read its clock."""
    hub.agents.clock._read -= seconds


def answer(hub: Hub, line: LocalLine) -> Any:
    """The next message; turns the hub if needed."""
    for _ in range(int(LIMIT_S / 0.1)):
        hub.turn()
        if (message := line.receive(0.1)) is not None:
            return message
    raise AssertionError("no answer")


def refused(answer: Any) -> tuple[int, type, str]:
    return answer.seq, type(answer.value), str(answer.value)


def lost(hub: Hub) -> list[str]:
    return [name for name, state in hub.nodes.items() if state.lost]


def test_agents_and_nodes_end_with_the_hub(hub: Hub, launcher: TwoMachines) -> None:
    hub.close()
    assert list(hub.agents.ended()) == [0, 1]
    assert launcher.closed


def test_a_world_that_its_client_gives_back_is_ended(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[object] = []
    monkeypatch.setattr(hub.worlds, "close", lambda *args: given_back.append(args))
    world = "w1", False, False, False
    hub.local_line("client/1").send(HUB, Call(0, "close_world", world))
    hub.turn()
    assert given_back == [world]


def test_a_slow_launcher_call_does_not_delay_other_messages(
    hub: Hub, launcher: TwoMachines
) -> None:
    first, second = hub.local_line("client/1"), hub.local_line("client/2")
    first.send(HUB, Call(1, "ask_launcher", (Slow("n0"),)))
    second.send(HUB, Call(7, "ask_launcher", (Slow("n1"),)))
    first.send(HUB, Call(2, "ask_launcher", (DescribeRun(),)))
    described = answer(hub, first)
    assert (described.seq, described.value.nodes) == (2, launcher.nodes)
    for _ in range(SILENT_TURNS):
        pass_time(hub, 1.0)
        beat(hub)
        hub.turn()
    assert lost(hub) == []
    launcher.go.set()
    assert answer(hub, first) == Answer(1, "n0")
    assert answer(hub, second) == Answer(7, "n1")


def test_power_of_a_node_is_switched_in_the_order_of_the_calls(
    hub: Hub, launcher: TwoMachines
) -> None:
    """For example if Ctrl-C ends the wait for the first call, and the test's end boots the node."""
    line = hub.local_line("client/1")
    line.send(HUB, Call(1, "ask_launcher", (PowerOff("n0"),)))
    line.send(HUB, Call(2, "ask_launcher", (PowerOn("n0"),)))
    hub.turn()
    assert line.receive(0.5) is None
    launcher.go.set()
    assert [answer(hub, line).seq for _ in range(2)] == [1, 2]
    assert lost(hub) == []


def test_two_requests_to_boot_a_node_boot_it_once(hub: Hub) -> None:
    hub._node_lost("n1", "unplugged")
    lines = [hub.local_line(f"client/{number}") for number in (1, 2)]
    for line in lines:
        line.send(HUB, Call(1, "ask_launcher", (PowerOn("n1"),)))
    assert [answer(hub, line) for line in lines] == [Answer(1, None)] * 2
    assert hub.agents._agents[1].incarnation == 1


def test_an_error_in_a_launcher_call_affects_that_call_alone(hub: Hub) -> None:
    line = hub.local_line("client/1")
    line.send(HUB, Call(1, "ask_launcher", (LinkRates("n0", "fab0"),)))
    assert refused(answer(hub, line)) == (1, ClusterError, "KeyError: 'n7'")
    assert hub.leases.failure is None


@pytest.mark.parametrize("raises", [False, True])
def test_an_answer_that_cannot_be_sent_is_an_error_of_that_call_alone(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """A launcher may be of other people, and so its answers and errors."""
    lock = threading.Lock()

    def ask(_: LauncherRequest) -> Any:
        error = ClusterError("no power")
        error.lock = lock  # type: ignore[attr-defined]
        if raises:
            raise error
        return lock

    monkeypatch.setattr(hub.launcher, "ask", ask)
    line = hub.local_line("client/1")
    line.send(HUB, Call(1, "ask_launcher", (LinkRates("n0", "fab0"),)))
    seq, kind, text = refused(answer(hub, line))
    assert (seq, kind, hub.leases.failure) == (1, ClusterError, None)
    assert text == "no power" if raises else "cannot pickle '_thread.lock'" in text


def test_a_client_that_is_gone_gets_no_nodes(hub: Hub) -> None:
    """Its last request may be read after the news of its end."""
    for node, port in (("n0", 1), ("n1", 2)):
        hub.switchboard.queued.append(("", HUB, pickle.dumps(Call(0, "node_ready", (node, port)))))  # type: ignore[attr-defined]
    hub.local_line("client/0").send(HUB, Call(0, "forget", ("client/1",)))
    hub.local_line("client/1").send(HUB, Call(1, "lease", (2, False, "a test")))
    line = hub.local_line("client/2")
    line.send(HUB, Call(1, "lease", (2, False, "another test")))
    assert answer(hub, line).value.nodes == ("n0", "n1")


def test_no_world_is_opened_once_the_pool_has_failed(hub: Hub) -> None:
    line = hub.local_line("client/1")
    hub._fail(ClusterError("the agent ended"))
    line.send(HUB, Call(1, "open_world", (1, 1, False)))
    hub.turn()
    assert refused(line.receive(0.0)) == (1, ClusterError, "the agent ended")


@pytest.mark.parametrize(
    "error",
    [
        NodeLostError("n1", "n1 is lost"),
        SlurmError("scontrol", 1, "no"),
        RankError("2 of 4", {"node": "n1"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_reach_the_client_whole(error: MnodeError) -> None:
    """Their classes have constructors of their own."""
    got = pickle.loads(pickle.dumps(Answer(1, error))).value
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))


def test_a_request_that_meets_an_error_nobody_foresaw_is_refused_with_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("n7")

    monkeypatch.setattr(hub.leases, "_lease", fails)
    line = hub.local_line("client/1")
    line.send(HUB, Call(1, "lease", (1, False, "a test")))
    with pytest.raises(KeyError):
        hub.turn()
    assert refused(line.receive(0.0)) == (1, ClusterError, "KeyError: 'n7'")


@pytest.mark.parametrize(("error", "ends"), [(ClusterError("no"), False), (KeyError("n7"), True)])
def test_a_message_of_an_agent_that_cannot_be_served_ends_no_run(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, error: Exception, ends: bool
) -> None:
    """Errors that were foreseen; others are failures of the hub."""

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(hub.agents, "heard", fails)
    beat(hub)
    with pytest.raises(KeyError) if ends else contextlib.nullcontext():
        hub.turn()


def test_messages_that_arrive_while_the_hub_is_delayed_are_read_first(hub: Hub) -> None:
    for _ in range(14):
        pass_time(hub, 1.0)
        hub.turn()
    hub.soon(lambda: pass_time(hub, 1.0))
    hub.soon(lambda: beat(hub))
    hub.turn()
    assert lost(hub) == []


@pytest.mark.parametrize("stall_s", [16.0, 3600.0])
def test_time_in_which_the_hub_was_stopped_is_no_silence(hub: Hub, stall_s: float) -> None:
    for _ in range(3):
        pass_time(hub, stall_s)
        hub.turn()
        assert lost(hub) == []
        beat(hub)


def test_nodes_that_are_silent_while_the_hub_listens_are_lost(hub: Hub) -> None:
    for _ in range(SILENT_TURNS):
        pass_time(hub, 1.0)
        hub.switchboard.queued.append(  # type: ignore[attr-defined]
            ("agent/0.0", HUB, BEAT)
        )
        hub.turn()
    assert lost(hub) == ["n1"]
    assert hub.nodes["n1"].lost == "no message for 15 s"


def test_a_node_that_ended_is_lost_unless_its_launcher_soon_says_why(hub: Hub) -> None:
    for node in ("n0", "n1"):
        hub.switchboard.queued.append(  # type: ignore[attr-defined]
            ("", HUB, pickle.dumps(Call(0, "node_ready", (node, None))))
        )
    hub.turn()
    hub._node_lost("n1", "powered off")
    assert lost(hub) == ["n1"]
    pass_time(hub, 1.0)
    hub.turn()
    assert [state.lost for state in hub.nodes.values()] == ["its namespaces ended", "powered off"]


@pytest.mark.parametrize("agent", ["agent/0.0", ""], ids=["of its own", "of all nodes"])
def test_a_lost_node_is_not_back_by_what_its_agent_said_before(hub: Hub, agent: str) -> None:
    """A message may come late: once a network is back, or beside a node that is powered off."""
    hub._node_lost("n0", "powered off")
    ready = pickle.dumps(Call(0, "node_ready", ("n0", 4)))
    hub.switchboard.queued.append((agent, HUB, ready))  # type: ignore[attr-defined]
    hub.turn()
    assert [state.lost for state in hub.nodes.values()] == ["powered off", ""]


def test_an_agent_is_not_heard_once_another_is_in_its_place(hub: Hub) -> None:
    hub.agents.open_again(1)
    hub.nodes["n1"].mark_booting()
    queued: deque[tuple[str, str, bytes]] = hub.switchboard.queued  # type: ignore[attr-defined]
    ready = pickle.dumps(Call(0, "node_ready", ("n1", 4)))
    queued.append(("agent/1.0", HUB, ready))
    hub.turn()
    assert not hub.nodes["n1"].booted
    queued.append(("agent/1.1", HUB, ready))
    hub.turn()
    assert hub.nodes["n1"].booted


def test_power_is_switched_though_the_call_before_never_ends(
    hub: Hub, launcher: TwoMachines
) -> None:
    launcher.limits = Limits(start_s=0.02)
    line = hub.local_line("client/1")
    line.send(HUB, Call(1, "ask_launcher", (PowerOff("n0"),)))
    line.send(HUB, Call(2, "ask_launcher", (PowerOn("n0"),)))
    assert answer(hub, line) == Answer(2, None)


def torch_starts(hub: Hub) -> int:
    """Number of agents that got the order to import torch."""
    return sum(m == Call(0, "import_torch") for m in hub.switchboard.sent)  # type: ignore[attr-defined]


def test_other_machines_import_torch_when_a_world_is_wanted(hub: Hub) -> None:
    """A test in the controller gets its nodes before."""
    line = hub.local_line("client/1")
    line.send(HUB, Call(0, "collect", (collected(ranks=False),)))
    line.send(HUB, Call(1, "lease", (None, True, "a test", (), False)))
    granted = answer(hub, line)
    assert granted == Answer(1, Lease(1, ("n0", "n1")))
    for _ in range(BOOT_TURNS):
        pass_time(hub, 1.0)
        beat(hub)
        hub.turn()
    assert (hub.leases.failure, torch_starts(hub)) == (None, 0)
    line.send(HUB, Call(2, "open_world", (granted.value.id, 1, False)))
    hub.turn()
    assert torch_starts(hub) == 2
    assert line.receive(0) is None


@pytest.mark.parametrize("early", [False, True])
def test_tests_in_ranks_have_torch_imported_before_nodes_are_given(hub: Hub, early: bool) -> None:
    """early: once the tests are known; tests without ranks do not wait for it."""
    line, other = hub.local_line("client/1"), hub.local_line("client/2")
    line.send(HUB, Call(0, "collect", (collected(ranks=early),)))
    other.send(HUB, Call(1, "lease", (None, True, "a test in the controller", (), False)))
    granted = answer(hub, other)
    assert torch_starts(hub) == (2 if early else 0)
    other.send(HUB, Call(0, "release", (granted.value.id,)))
    line.send(HUB, Call(1, "lease", (None, True, "a test")))
    hub.turn()
    assert torch_starts(hub) == 2
    assert line.receive(0) is None
    queued: deque[tuple[str, str, bytes]] = hub.switchboard.queued  # type: ignore[attr-defined]
    queued += [("", HUB, pickle.dumps(Call(0, "node_ready", (name, 1)))) for name in ("n0", "n1")]
    assert answer(hub, line) == Answer(1, Lease(2, ("n0", "n1")))


def test_a_node_whose_ranks_never_come_is_named(hub: Hub) -> None:
    line = hub.local_line("client/1")
    line.send(HUB, Call(0, "collect", (collected(ranks=True),)))
    line.send(HUB, Call(1, "lease", (None, True, "a test")))
    hub.turn()
    for _ in range(BOOT_TURNS):
        pass_time(hub, 1.0)
        beat(hub)
        hub.turn()
    assert refused(answer(hub, line))[1:] == (
        TimeLimitError,
        "torch and the tests were not imported on n0, n1 within 300 s; "
        "--mnode-log-dir=DIR keeps their logs; raise --mnode-start-limit if their storage is slow",
    )


def collected(*, ranks: bool) -> Collect:
    return Collect((), frozenset(), {}, None, "/", "/", (), "", ranks=ranks)


REQUESTS: tuple[LauncherRequest, ...] = (
    PowerOff("n0"),
    PowerOn("n0"),
    LinkRates("n0", "fab0"),
    SetLinkRate("n0", "fab0", 50.0),
    SetPairRate("n0", "n1", "fab0", 50.0),
    SetLinkUp("n0", "fab0", up=False),
    SetLinkPresent("n0", "fab0", present=False),
)
OFFERED = {Local: (), Ssh: (PowerOff, PowerOn), Slurm: (PowerOff, PowerOn)}


@pytest.mark.parametrize(
    ("kind", "request_"),
    [(k, r) for k, some in OFFERED.items() for r in REQUESTS if not isinstance(r, some)],
    ids=lambda value: getattr(value, "name", type(value).__name__),
)
def test_unsupported_launcher_calls_have_an_error(
    kind: type[Launcher], request_: LauncherRequest
) -> None:
    with pytest.raises(ClusterError) as refused:
        kind.__new__(kind).ask(request_)
    assert str(refused.value) == (
        f"the {kind.name} launcher cannot {request_.does}; use --mnode-launcher=rack, which can"
    )
