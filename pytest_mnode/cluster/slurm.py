"""Nodes of a Slurm allocation: the one the run is in, or one of its own; commands are its steps."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_mnode import slurm
from pytest_mnode.cluster import power
from pytest_mnode.cluster.node import Node
from pytest_mnode.cluster.remote import keeper, looking, near
from pytest_mnode.cluster.remote.asking import look_at, unusable
from pytest_mnode.cluster.remote.looking import Look
from pytest_mnode.cluster.remote.shared import Shared
from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.slurm.allocation import Allocation, Granted, Held, Surrounding
from pytest_mnode.slurm.kept import lost, present
from pytest_mnode.slurm.step import step_command
from pytest_mnode.spec import Spec

LOOK_S = 3.0
"""How often Slurm is asked what became of the nodes and of the job."""
_END_S = 12.0
_TRY_AGAIN_S = 1.0


class Slurm:
    """N nodes of an allocation. Implements Launcher, and PowerSwitch by the commands that the spec
    names; thread-safe.

    arguments: for salloc, where the run is not inside of an allocation. run_dir: of this machine;
    root: where a directory that all nodes see is looked for; python: on the nodes, "" for the path
    of this one.
    """

    name = "slurm"
    shared_kernel = False

    def __init__(
        self,
        nodes: int,
        spec: Spec,
        arguments: Sequence[str] = (),
        *,
        run_dir: str,
        root: Path,
        shared_dir: Path | None = None,
        python: str = "",
    ) -> None:
        if (missing := slurm.Slurm.unavailable()) is not None:
            raise UsageError(f"--mnode-launcher=slurm: {missing}")
        self.nodes: Sequence[Node] = ()
        self.python = python or sys.executable
        self.shared_dir: Path | None = None
        self.slurm = slurm.Slurm()
        self.allocation: Allocation = Surrounding()
        self.held = "SLURM_JOB_ID" not in os.environ
        """Whether the allocation is the run's own."""
        if self.held:
            self.allocation = Held(self.slurm, arguments, spec.accelerators.per_node)
        elif arguments:
            job = os.environ["SLURM_JOB_ID"]
            raise UsageError(
                f"--mnode-slurm-args={' '.join(arguments)}: this is inside of allocation {job} "
                "already, which is used as it is; leave them out, or run outside of it"
            )
        self.granted: Granted | None = None
        self._count = nodes
        self._spec = spec
        self._run_dir = run_dir
        self._shared = (shared_dir, root)
        self._candidate: Shared | None = None
        self._config = Path(run_dir) / "slurm.json"
        self._names: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        self._lock = threading.Lock()
        self._watchers: list[Callable[[str, str], None]] = []
        self._losses: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def job_id(self) -> int:
        """The allocation's number, once there is one."""
        if self.granted is None:
            raise ClusterError("slurm: no allocation yet")
        return self.granted.job_id

    # Coming up.

    def start(self) -> None:
        """Have the nodes, and look at each. Raises ClusterError that names what is missing."""
        try:
            self.granted = self.allocation.get(self._count)
            states = {state.name: state for state in self.slurm.nodes(self.granted.names)}
            names = present(self.granted, states, self._count)
            self._candidate = Shared(*self._shared)
            self._start_keeper(names)
            looks, problems = self._look(names)
            if problems:
                raise unusable(problems, len(names), f"slurm: allocation {self.job_id}")
            self.nodes = self._members(names, states, looks)
            self.shared_dir = self._candidate.settle(looks)
        except BaseException:
            self.close()
            raise
        for target in (self._tell, self._look_out):
            thread = threading.Thread(target=target, name="slurm-watch", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _start_keeper(self, names: Sequence[str]) -> None:
        """What removes files, and ends commands, where this process cannot any more."""
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", "-s", str(Path(keeper.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._candidate is not None
        shared = self._candidate.directory
        self._order({"remove": [self._run_dir, *([str(shared)] if shared else [])]})
        far = [self.python, "-I", "-S", "-c", near.BOOTSTRAP]
        ways = {name: {"command": step_command(self.job_id, name, far)} for name in names}
        self._config.write_text(json.dumps({"keeper": self._keeper.pid, "ways": ways}))

    def _order(self, order: Mapping[str, object]) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
        self._keeper.stdin.flush()

    def _look(self, names: Sequence[str]) -> tuple[dict[str, Look], dict[str, str]]:
        assert self._candidate is not None
        token = self._candidate.token if self._candidate.directory else None
        argv = looking.argv(self.python, token, str(Path.cwd()))
        return look_at({name: self._near(name, argv) for name in names}, str(Path.cwd()))

    def _members(
        self,
        names: Sequence[str],
        states: Mapping[str, slurm.NodeState],
        looks: Mapping[str, Look],
    ) -> tuple[Node, ...]:
        nodes = []
        for index, name in enumerate(names):
            node = self._member(index, states[name].address or name, looks[name])
            if (other := self._names.get(node.name)) is not None:
                raise ClusterError(f"slurm: {other} and {name} are one machine: {node.name}")
            self._names[node.name] = name
            nodes.append(node)
        return tuple(nodes)

    def _member(self, index: int, address: str, look: Look) -> Node:
        fabric = self._spec.fabric
        interface = looking.fabric_interface(look, fabric.kind, fabric.interfaces)
        found = (look.networks or {}).get(interface.partition(",")[0], ()) if interface else ()
        return Node(
            name=look.hostname,
            index=index,
            address=address,
            fabric_address=found[0] if found else None,
            fabric_interface=interface,
        )

    # What becomes of the nodes.

    def _look_out(self) -> None:
        """Ask Slurm now and then; a Slurm that does not answer tells nothing of the nodes."""
        while not self._closing.wait(LOOK_S):
            try:
                for name, why in self._losses_now().items():
                    self._lose(name, why)
            except ClusterError:
                continue

    def _losses_now(self) -> dict[str, str]:
        """Nodes of this run that Slurm has given up, or taken away, by their own names."""
        if (why := self.allocation.gone()) is not None:
            return dict.fromkeys(self._names, f"allocation {self.job_id} ended: {why}")
        job = self.slurm.job(self.job_id)
        states = {state.name: state for state in self.slurm.nodes(self._names.values())}
        return lost(job, self.job_id, states, self._names)

    def _lose(self, name: str, why: str) -> None:
        with self._lock:
            if name in self._gone:
                return
            self._gone[name] = why
        self._losses.put((name, why))

    def _tell(self) -> None:
        """Calls watchers from a thread of its own, so that they may use the launcher."""
        while (loss := self._losses.get()) is not None:
            for watcher in list(self._watchers):
                watcher(*loss)

    # What a launcher does.

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """See Launcher. Where `argv` begins with this Python, it is the nodes' own that runs."""
        return [self._near(self._there(node), argv) for node in nodes]

    def _near(self, name: str, argv: Sequence[str]) -> list[str]:
        program, *rest = argv
        if program == sys.executable:
            program = self.python
        python = [sys.executable, "-S", "-E", "-s", str(Path(near.__file__))]
        return [*python, str(self._config), name, program, *rest]

    def _there(self, node: Node) -> str:
        """Slurm's name of a node; NodeLostError where it is gone."""
        name = self._slurm_name(node)
        with self._lock:
            why = "the run is over" if self._closing.is_set() else self._gone.get(node.name)
        if why is not None:
            raise NodeLostError(node.name, f"{node.name} is not there: {why}")
        return name

    def _slurm_name(self, node: Node) -> str:
        name = self._names.get(node.name)
        if name is None:
            raise UsageError(f"slurm: no node {node.name!r} (there are: {', '.join(self._names)})")
        return name

    def agent_command(self, argv: Sequence[str]) -> list[str]:  # noqa: ARG002
        """None serves all: the nodes share no kernel."""
        raise ClusterError("slurm: one agent program cannot serve nodes that share no kernel")

    def doorway(self, node: Node) -> int | None:  # noqa: ARG002
        """None: a process is on the node by being started there."""
        return None

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """See Launcher."""
        self._watchers.append(on_lost)

    def power_off(self, node: Node) -> None:
        """Switch it off by the spec's command. Raises ClusterError."""
        self._slurm_name(node)
        power.switch(self._spec.power, "off", node)
        with self._lock:
            self._gone[node.name] = "powered off"

    def power_on(self, node: Node) -> None:
        """Boot it by the spec's command, and wait until steps run there. Raises ClusterError.

        Slurm takes a node that it has called DOWN out of the allocation, and does not put it back:
        it must be up again within SlurmdTimeout.
        """
        name = self._slurm_name(node)
        section = power.switch(self._spec.power, "on", node)
        end = time.monotonic() + section.within_s
        while (problem := self._back(name, node)) is not None:
            if time.monotonic() > end or self._closing.is_set():
                limit = f"{section.within_s:g} s"
                raise ClusterError(
                    f"{node.name} was not back {limit} after power.switch_on: {problem}"
                )
            time.sleep(_TRY_AGAIN_S)
        with self._lock:
            self._gone.pop(node.name, None)

    def _back(self, name: str, node: Node) -> str | None:
        """What is wrong with a node that boots; None where it can be used as before.

        Raises ClusterError where it never will be.
        """
        job, states = self.slurm.job(self.job_id), self.slurm.nodes([name])
        if job is not None and job.runs and name not in job.nodes:
            raise ClusterError(
                f"{node.name} was down for so long that Slurm took it out of allocation "
                f"{self.job_id} (SlurmdTimeout); it stays out until another one is given"
            )
        if not all(state.usable for state in states):
            return f"Slurm says {states[0].text}"
        looks, problems = self._look([name])
        if (look := looks.get(name)) is None:
            return problems[name]
        return None if look.hostname == node.name else f"it is {look.hostname} now"

    def close(self) -> None:
        """See Launcher. The run's own allocation is given back."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._losses.put(None)
        try:
            self.allocation.close()
        finally:
            self._end_keeper()
            if self._candidate is not None:
                self._candidate.remove()

    def _end_keeper(self) -> None:
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None
        try:
            # What it removes for a controller that is gone, its owners remove.
            self._order({"remove": []})
            self._order({"done": True})
            self._keeper.stdin.close()
        except OSError:
            pass
        try:
            self._keeper.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
