"""Starts the gates through the launcher, and knows which nodes each of them serves."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from pytest_mnode.cluster.node import Launcher, Node
from pytest_mnode.world.channel import Keys
from pytest_mnode.world.describe import returncode_text
from pytest_mnode.world.messages import GateOrder, NodeEntry

_STOP_LIMIT_S = 5.0
_MARK = "MNODE_RUN"
"""Every process of a run inherits it: how those are found that lost their parents."""


class Gates:
    """One gate where all nodes share a kernel, else one a node."""

    def __init__(
        self, launcher: Launcher, endpoint: str, keys: Keys, run_dir: str, log_dir: str
    ) -> None:
        self.launcher = launcher
        self.endpoint = endpoint
        self.keys = keys
        self.run_dir = run_dir
        self.log_dir = log_dir
        self.nodes: list[tuple[Node, ...]] = []
        self._programs: list[subprocess.Popen[bytes]] = []
        self._heard: list[float] = []
        self.known: set[int] = set()
        self._mark = uuid.uuid4().hex

    def open(self) -> Sequence[tuple[Node, ...]]:
        """Start all gates; the nodes that each serves."""
        argv = [sys.executable, "-m", "pytest_mnode.world.gate"]
        if self.launcher.shared_kernel:
            self.nodes = [tuple(self.launcher.nodes)]
            commands = [self.launcher.agent_command(argv)]
        else:
            self.nodes = [(node,) for node in self.launcher.nodes]
            commands = self.launcher.commands(self.launcher.nodes, argv)
        for number, command in enumerate(commands):
            self._programs.append(self._start(number, command))
            self._heard.append(time.monotonic())
        return self.nodes

    def _start(self, number: int, command: list[str]) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONUNBUFFERED": "1", _MARK: self._mark}
        # torchrun's rule: a rank is one of several on its machine unless the user says otherwise.
        env.setdefault("OMP_NUM_THREADS", "1")
        # Asking CUDA itself how many devices there are would spoil it for forked ranks.
        env.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        log = Path(self.log_dir) / f"gate{number}.log"
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
        program.stdin.write(self._order(number).encode() + b"\n")
        program.stdin.flush()
        return program

    def _order(self, number: int) -> str:
        order = GateOrder(
            gate=number,
            endpoint=self.endpoint,
            keys=self.keys.to_dict(),
            run_dir=self.run_dir,
            log_dir=self.log_dir,
            nodes=tuple(self.entry(node) for node in self.nodes[number]),
            sys_path=tuple(sys.path),
            remove_run_dir=self.launcher.shared_kernel,
        )
        return json.dumps(asdict(order))

    def entry(self, node: Node) -> NodeEntry:
        return NodeEntry(
            node.name, node.index, node.address, node.fabric_interface, self.launcher.doorway(node)
        )

    def heard(self, gate: int) -> bool:
        """Note a sign of life; whether it was the first."""
        self._heard[gate] = time.monotonic()
        first = gate not in self.known
        self.known.add(gate)
        return first

    def silent(self, limit_s: float) -> list[int]:
        """Gates that have not been heard of for `limit_s`."""
        now = time.monotonic()
        return [gate for gate, last in enumerate(self._heard) if now - last > limit_s]

    def ended(self) -> dict[int, str]:
        """Gates that are not there any more, and how they ended."""
        codes = {gate: program.poll() for gate, program in enumerate(self._programs)}
        return {gate: returncode_text(code) for gate, code in codes.items() if code is not None}

    def place(self, gate: int) -> str:
        """The nodes of a gate, in words."""
        names = [node.name for node in self.nodes[gate]]
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"

    def close(self) -> None:
        """End all gates: their standard input ends, then, past the limit, they are killed."""
        for program in self._programs:
            if program.stdin is not None:
                with contextlib.suppress(OSError):
                    program.stdin.close()
        end = time.monotonic() + _STOP_LIMIT_S
        for program in self._programs:
            try:
                program.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        if any(program.returncode != 0 for program in self._programs):
            self._sweep()

    def _sweep(self) -> None:
        """Kill what a gate left that could not clean up: it carries this run's mark."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark:
                    process.kill()
