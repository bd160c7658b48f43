"""Starts the agents through the launcher, and records which nodes each of them serves."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

from pytest_mnode import processes
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.remote.node_process import Program, start
from pytest_mnode.outcome.describe import returncode_text
from pytest_mnode.processes import end_programs
from pytest_mnode.protocol.channel import Switchboard
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.messages import HUB, RUN, AgentOrder, NodeEntry
from pytest_mnode.protocol.rank_files import agent_log

_STOP_LIMIT_S = 10.0
_MOST_CHARS = 300
_OF_COVERAGE = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
"""Make coverage.py measure any Python. Removed: agents are not user code, and ranks start it."""
_DEFAULTS = {
    # As under torchrun: a rank shares its machine with others unless the user says otherwise.
    "OMP_NUM_THREADS": "1",
    # Counting devices through CUDA itself would initialize it and break it in forked ranks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


@dataclass(frozen=True, slots=True)
class RunDirectories:
    """Directories of a run on this machine.

    open_files: limit of open files of this machine's processes except this one; None if that limit
    is no lower than this process's.
    """

    run_dir: str
    log_dir: str
    open_files: int | None = None

    @property
    def logs_are_temporary(self) -> bool:
        """Whether logs are deleted with run_dir: the user named no log_dir."""
        return self.log_dir.startswith(self.run_dir)


@dataclass(slots=True)
class _Agent:
    program: Program
    log: Path
    heard: float
    peer: str
    incarnation: int
    known: bool = False
    received: int = 0


class Agents:
    """The agents of a run: one if all nodes share a kernel, else one per node."""

    def __init__(self, launcher: Launcher, place: RunDirectories, switchboard: Switchboard) -> None:
        self.launcher = launcher
        self._switchboard = switchboard
        self._standing: list[Any] = []
        """Messages for every agent, including agents that are started later."""
        self.place_of_run = place
        self.clock = ListeningClock()
        self.nodes: list[tuple[Node, ...]] = []
        self._agents: list[_Agent] = []
        self.serving: dict[str, int] = {}
        """Numbers of the agents that serve their nodes, by their names on the switchboard."""
        self._own_id = uuid.uuid4().hex

    @property
    def known(self) -> list[str]:
        """Names, on the switchboard, of agents that have sent a message."""
        return [agent.peer for agent in self._agents if agent.known]

    def peer(self, number: int) -> str:
        """An agent's name on the switchboard."""
        return self._agents[number].peer

    def open(self) -> Sequence[tuple[Node, ...]]:
        """Start all agents; returns the nodes that each agent serves."""
        together = self.launcher.shared_kernel
        nodes = self.launcher.nodes
        self.nodes = [tuple(nodes)] if together else [(node,) for node in nodes]
        for number in range(len(self.nodes)):  # those that were started are ended, whatever comes
            self._agents.append(self._start(number, 0))
        return self.nodes

    def open_again(self, number: int) -> Node:
        """Start an agent in place of a lost node's agent; returns the node, whose address is new
        if it is a pod that was replaced."""
        self.drop(number)
        node = self.launcher.nodes[number]
        self.nodes[number] = (node,)
        self._agents[number] = self._start(number, self._agents[number].incarnation + 1)
        return node

    def drop(self, number: int) -> None:
        """End an agent that is silent or whose node is lost."""
        agent = self._agents[number]
        self.serving.pop(agent.peer, None)
        self._hang_up(agent)
        end_programs([agent.program])

    def _hang_up(self, agent: _Agent) -> None:
        """End an agent's standard input, which ends the agent."""
        self._switchboard.drop(agent.peer)
        assert agent.program.stdin is not None
        with contextlib.suppress(OSError):
            agent.program.stdin.close()

    def _start(self, number: int, incarnation: int) -> _Agent:
        argv = [sys.executable, "-m", "pytest_mnode.agent.agent"]
        if self.launcher.shared_kernel:
            command = self.launcher.agent_command(argv)
        else:
            [command] = self.launcher.commands(self.nodes[number], argv)
        env = self.launcher.env.command({"PYTHONUNBUFFERED": "1", RUN: self._own_id}, _DEFAULTS)
        for name in _OF_COVERAGE:
            env.pop(name, None)
        order = self._order(number, incarnation)
        log = agent_log(self.place_of_run.log_dir, number, incarnation)
        stdout = PIPE if order.remote else log
        program = start(command, env, stdin=PIPE, stdout=stdout, stderr=log, apart=True)
        assert program.stdin is not None
        with contextlib.suppress(OSError):  # it ended at once; its exit status tells why
            program.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self.serving[order.peer] = number
        if program.stdout is not None:
            with program.stdin, program.stdout:
                ends = os.dup(program.stdout.fileno()), os.dup(program.stdin.fileno())
            self._switchboard.take_machine(order.peer, *ends, partial(_append, log))
        return _Agent(program, log, self.clock.now(), order.peer, incarnation)

    def _order(self, number: int, incarnation: int) -> AgentOrder:
        place, remote = self.place_of_run, not self.launcher.shared_kernel
        first = self.nodes[number][0]
        other = remote and self.launcher.python_of(first) != sys.executable
        own_logs = remote and place.logs_are_temporary
        return AgentOrder(
            agent=number,
            incarnation=incarnation,
            path="" if remote else self._switchboard.path,
            token="" if remote else self._switchboard.token,
            run_dir="" if remote else place.run_dir,
            log_dir="" if own_logs else place.log_dir,
            nodes=tuple(self.entry(node) for node in self.nodes[number]),
            sys_path=tuple(sys.path),
            run_id=place.run_dir,
            remote=remote,
            prefixes=(sys.prefix, sys.base_prefix) if other else (),
            open_files=None if remote else place.open_files,
            silence_s=self.launcher.limits.agent_silence_s,
        )

    def entry(self, node: Node) -> NodeEntry:
        return NodeEntry(node.name, node.address, self.launcher.namespace_pid(node))

    def tell_all(self, message: Any) -> None:
        """Send to every agent, to a new one after its first message."""
        self._standing.append(message)
        self._send(self.known, message)

    def _send(self, peers: Sequence[str], message: Any) -> None:
        self._switchboard.send(peers, HUB, pickle.dumps(message))

    def heard(self, number: int) -> None:
        """Note that an agent is alive."""
        agent = self._agents[number]
        agent.heard, first = self.clock.now(), not agent.known
        agent.known = True
        for message in self._standing if first else ():
            self._send((agent.peer,), message)

    def silent(self) -> dict[int, str]:
        """Agents that sent nothing for longer than they may, each with a text for the user."""
        now, found = self.clock.now(), {}
        for number, agent in enumerate(self._agents):
            received = self._switchboard.received(agent.peer)
            if agent.known and received != agent.received:  # also a part of a long message
                agent.received, agent.heard = received, now
            remote = not self.launcher.shared_kernel
            first = remote and not agent.known
            limits = self.launcher.limits
            limit = limits.first_word_s if first else limits.agent_silence_s
            if now - agent.heard > limit:
                found[number] = f"no message for {limit:.0f} s"
        return found

    def ended(self) -> dict[int, str]:
        """Agents that have ended, each with a text that says how."""
        codes = {number: agent.program.poll() for number, agent in enumerate(self._agents)}
        return {
            number: self._how(number, code) for number, code in codes.items() if code is not None
        }

    def _how(self, number: int, code: int) -> str:
        how = f"its agent {returncode_text(code)}"
        if self.launcher.shared_kernel:
            return ": ".join(filter(None, (how, self.launcher.why_ended())))
        last = self.last_words(number)
        if code == 255 and last:  # ssh, or another program that connects, has printed the cause
            return last.partition(": ")[2] or last
        return f"{how}{': ' * bool(last)}{last}"

    def last_words(self, number: int) -> str:
        """The last line that an agent, or the program that connects to its node, printed."""
        try:
            text = self._agents[number].log.read_text(errors="replace")[-4096:]
        except OSError:
            return ""
        return processes.last_line(text)[:_MOST_CHARS]

    def place(self, agent: int) -> str:
        """The nodes of an agent, as text."""
        names = [node.name for node in self.nodes[agent]]
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"

    def close(self) -> None:
        """End all agents by closing their standard input; kill those that miss the limit."""
        programs = [agent.program for agent in self._agents]
        for agent in self._agents:
            self._hang_up(agent)
        end = time.monotonic() + _STOP_LIMIT_S
        for program in programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(max(0.0, end - time.monotonic()))
        end_programs([program for program in programs if program.returncode is None])
        if any(program.returncode != 0 for program in programs):
            # Kill what an agent left that could not clean up.
            for pid in processes.started_with(RUN, self._own_id):
                processes.kill(pid)


def _append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)
