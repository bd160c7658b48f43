"""Starts the gates through the launcher, and knows which nodes each of them serves."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.outcome.describe import returncode_text
from pytest_mnode.protocol.channel import Keys
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.messages import RUN, GateOrder, NodeEntry
from pytest_mnode.rank.traces import gate_log

_STOP_LIMIT_S = 10.0
_FIRST_WORD_S = 60.0
"""For a gate on another machine: an interpreter, and a way to this one."""
_MARK = RUN
"""Every process of a run inherits it: how those are found that lost their parents."""
_WORDS = 300


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run keeps things on this machine, and where its hub is.

    endpoints: by node, where that is not the same for all. logs_are_temporary: nobody named
    log_dir. open_files: how many a process of this machine may have open but for this one; None
    where that is no fewer.
    """

    endpoint: str
    endpoints: Mapping[str, str]
    run_dir: str
    log_dir: str
    logs_are_temporary: bool = True
    open_files: int | None = None


@dataclass(slots=True)
class _Gate:
    program: subprocess.Popen[bytes]
    log: Path
    heard: float
    peer: str
    life: int
    known: bool = False


class Gates:
    """One gate where all nodes share a kernel, else one a node."""

    def __init__(self, launcher: Launcher, keys: Keys, place: Place) -> None:
        self.launcher = launcher
        self.keys = keys
        self.place_of_run = place
        self.clock = ListeningClock()
        self.nodes: list[tuple[Node, ...]] = []
        self._gates: list[_Gate] = []
        self._mark = uuid.uuid4().hex

    @property
    def run_dir(self) -> str:
        return self.place_of_run.run_dir

    @property
    def known(self) -> list[str]:
        """Names, on the switchboard, of gates that were heard of."""
        return [gate.peer for gate in self._gates if gate.known]

    def peer(self, number: int) -> str:
        """A gate's name on the switchboard."""
        return self._gates[number].peer

    def is_current(self, number: int, life: int) -> bool:
        """Whether a word is of the gate that was started last, and not of one before it."""
        return self._gates[number].life == life

    def open(self) -> Sequence[tuple[Node, ...]]:
        """Start all gates; the nodes that each serves."""
        together = self.launcher.shared_kernel
        nodes = self.launcher.nodes
        self.nodes = [tuple(nodes)] if together else [(node,) for node in nodes]
        self._gates = [self._start(number, 0) for number in range(len(self.nodes))]
        return self.nodes

    def open_again(self, number: int) -> None:
        """Start a gate anew, in place of one whose node was lost."""
        self.drop(number)
        self._gates[number] = self._start(number, self._gates[number].life + 1)

    def drop(self, number: int) -> None:
        """End a gate that nobody hears of any more."""
        program = self._gates[number].program
        if program.stdin is not None:
            with contextlib.suppress(OSError):
                program.stdin.close()
        program.kill()
        program.wait()

    def _start(self, number: int, life: int) -> _Gate:
        argv = [sys.executable, "-m", "pytest_mnode.agent.supervisor"]
        if self.launcher.shared_kernel:
            command = self.launcher.agent_command(argv)
        else:
            [command] = self.launcher.commands(self.nodes[number], argv)
        env = {**node_env(), "PYTHONUNBUFFERED": "1", _MARK: self._mark}
        # torchrun's rule: a rank is one of several on its machine unless the user says otherwise.
        env.setdefault("OMP_NUM_THREADS", "1")
        # Asking CUDA itself how many devices there are would spoil it for forked ranks.
        env.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        order = self._order(number, life)
        log = gate_log(self.place_of_run.log_dir, number, life)
        with log.open("ab") as file:
            program = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=env,
                start_new_session=True,  # Ctrl-C is for the controller alone
            )
        assert program.stdin is not None
        with contextlib.suppress(OSError):  # it ended at once, and says so by its status
            program.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            program.stdin.flush()
        return _Gate(program, log, self.clock.now(), order.peer, life)

    def _order(self, number: int, life: int) -> GateOrder:
        place, remote = self.place_of_run, not self.launcher.shared_kernel
        first = self.nodes[number][0].name
        other = remote and self.launcher.python != sys.executable
        own_logs = remote and place.logs_are_temporary
        return GateOrder(
            gate=number,
            life=life,
            endpoint=place.endpoints.get(first, place.endpoint),
            keys=self.keys.to_dict(),
            run_dir="" if remote else place.run_dir,
            log_dir="" if own_logs else place.log_dir,
            nodes=tuple(self.entry(node) for node in self.nodes[number]),
            sys_path=tuple(sys.path),
            remove_run_dir=not remote,
            mark=place.run_dir,
            remote=remote,
            prefixes=(sys.prefix, sys.base_prefix) if other else (),
            open_files=None if remote else place.open_files,
        )

    def entry(self, node: Node) -> NodeEntry:
        return NodeEntry(
            node.name,
            node.index,
            node.address,
            node.fabric_interface,
            self.launcher.namespace_pid(node),
        )

    def heard(self, number: int) -> bool:
        """Note a sign of life; whether it was the first."""
        gate = self._gates[number]
        gate.heard, first = self.clock.now(), not gate.known
        gate.known = True
        return first

    def silent(self, limit_s: float) -> dict[int, str]:
        """Gates that have not been heard of for `limit_s`, in words."""
        now, found = self.clock.now(), {}
        for number, gate in enumerate(self._gates):
            remote = not self.launcher.shared_kernel
            limit = _FIRST_WORD_S if remote and not gate.known else limit_s
            if now - gate.heard > limit:
                found[number] = f"nothing heard of it for {limit:.0f} s"
                if remote and not gate.known:
                    endpoint = self.place_of_run.endpoints[self.nodes[number][0].name]
                    found[number] += f"; does a firewall keep it from {endpoint}, this machine?"
        return found

    def ended(self) -> dict[int, str]:
        """Gates that are not there any more, and how they ended."""
        codes = {number: gate.program.poll() for number, gate in enumerate(self._gates)}
        return {
            number: self._how(number, code) for number, code in codes.items() if code is not None
        }

    def _how(self, number: int, code: int) -> str:
        how = f"the process that guards the ranks there {returncode_text(code)}"
        if self.launcher.shared_kernel:
            return how
        last = self.last_words(number)
        if code == 255 and last:  # what leads there says itself what happened
            return last.partition(": ")[2] or last
        return f"{how}{': ' * bool(last)}{last}"

    def last_words(self, number: int) -> str:
        """The last line of what a gate, or what leads to it, printed."""
        try:
            text = self._gates[number].log.read_text(errors="replace")[-4096:]
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:_WORDS] if lines else ""

    def place(self, gate: int) -> str:
        """The nodes of a gate, in words."""
        names = [node.name for node in self.nodes[gate]]
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"

    def close(self) -> None:
        """End all gates: their standard input ends, then, past the limit, they are killed."""
        programs = [gate.program for gate in self._gates]
        for program in programs:
            if program.stdin is not None:
                with contextlib.suppress(OSError):
                    program.stdin.close()
        end = time.monotonic() + _STOP_LIMIT_S
        for program in programs:
            try:
                program.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        if any(program.returncode != 0 for program in programs):
            self._sweep()

    def _sweep(self) -> None:
        """Kill what a gate left that could not clean up: it carries this run's mark."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark:
                    process.kill()
