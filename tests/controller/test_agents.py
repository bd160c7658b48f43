"""Agents of nodes on other machines: how they end, and the report of it."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.controller import agents
from pytest_mnode.controller.agents import Agents, RunDirectories
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.limits import Limits
from tests.launchers.remote.proxies import Way
from tests.waiting import until

NODES = (Node("n0", 0, "10.0.0.1"), Node("n1", 1, "10.0.0.2"))
WELL = ["sh", "-c", "exec cat >&2"]
"""Prints its order to the log, and ends with its input, like an agent."""


class Pipes:
    """A switchboard with the pipes of machines, which it does not read."""

    path, token = "/x/hub", "t"

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.pipes: dict[str, tuple[int, ...]] = {}
        self.bytes: dict[str, int] = {}
        self.printed: dict[str, Callable[[bytes], object]] = {}

    def received(self, name: str) -> int:
        return self.bytes.get(name, 0)

    def send(self, destinations: Sequence[str], _: str, payload: bytes) -> None:
        self.sent += [(one, pickle.loads(payload)) for one in destinations]

    def take_machine(
        self, name: str, reads: int, writes: int, printed: Callable[[bytes], object]
    ) -> None:
        self.pipes[name], self.printed[name] = (reads, writes), printed

    def drop(self, name: str) -> None:
        for fd in self.pipes.pop(name, ()):
            os.close(fd)


def pipes() -> Any:
    return Pipes()


@dataclass
class TwoMachines(Launcher):
    """A launcher of two other machines; `runs` is started on each in place of an agent."""

    runs: dict[str, list[str]]
    name: str = "ssh"
    nodes: Sequence[Node] = NODES
    shared_kernel: bool = False
    python: str = "/opt/python"
    shared_dir: Path | None = None
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        self.asked.append((nodes[0].name, *argv))
        return [self.runs[node.name] for node in nodes]

    def namespace_pid(self, node: Node) -> None:
        return None


class OneMachine(TwoMachines):
    """All nodes are of this machine, and have ended, unless `runs` says otherwise."""

    shared_kernel = True

    def agent_command(self, argv: Sequence[str]) -> list[str]:
        return self.runs.get("all", ["sh", "-c", "exit 3"])

    def why_ended(self) -> str:
        return "the machine was switched off"


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    runs: dict[str, list[str]] = getattr(request, "param", {"n0": WELL, "n1": WELL})
    place = RunDirectories(str(tmp_path), str(tmp_path), open_files=1024)
    launcher: Any = TwoMachines(runs)
    made = Agents(launcher, place, pipes())
    made.open()
    try:
        yield made
    finally:
        made.close()


def agent_settings(opened: Agents, number: int) -> dict[str, Any]:
    path = Path(opened.place_of_run.log_dir) / f"agent{number}.0.log"
    until(lambda: "\n" in path.read_text())
    found: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
    return found


def test_each_node_has_its_own_agent(opened: Agents) -> None:
    assert opened.nodes == [(NODES[0],), (NODES[1],)]
    first, second = agent_settings(opened, 0), agent_settings(opened, 1)
    assert [first["agent"], second["agent"]] == [0, 1]
    assert first["remote"]
    assert [node["name"] for node in second["nodes"]] == ["n1"]
    assert (first["run_dir"], first["log_dir"], first["path"], first["token"]) == ("",) * 4
    assert first["run_id"] == opened.place_of_run.run_dir
    assert first["open_files"] is None  # its machine has a separate limit
    assert sys.prefix in first["prefixes"]


@pytest.mark.parametrize(
    ("opened", "how"),
    [
        (
            {"n0": WELL, "n1": ["sh", "-c", "echo 'n1: the connection was lost: x' >&2; exit 255"]},
            "the connection was lost: x",
        ),
        (
            {"n0": WELL, "n1": ["sh", "-c", "echo OSError: no room >&2; exit 1"]},
            "its agent exited with code 1: OSError: no room",
        ),
        (
            {"n0": WELL, "n1": ["sh", "-c", "kill -9 $$"]},
            "its agent was killed by SIGKILL",
        ),
    ],
    indirect=["opened"],
)
def test_an_ended_agent_reports_its_reason(opened: Agents, how: str) -> None:
    until(opened.ended)
    assert opened.ended() == {1: how}


def test_a_silent_agent_is_found(opened: Agents) -> None:
    opened.launcher.limits = Limits(start_s=0.02, connect_s=0.015)
    opened.heard(0)
    time.sleep(0.1)
    assert opened.silent() == {1: "no message for 0 s"}
    opened.launcher.limits = Limits(start_s=0.02, connect_s=0.015, silence_s=0.02)
    assert opened.silent()[0] == "no message for 0 s"
    opened._switchboard.bytes["agent/0.0"] = 7  # type: ignore[attr-defined]
    # Which are of a long message.
    assert list(opened.silent()) == [1]


def test_what_an_agents_python_prints_is_in_its_log(opened: Agents) -> None:
    agent_settings(opened, 1)
    opened._switchboard.printed["agent/1.0"](b"\nmodule load: no such\n")  # type: ignore[attr-defined]
    assert opened.last_words(1) == "module load: no such"


@pytest.mark.parametrize("opened", [{"n0": WELL, "n1": ["sleep", "600"]}], indirect=True)
def test_an_agent_that_outlives_its_input_is_killed(
    opened: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_STOP_LIMIT_S", 0.5)
    opened.close()
    ended, killed = opened.ended().values()
    assert ended.startswith("its agent exited with code 0")
    assert killed == "its agent was killed by SIGKILL"


def test_a_restarted_agent_has_another_name(opened: Agents) -> None:
    opened.heard(1)
    assert opened.known == ["agent/1.0"]
    opened.open_again(1)
    assert opened.known == []
    assert opened.peer(1) == "agent/1.1"
    assert opened.serving == {"agent/0.0": 0, "agent/1.1": 1}
    assert opened.ended() == {}


@pytest.mark.parametrize(
    "opened", [{"n0": WELL, "n1": ["sh", "-c", "echo gone >&2; exit 1"]}], indirect=True
)
def test_the_last_output_is_that_of_the_newest_agent(opened: Agents) -> None:
    until(opened.ended)
    assert opened.last_words(1) == "gone"
    opened.launcher.runs["n1"] = ["true"]  # type: ignore[attr-defined]
    opened.open_again(1)
    assert opened.last_words(1) == ""


def test_messages_to_all_agents_wait_until_each_is_connected(opened: Agents) -> None:
    sent = opened._switchboard.sent  # type: ignore[attr-defined]
    opened.heard(0)
    opened.tell_all("collect")
    assert sent == [("agent/0.0", "collect")]
    opened.heard(1)
    opened.heard(1)
    assert sent[1:] == [("agent/1.0", "collect")]
    opened.open_again(1)
    opened.heard(1)
    assert sent[2:] == [("agent/1.1", "collect")]


def test_agents_that_were_started_before_one_could_not_be_are_ended(tmp_path: Path) -> None:
    place = RunDirectories("", str(tmp_path))
    launcher: Any = TwoMachines({"n0": WELL, "n1": ["/no/such/program"]})
    made = Agents(launcher, place, pipes())
    with pytest.raises(FileNotFoundError) as caught:
        made.open()
    made.close()
    assert caught.value.filename == "/no/such/program"
    assert list(made.ended()) == [0]


DEAF = ["sleep", "300"]
"""Does not end with its input, like the program of a connection that hangs."""


def children() -> set[int]:
    return set(processes.children(os.getpid()))


@pytest.mark.parametrize("opened", [{"n0": DEAF, "n1": DEAF}], indirect=True)
def test_a_lost_nodes_agent_is_ended(opened: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_STOP_LIMIT_S", 0.2)
    before = children()
    opened.drop(1)
    assert opened.ended() == {1: "its agent was killed by SIGKILL"}
    assert len(before - children()) == 1
    opened.close()


@pytest.mark.parametrize("opened", [{"n0": DEAF, "n1": WELL}], indirect=True)
def test_agents_that_do_not_end_are_killed(opened: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_STOP_LIMIT_S", 0.2)
    opened.close()
    ended = opened.ended()
    assert ended[0] == "its agent was killed by SIGKILL"
    assert ended[1].startswith("its agent exited with code 0: ")


LEAVES = ["sh", "-c", "sleep 300 & echo $! >&2; kill -9 $$"]


@pytest.mark.parametrize("opened", [{"n0": WELL, "n1": LEAVES}], indirect=True)
def test_what_a_killed_agent_leaves_on_this_machine_is_killed(opened: Agents) -> None:
    until(opened.ended)
    left = int(opened.last_words(1))
    assert not processes.has_ended(left)
    opened.close()
    until(lambda: processes.has_ended(left))


def test_agents_over_a_bridge_have_no_process_here(tmp_path: Path) -> None:
    way = Way(tmp_path)
    well, fails = way(WELL), way.streams.command("n1", ["sh", "-c", "echo no room >&2; exit 1"])
    place = RunDirectories(str(tmp_path), str(tmp_path))
    launcher: Any = TwoMachines({"n0": well, "n1": fails})
    before, made = children(), Agents(launcher, place, pipes())
    try:
        made.open()
        assert agent_settings(made, 0)["agent"] == 0
        until(made.ended)
        assert made.ended() == {1: "its agent exited with code 1: no room"}
        assert children() == before
        way.streams.client.end("n1", "powered off")
        made.open_again(0)
        until(lambda: 0 in made.ended())
        assert made.ended()[0] == "powered off"
    finally:
        made.close()
        way.close()


def test_what_ended_all_nodes_is_named_with_their_agent(tmp_path: Path) -> None:
    place = RunDirectories(str(tmp_path), str(tmp_path))
    launcher: Any = OneMachine({}, shared_kernel=True)
    one = Agents(launcher, place, pipes())
    one.open()
    try:
        until(one.ended, lambda: "its agent runs")
        assert one.ended() == {0: "its agent exited with code 3: the machine was switched off"}
    finally:
        one.close()


def test_an_agent_of_this_machine_ends_with_its_input(tmp_path: Path) -> None:
    place = RunDirectories(str(tmp_path), str(tmp_path))
    launcher: Any = OneMachine({"all": WELL}, shared_kernel=True)
    one = Agents(launcher, place, pipes())
    one.open()
    one.close()
    assert [agent.program.returncode for agent in one._agents] == [0]
