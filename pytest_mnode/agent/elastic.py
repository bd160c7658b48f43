"""One process a world and node: starts its ranks by torchrun's elastic launcher, and watches them.

`torch.distributed.launcher.api` is the code behind the torchrun command. Two things are ours: the
rendezvous (who is where is decided by the hub, so there is nothing to negotiate) and the watch,
which sees a death at once and keeps the other ranks running until the hub says stop. Left alone,
the launcher polls ten times a second and ends the neighbours of a dead rank before anyone could
ask them where they were.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.elastic.agent.server import api as server_api
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.launcher import api

from pytest_mnode.machine import namespaces
from pytest_mnode.machine.cgroup import read_oom_kills
from pytest_mnode.machine.pidfd import pidfd_open
from pytest_mnode.protocol.messages import (
    Death,
    GateOrder,
    Launch,
    PartLost,
    RanksStarted,
)
from pytest_mnode.rank import binding, traces
from pytest_mnode.rank.progress import read_progress

if TYPE_CHECKING:
    from pytest_mnode.rank.session import Follower

BACKEND = "mnode"


class OurRendezvous(RendezvousHandler):
    """Group rank, world size and store as the hub decided them."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._rank = int(parameters.get("rank"))
        self._size = parameters.min_nodes
        self._store = RendezvousStoreInfo(parameters.get("addr"), int(parameters.get("port")))

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks are clients of the store of the first node's launcher, as under torchrun."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        # The launcher would use its store to agree on ranks; ours are known beforehand.
        return RendezvousInfo(HashStore(), self._rank, self._size, self._store)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return str(self._run_id)

    def shutdown(self) -> bool:
        return True


class WatchfulAgent(LocalElasticAgent):
    """torch's agent of one node, with a watch that sees deaths at once."""

    order: GateOrder
    launch: Launch
    agent: Connection
    listening: socket.socket | None

    @contextlib.contextmanager
    def record_duration(self, state: str) -> Iterator[None]:  # noqa: ARG002  torch's signature
        yield

    def _assign_worker_ranks(
        self,
        store: object,  # noqa: ARG002  torch's signature
        group_rank: int,
        group_world_size: int,
        spec: WorkerSpec,
    ) -> list[Worker]:
        size = group_world_size * spec.local_world_size
        first = group_rank * spec.local_world_size
        return [
            Worker(local, first + local, first + local, size, size)
            for local in range(spec.local_world_size)
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._captured_r, self._captured_w = os.pipe()
        os.set_blocking(self._captured_r, False)
        os.environ["MNODE_CAPTURED_FD"] = str(self._captured_w)
        self._oom_before = read_oom_kills()
        ids: dict[int, Any] = super()._start_workers(worker_group)
        os.close(self._captured_w)
        if self.listening is not None:
            # Only now: its server thread must not be there when ranks are forked.
            self._world_store = TCPStore(
                self.launch.master_addr,
                self.launch.master_port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=self.listening.detach(),
            )
        self._pids = {int(local): int(pid) for local, pid in ids.items()}
        self._fds = {pidfd_open(pid): local for local, pid in self._pids.items()}
        self._outputs: dict[int, list[int]] = {}
        self._poll = select.poll()
        for fd in (*self._fds, self._captured_r, self.agent.fileno()):
            self._poll.register(fd, select.POLLIN)
        self.agent.send(RanksStarted(self.launch.node, self.launch.world.id, self._pids))
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        while True:
            for fd, _ in self._poll.poll(1000):
                if fd == self.agent.fileno():
                    # Either end of this pipe closing means stop; the agent kills what is left.
                    os._exit(0)
                elif fd == self._captured_r:
                    self._open_outputs()
                else:
                    self._poll.unregister(fd)
                    self._report(self._fds[fd], worker_group)

    def _get_fq_hostname(self) -> str:
        # torch looks itself up in the DNS for its event log, which nobody reads here.
        return socket.gethostname()

    def _open_outputs(self) -> None:
        """Hold the files that ranks' captured output goes to, which die with the ranks."""
        ranks = os.read(self._captured_r, 4096)
        if not ranks:
            self._poll.unregister(self._captured_r)
        for local in ranks:
            with contextlib.suppress(OSError):
                self._outputs[local] = [
                    os.open(f"/proc/{self._pids[local]}/fd/{fd}", os.O_RDONLY) for fd in (1, 2)
                ]

    def _report(self, local: int, worker_group: WorkerGroup) -> None:
        pid = self._pids[local]
        # Looked at, not reaped: reaping is the launcher's, if it ever gets there.
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        exited = info.si_code == os.CLD_EXITED
        rank = worker_group.workers[local].global_rank
        world = self.launch.world
        ranks = self._pcontext
        assert ranks is not None
        log = "".join(
            traces.tail(Path(path)) for path in (ranks.stdouts[local], ranks.stderrs[local])
        )
        log += traces.nccl_causes(traces.nccl_file(world, rank))
        output = "".join(self._output(rank, fd) for fd in self._outputs.get(local, ()))
        place = read_progress(traces.mark_file(world, rank))
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        self.agent.send(
            Death(
                node=self.launch.node,
                world=world.id,
                rank=rank,
                pid=pid,
                code=info.si_status if exited else None,
                signal=None if exited else info.si_status,
                output=output,
                log=log,
                fault=traces.head(traces.fault_file(world, rank)),
                peak_rss_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
                oom_kills=read_oom_kills().since(self._oom_before),
                error=traces.error_message(Path(ranks.error_files[local])),
                ordinal=place.ordinal,
                phase=place.phase,
            )
        )

    def _output(self, rank: int, fd: int) -> str:
        """The end of what a dead rank's test printed; all of it is kept, for it dies with `fd`."""
        tail = traces.tail_of_fd(fd)
        if not tail.startswith(traces.CUT):
            return tail
        if self.order.logs_are_temporary:
            return tail.replace(
                traces.CUT, f"{traces.CUT} (--mnode-log-dir=DIR keeps all of it)", 1
            )
        path = traces.world_dir(self.launch.world) / f"rank{rank}.output.log"
        with contextlib.suppress(OSError), path.open("ab") as kept:
            offset = 0
            while data := os.pread(fd, 2**20, offset):
                kept.write(data)
                offset += len(data)
            return tail.replace(traces.CUT, f"{traces.CUT} (all of it is in {path})", 1)
        return tail


def main(
    order: GateOrder,
    launch: Launch,
    agent: Connection,
    listening: socket.socket | None,
    follower: Follower,
) -> None:
    """Entry of the forked process: runs the launcher until the world is stopped."""
    namespaces.set_process_name("mnode-elastic")
    world = launch.world
    user_tmp = os.environ.get("TMPDIR")
    scratch = traces.world_dir(world) / launch.node
    scratch.mkdir(parents=True, exist_ok=True)
    # The launcher leaves temporary files behind when it is killed: keep them in our folder.
    tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
    for name, value in launch.env.items():
        os.environ.setdefault(name, value)  # what the user pinned is left alone
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    elastic_pid = os.getpid()

    def rank() -> None:
        from pytest_mnode.rank import loop as rank_module

        agent.close()
        if listening is not None:
            listening.close()
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if user_tmp is not None:
            os.environ["TMPDIR"] = user_tmp
        rank_module.main(order, launch, follower, elastic_pid, by_torch)

    WatchfulAgent.order = order
    WatchfulAgent.launch = launch
    WatchfulAgent.agent = agent
    WatchfulAgent.listening = listening
    # launch_agent names its agent class itself, and tells of every step to an event log that
    # nobody reads, each time with a look-up of this machine's name. This process runs nothing else.
    server_api.record = lambda *_: None  # type: ignore[attr-defined]
    api.LocalElasticAgent = WatchfulAgent  # type: ignore[attr-defined]
    config = api.LaunchConfig(
        min_nodes=world.shape.nodes,
        max_nodes=world.shape.nodes,
        nproc_per_node=world.shape.procs_per_node,
        run_id=world.id,
        rdzv_backend=BACKEND,
        rdzv_configs={
            "rank": launch.node_rank,
            "addr": launch.master_addr,
            "port": launch.master_port,
        },
        max_restarts=0,
        monitor_interval=0.001,  # the watch itself waits; torch wants more than 0
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch), redirects=Std.ALL),
        local_addr=launch.master_addr if launch.node_rank == 0 else None,
    )
    # One of us binds, or nobody.
    config.numa_options = binding.torch_options(
        launch.binding, world.shape.procs_per_node, getattr(config, "numa_options", None)
    )
    by_torch = config.numa_options is not None
    try:
        _run(config, rank)
    except ChildFailedError:
        pass
    except BaseException as error:
        with contextlib.suppress(OSError):
            agent.send(PartLost(launch.node, world.id, f"{type(error).__name__}: {error}"))
        raise


def _run(config: Any, rank: Callable[[], None]) -> None:
    api.elastic_launch(config, rank)()
