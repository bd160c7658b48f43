"""The hub's own loop, turned by hand: what holds it up, and whom it calls lost."""

from __future__ import annotations

import pickle
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode import errors
from pytest_mnode.controller.hub import Hub
from pytest_mnode.controller.supervisors import Place
from pytest_mnode.controller.worlds import PoolFacts
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import CALLS, Launcher, Node
from pytest_mnode.launchers.rack.launcher import Rack
from pytest_mnode.launchers.slurm.launcher import Slurm
from pytest_mnode.launchers.ssh import Ssh
from pytest_mnode.protocol.channel import Keys, LocalLine
from pytest_mnode.protocol.messages import HUB, Answer, AskLauncher, GateAlive, Refused, StartPool

LIMIT_S = 30.0
SILENT_TURNS = 20


class Elsewhere:
    """Two machines, whose gates say nothing by themselves; what is asked of it waits for `go`."""

    name = "ssh"
    shared_kernel = False
    python = "/opt/python"
    shared_dir: Path | None = None
    nodes: Sequence[Node] = (Node("n0", 0, "10.0.0.1"), Node("n1", 1, "10.0.0.2"))

    def __init__(self) -> None:
        self.go = threading.Event()

    def watch(self, on_lost: Any) -> None: ...

    def doorway(self, node: Node) -> None: ...

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        return [["cat"] for _ in nodes]

    def slow(self, node: Node) -> str:
        return node.name if self.go.wait(LIMIT_S) else "nobody let it go on"

    def power_off(self, node: Node) -> None:
        self.slow(node)

    def breaks(self) -> None:
        raise KeyError("n7")


@dataclass
class Switchboard:
    """Messages that wait to be read; what is sent goes nowhere."""

    queued: deque[tuple[str, str, bytes]] = field(default_factory=deque)

    def receive(self) -> tuple[str, str, bytes] | None:
        return self.queued.popleft() if self.queued else None

    def send(self, destination: str, source: str, payload: bytes) -> None: ...


@pytest.fixture
def launcher() -> Elsewhere:
    return Elsewhere()


def hub_of(launcher: Any, directory: Path) -> Hub:
    place = Place("", {"n0": "tcp://a:1", "n1": "tcp://b:1"}, str(directory), str(directory))
    facts = PoolFacts("gloo", 0, str(directory), 1)
    switchboard: Any = Switchboard()
    return Hub(launcher, switchboard, Keys("a", "b", "c"), facts, place)


@pytest.fixture
def hub(launcher: Elsewhere, tmp_path: Path) -> Iterator[Hub]:
    """Started, and it has heard of both gates."""
    made = hub_of(launcher, tmp_path)
    made.local_line("client/0").send(HUB, StartPool())
    beat(made)
    made.turn()
    yield made
    launcher.go.set()
    made.gates.close()


def beat(hub: Hub) -> None:
    """A word of each gate, to be read."""
    queued: deque[tuple[str, str, bytes]] = hub.switchboard.queued  # type: ignore[attr-defined]
    queued += [("", HUB, pickle.dumps(GateAlive(gate))) for gate in (0, 1)]


def pass_time(hub: Hub, seconds: float) -> None:
    """Since the hub last looked at its clock."""
    hub.gates.clock._read -= seconds


def answer(hub: Hub, line: LocalLine) -> Any:
    """The next message, for which the hub may have to turn again."""
    for _ in range(int(LIMIT_S / 0.1)):
        hub.turn()
        if (message := line.receive(0.1)) is not None:
            return message
    raise AssertionError("no answer")


def lost(hub: Hub) -> list[str]:
    return [name for name, state in hub.nodes.items() if state.lost]


def test_a_call_of_the_launcher_holds_up_nobody(hub: Hub, launcher: Elsewhere) -> None:
    first, second = hub.local_line("client/1"), hub.local_line("client/2")
    first.send(HUB, AskLauncher(1, "slow", ("n0",)))
    second.send(HUB, AskLauncher(7, "slow", ("n1",)))
    first.send(HUB, AskLauncher(2, "address_of", ("n1",)))
    assert answer(hub, first) == Answer(2, "10.0.0.2")
    for _ in range(SILENT_TURNS):
        pass_time(hub, 1.0)
        beat(hub)
        hub.turn()
    assert lost(hub) == []
    launcher.go.set()
    assert answer(hub, first) == Answer(1, "n0")
    assert answer(hub, second) == Answer(7, "n1")


def test_power_of_a_node_is_switched_in_the_order_of_the_calls(
    hub: Hub, launcher: Elsewhere
) -> None:
    """As where Ctrl-C ends the wait for the first, and the test's end has the node booted."""
    line = hub.local_line("client/1")
    line.send(HUB, AskLauncher(1, "power_off", ("n0",)))
    line.send(HUB, AskLauncher(2, "power_on", ("n0",)))
    hub.turn()
    assert line.receive(0.5) is None
    launcher.go.set()
    assert [answer(hub, line).seq for _ in range(2)] == [1, 2]
    assert lost(hub) == []


def test_a_node_that_two_clients_have_booted_is_booted_once(hub: Hub) -> None:
    hub._node_lost("n1", "unplugged")
    lines = [hub.local_line(f"client/{number}") for number in (1, 2)]
    for line in lines:
        line.send(HUB, AskLauncher(1, "power_on", ("n1",)))
    assert [answer(hub, line) for line in lines] == [Answer(1, None)] * 2
    assert hub.gates._gates[1].life == 1


def test_an_error_in_a_launcher_is_the_answer_of_that_call_alone(hub: Hub) -> None:
    line = hub.local_line("client/1")
    line.send(HUB, AskLauncher(1, "breaks", ()))
    assert answer(hub, line) == Refused(1, "ClusterError", "KeyError: 'n7'")
    assert hub.failure is None


def test_what_comes_while_the_hub_is_held_up_is_read_before_it_judges(hub: Hub) -> None:
    for _ in range(14):
        pass_time(hub, 1.0)
        hub.turn()
    hub.soon(lambda: pass_time(hub, 1.0))
    hub.soon(lambda: beat(hub))
    hub.turn()
    assert lost(hub) == []


@pytest.mark.parametrize("stall_s", [16.0, 3600.0])
def test_time_in_which_the_hub_stood_still_is_no_silence(hub: Hub, stall_s: float) -> None:
    for _ in range(3):
        pass_time(hub, stall_s)
        hub.turn()
        assert lost(hub) == []
        beat(hub)


def test_nodes_that_are_silent_while_the_hub_listens_are_lost(hub: Hub) -> None:
    for _ in range(SILENT_TURNS):
        pass_time(hub, 1.0)
        hub.switchboard.queued.append(  # type: ignore[attr-defined]
            ("", HUB, pickle.dumps(GateAlive(0)))
        )
        hub.turn()
    assert lost(hub) == ["n1"]
    assert hub.nodes["n1"].lost == "nothing heard of it for 15 s"


LAUNCHERS: tuple[type[Launcher], ...] = (Local, Rack, Ssh, Slurm)


def test_every_method_that_is_asked_for_is_described() -> None:
    """What the hub knows by itself is not asked of a launcher."""
    package = Path(errors.__file__).parent
    asked = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(r"\b(?:_ask|ask_launcher)\(\s*\"(\w+)\"", path.read_text())
    }
    assert len(asked) > 10
    known = {"node_names", "address_of", "interface_of", *hub_of(Local(1), package)._facts()}
    assert asked - known <= set(CALLS)


@pytest.mark.parametrize(
    ("kind", "method"),
    [(kind, method) for kind in LAUNCHERS for method in CALLS if not hasattr(kind, method)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_what_a_launcher_lacks_is_said_in_words(
    kind: type[Launcher], method: str, tmp_path: Path
) -> None:
    has = {name: print for name in CALLS if hasattr(kind, name)}
    launcher = {"name": kind.name, "shared_kernel": kind.shared_kernel, "shared_dir": None}
    hub = hub_of(SimpleNamespace(**launcher, python="", **has), tmp_path)
    hub._begun = True
    line = hub.local_line("client/1")
    line.send(HUB, AskLauncher(1, method, ()))
    refused = answer(hub, line)
    assert refused.kind == "ClusterError"
    other = "slurm" if method == "slurm_names" else "rack"
    assert refused.text == (
        f"the {kind.name} launcher cannot {CALLS[method]}; use --mnode-launcher={other}, which can"
    )
    assert hasattr(Slurm if other == "slurm" else Rack, method)
