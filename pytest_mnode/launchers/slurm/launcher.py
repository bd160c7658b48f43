"""Nodes of a Slurm allocation: the one the run is in, or one of its own; commands are its steps."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.launchers import power, slurm
from pytest_mnode.launchers.node import Launcher, Node, Watchers
from pytest_mnode.launchers.remote import looking, near, sending
from pytest_mnode.launchers.remote.apart import mistaken
from pytest_mnode.launchers.remote.asking import look_at, unusable
from pytest_mnode.launchers.remote.looking import Look
from pytest_mnode.launchers.remote.member import member
from pytest_mnode.launchers.remote.shared import Shared
from pytest_mnode.launchers.slurm.allocation import Allocation, Granted, Held, Surrounding
from pytest_mnode.launchers.slurm.kept import not_back, present, too_few_gpus
from pytest_mnode.launchers.slurm.step import step_command
from pytest_mnode.launchers.slurm.watch import Watch
from pytest_mnode.protocol.launcher_requests import (
    LauncherRequest,
    PowerOff,
    PowerOn,
    SlurmNames,
)
from pytest_mnode.spec import Spec

_TRY_AGAIN_S = 1.0


class Slurm(Launcher):
    """N nodes of an allocation; their power is switched by the spec's commands. Thread-safe.

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
        self.python = python or sys.executable
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
        self._places: dict[str, str] = {}
        self._watchers = Watchers("slurm-watch")
        self._watch: Watch | None = None
        self._closing = threading.Event()

    @property
    def _job(self) -> int:
        assert self.job_id is not None
        return self.job_id

    # Coming up.

    def start(self) -> None:
        """Have the nodes, and look at each. Raises ClusterError that names what is missing."""
        try:
            self.allocation.daemon.start([self._run_dir])
            self.granted = self.allocation.get(self._count)
            self.job_id = self.granted.job_id
            states = {state.name: state for state in self.slurm.nodes(self.granted.names)}
            names = present(self.granted, states, self._count)
            self.unused = [name for name in self.granted.names if name not in names]
            self._check_gpus(states, names)
            self._candidate = Shared(*self._shared)
            self._reach(names)
            looks, problems = self._look(names)
            if problems:
                raise unusable(problems, len(names), f"slurm: allocation {self.job_id}")
            self.nodes = self._members(names, states, looks)
            self.shared_dir = self._candidate.settle(looks)
        except BaseException:
            self.close()
            raise
        self._watch = Watch(self.slurm, self.allocation, self.granted.job_id, self._watchers)
        self._watch.start(self._names)

    def _check_gpus(self, states: Mapping[str, slurm.NodeState], names: Sequence[str]) -> None:
        """Ranks without accelerators would fail in worse words."""
        promised = self._spec.accelerators.per_node
        others = [state for name, state in states.items() if name not in names]
        job = self.slurm.job(self._job) if promised else None
        if why := too_few_gpus(job, [states[name] for name in names], promised, others):
            raise ClusterError(why)

    def _reach(self, names: Sequence[str]) -> None:
        """Write how commands reach the nodes, and have what they share removed in the end."""
        assert self._candidate is not None
        daemon, shared = self.allocation.daemon, self._candidate.directory
        daemon.order(remove=[self._run_dir, *([str(shared)] if shared else [])])
        far = [self.python, "-I", "-S", "-c", sending.BOOTSTRAP]
        commands = {name: step_command(self._job, name, far) for name in names}
        self._config.write_text(sending.told(daemon.pid, commands))

    def _look(self, names: Sequence[str]) -> tuple[dict[str, Look], dict[str, str]]:
        assert self._candidate is not None
        token = self._candidate.token if self._candidate.directory else None
        argv = looking.argv(self.python, token, str(Path.cwd()))
        return look_at({n: self._near(n, argv) for n in names}, str(Path.cwd()), self._run_dir)

    def _members(
        self,
        names: Sequence[str],
        states: Mapping[str, slurm.NodeState],
        looks: Mapping[str, Look],
    ) -> tuple[Node, ...]:
        addresses = {name: states[name].address or name for name in names}
        if problems := mistaken({name: looks[name] for name in names}, addresses):
            raise unusable(problems, len(names), f"slurm: allocation {self.job_id}")
        nodes = []
        for index, name in enumerate(names):
            self._names[looks[name].hostname] = name
            self._places[name] = looks[name].place or ""
            nodes.append(member(index, addresses[name], looks[name], self._spec))
        return tuple(nodes)

    # What a launcher does.

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """See Launcher. This Python in `argv`, and paths of this package, are the nodes' own."""
        return [self._near(self._there(node), argv) for node in nodes]

    def _near(self, name: str, argv: Sequence[str]) -> list[str]:
        python = [sys.executable, "-S", "-E", "-s", str(Path(near.__file__))]
        there = looking.as_there(argv, self.python, self._places.get(name, ""))
        return [*python, str(self._config), name, *there]

    def _there(self, node: Node) -> str:
        """Slurm's name of a node; NodeLostError where it is gone."""
        name = self._slurm_name(node.name)
        why = "the run is over" if self._closing.is_set() else None
        if why is None and self._watch is not None:
            why = self._watch.why_gone(node.name)
        if why is not None:
            raise NodeLostError(node.name, f"{node.name} is not there: {why}")
        return name

    def _slurm_name(self, name: str) -> str:
        found = self._names.get(name)
        if found is None:
            raise UsageError(f"slurm: no node {name!r} (there are: {', '.join(self._names)})")
        return found

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """See Launcher."""
        self._watchers.add(on_lost)

    def ask(self, request: LauncherRequest) -> Any:
        """See Launcher: power, and Slurm's names."""
        match request:
            case PowerOff(name):
                return self._power_off(self._node(name))
            case PowerOn(name):
                return self._power_on(self._node(name))
            case SlurmNames():
                return dict(self._names)
            case _:
                return super().ask(request)

    def _node(self, name: str) -> Node:
        self._slurm_name(name)
        return next(node for node in self.nodes if node.name == name)

    def _power_off(self, node: Node) -> None:
        """Switch it off by the spec's command. Raises ClusterError."""
        power.switch(self._spec.power, "off", node)
        if self._watch is not None:
            self._watch.note(node.name, "powered off")

    def _power_on(self, node: Node) -> None:
        """Boot it by the spec's command, and wait until steps run there. Raises ClusterError.

        Slurm takes a node that it has called DOWN out of the allocation, and does not put it back:
        it must be up again within SlurmdTimeout.
        """
        name = self._slurm_name(node.name)
        section = power.switch(self._spec.power, "on", node)
        end = time.monotonic() + section.within_s
        while (problem := self._back(name, node)) is not None:
            if time.monotonic() > end or self._closing.is_set():
                when = f"{section.within_s:g} s after power.switch_on"
                raise ClusterError(f"{node.name} was not back {when}: {problem}")
            time.sleep(_TRY_AGAIN_S)
        if self._watch is not None:
            self._watch.note(node.name, None)

    def _back(self, name: str, node: Node) -> str | None:
        """What is wrong with a node that boots; None where it can be used as before.

        Raises ClusterError where it never will be.
        """
        try:
            job, states = self.slurm.job(self._job), self.slurm.nodes([name])
        except ClusterError as error:  # it is asked again
            return str(error)
        if (why := not_back(job, self._job, node.name, name, states)) is not None:
            return why
        looks, problems = self._look([name])
        if (look := looks.get(name)) is None:
            return problems[name]
        return None if look.hostname == node.name else f"it is {look.hostname} now"

    def close(self) -> None:
        """See Launcher. The run's own allocation is given back."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._watch is not None:
            self._watch.close()
        try:
            self.allocation.close()
        finally:
            self.allocation.daemon.close()
            if self._candidate is not None:
                self._candidate.remove()
