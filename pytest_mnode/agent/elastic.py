"""The process per world and node that starts ranks by torch's elastic agent and watches them.

The torchrun command starts ranks with the same `LocalElasticAgent`. Two parts are replaced: the
rendezvous (the hub assigns group ranks, so there is nothing to negotiate) and the watch, which
detects a death at once and keeps the other ranks running until the hub stops the world. By default,
torch's agent polls ten times a second and ends the neighbours of a dead rank before their stacks
could be taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import select
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig

from pytest_mnode import processes
from pytest_mnode.agent import live_output, rank_stacks
from pytest_mnode.agent.terminal import TerminalHolder
from pytest_mnode.machine.cgroup import read_oom_kills
from pytest_mnode.machine.pidfd import pidfd_open
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import (
    AgentOrder,
    BindingOrder,
    Death,
    Launch,
    OpenTerminal,
    PartLost,
    TakeStacks,
    TerminalData,
)
from pytest_mnode.protocol.rank_files import (
    RankFiles,
    end_of_output,
    error_message,
    head,
    nccl_causes,
    read_progress,
    tail,
    take_output,
)


class Rendezvous(StaticTCPRendezvous):
    """torchrun's static rendezvous without its store: the hub has decided what it returns."""

    def next_rendezvous(self) -> RendezvousInfo:
        address = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(HashStore(), self.rank, self.world_size, address)


RankMain = Callable[[Launch, int, bool], None]
"""Starts a rank in a forked process: (launch, pid of its elastic launcher, bound by torch)."""
_IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"
"""Makes torch number ranks by node without a store, because all nodes have as many ranks."""


class WatchfulAgent(LocalElasticAgent):
    """torch's elastic agent of one node, with a watch that sees deaths at once and takes stacks."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        *,
        order: AgentOrder,
        launch: Launch,
        agent: Pipe,
        store_fd: int | None,
    ) -> None:
        super().__init__(spec, logs_specs, start_method="fork")
        self.order = order
        self.launch = launch
        self.agent = agent
        self._store_fd = store_fd
        self._pids: dict[int, int] = {}
        self._outputs: dict[int, list[int]] = {}
        self._live = live_output.LiveFiles(launch.world)
        self._poll = select.poll()
        self._terminal = TerminalHolder(self._poll, agent.send)
        self._first_rank = launch.node_rank * launch.world.shape.procs_per_node

    @contextlib.contextmanager
    def record_duration(self, state: str) -> Iterator[None]:  # noqa: ARG002  torch's signature
        yield  # torch would write an event that nobody reads, and look up this machine's name

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """As in torch, but without an event for each rank (see record_duration)."""
        self._rendezvous(worker_group)
        for local, worker_id in self._start_workers(worker_group).items():
            worker_group.workers[local].id = worker_id
        worker_group.state = WorkerState.HEALTHY

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        os.environ.pop(_IDENTICAL)  # not meant for ranks
        self._given, giving = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._given.setblocking(False)
        os.environ["MNODE_OUTPUT_FD"] = str(giving.fileno())
        self._oom_before = read_oom_kills()
        ids: dict[int, Any] = super()._start_workers(worker_group)
        giving.close()
        if self._store_fd is not None:
            # Started after the fork: the server thread must not exist when ranks are forked.
            older: Any = {} if torch.__version__ >= "2.8" else {"use_libuv": False}  # takes the fd
            self._world_store = TCPStore(
                self.launch.master_addr,
                self.launch.master_port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=self._store_fd,
                **older,
            )
        self._pids = {int(local): int(pid) for local, pid in ids.items()}
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        ends = {pidfd_open(pid): local for local, pid in self._pids.items()}
        for fd in (*ends, self._given.fileno(), self.agent.fileno()):
            self._poll.register(fd, select.POLLIN)
        while True:
            looks = self._live or self._terminal.has_input
            for fd, _ in self._poll.poll(live_output.TURN_S * 1000 if looks else None):
                if fd == self.agent.fileno():
                    self._obey()
                elif fd == self._given.fileno():
                    if not self._take_outputs():
                        self._poll.unregister(fd)
                elif fd in ends:
                    self._poll.unregister(fd)
                    self._report(ends[fd], worker_group)
            self._show_live()
            self._terminal.pass_on()

    def _obey(self) -> None:
        try:
            orders = self.agent.receive()
        except EOFError:
            os._exit(0)  # the agent has ended or ends this world, and kills the remaining processes
        for order in map(pickle.loads, orders):
            match order:
                case TakeStacks():
                    self._show_live()  # before the answer, which implies that all output was sent
                    self.agent.send(rank_stacks.take(order, self.launch, self._pids))
                case OpenTerminal() | TerminalData():
                    local = order.rank - self._first_rank
                    self._terminal.obey(order, self._pids.get(local))

    def _show_live(self, dead: int | None = None) -> None:
        if self._live and (news := self._live.news(dead)) is not None:
            self.agent.send(news)

    def _take_outputs(self) -> bool:
        """Keep the output descriptors that ranks have sent; False if no rank will send more."""
        with contextlib.suppress(BlockingIOError):
            while given := take_output(self._given):
                local, fds = given
                self._outputs[local] = fds
                self._live.follow(self._first_rank + local)
            return False
        return True

    def _report(self, local: int, worker_group: WorkerGroup) -> None:
        self._take_outputs()  # a rank sends them before it does anything else
        pid = self._pids.pop(local)  # a dead rank has no stacks to take
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        rank = worker_group.workers[local].global_rank
        world = self.launch.world
        ranks = self._pcontext
        assert ranks is not None
        files = RankFiles(world, rank)
        log = "".join(tail(Path(path)) for path in (ranks.stdouts[local], ranks.stderrs[local]))
        keep_in = None if self.order.logs_are_temporary else files.output
        output = "".join(end_of_output(fd, keep_in) for fd in self._outputs.get(local, ()))
        progress = read_progress(files.progress)
        self._show_live(rank)
        self._terminal.close(rank)
        self.agent.send(
            Death(
                node=self.launch.node,
                world=world.id,
                rank=rank,
                pid=pid,
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                output=output,
                log=log + nccl_causes(files.nccl),
                fault=head(files.fault),
                peak_rss_bytes=usage.ru_maxrss * 1024,
                oom_kills=read_oom_kills().since(self._oom_before),
                error=error_message(Path(ranks.error_files[local])),
                ordinal=progress.ordinal,
                phase=progress.phase,
            )
        )


def main(
    order: AgentOrder, launch: Launch, agent: Pipe, store_fd: int | None, rank_main: RankMain
) -> None:
    """Entry point of the forked process: run the launcher until the world is stopped."""
    processes.set_name("mnode-elastic")
    processes.adopt_orphans()
    world = launch.world
    user_tmp = os.environ.get("TMPDIR")
    scratch = Path(world.log_dir, world.id, launch.node)
    scratch.mkdir(parents=True, exist_ok=True)
    # The launcher leaves temporary files behind when it is killed; they go into this directory.
    tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
    for name, value in launch.env.items():
        os.environ.setdefault(name, value)  # values that the user set take precedence
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[_IDENTICAL] = "1"
    elastic_pid = os.getpid()
    defaults = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    if (signals := getattr(defaults, "signals_to_handle", None)) is not None:
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signals
    newer = {}
    if any(field.name == "numa_options" for field in dataclasses.fields(WorkerSpec)):
        newer["numa_options"] = numa_options(
            launch.binding, world.shape.procs_per_node, getattr(defaults, "numa_options", None)
        )
    by_torch = newer.get("numa_options") is not None

    def rank() -> None:
        agent.close()
        if store_fd is not None:
            os.close(store_fd)
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if user_tmp is not None:
            os.environ["TMPDIR"] = user_tmp
        rank_main(launch, elastic_pid, by_torch)

    spec = WorkerSpec(
        role="default",  # as the torchrun command sets it, not as its API does
        local_world_size=world.shape.procs_per_node,
        entrypoint=rank,
        rdzv_handler=Rendezvous(
            launch.master_addr,
            launch.master_port,
            launch.node_rank,
            world.shape.nodes,
            world.id,
            timeout=0,
        ),
        max_restarts=0,
        monitor_interval=0.001,  # the watch itself waits, but torch requires more than 0
        local_addr=launch.master_addr if launch.node_rank == 0 else None,
        **newer,
    )
    logs = DefaultLogsSpecs(log_dir=str(scratch), redirects=Std.ALL)
    try:
        WatchfulAgent(spec, logs, order=order, launch=launch, agent=agent, store_fd=store_fd).run()
    except BaseException as error:
        with contextlib.suppress(OSError):
            agent.send(PartLost(launch.node, world.id, f"{type(error).__name__}: {error}"))
        raise


def numa_options(order: BindingOrder, local_size: int, default: Any) -> Any:
    """torch's NumaOptions if torch can bind as requested; None: torch must not bind.

    default: torch's own default options.
    """
    elsewhere = order.shown.emulated or order.start.cpus is not None
    if order.mode == "auto" and not elsewhere:
        return default
    if order.mode not in ("node", "exclusive") or elsewhere:
        return None
    try:
        from torch.numa.binding import AffinityMode, NumaOptions
    except ImportError:  # before torch 2.9
        return None
    if torch.cuda.device_count() != local_size or shutil.which("numactl") is None:
        return None
    return NumaOptions(AffinityMode(order.mode))
