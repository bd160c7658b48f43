"""Imports torch and the test modules once, then forks an elastic launcher for each part of a world.

Stays single-threaded and never touches a device: both would break in a forked child.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_mnode import processes
from pytest_mnode.agent.orders import sys_path_here
from pytest_mnode.agent.pipe import Pipe
from pytest_mnode.errors import WorldError
from pytest_mnode.machine import namespaces
from pytest_mnode.protocol.agent_messages import (
    AgentOrder,
    ForkLauncher,
    ForkServerFailed,
    ForkServerReady,
    Launch,
    LauncherForked,
    StartForkServer,
)
from pytest_mnode.protocol.hub_messages import Collect

if TYPE_CHECKING:
    from pytest_mnode.agent.elastic import RankMain

_REAP_S = 1.0


def main(order: AgentOrder, agent: Pipe) -> None:
    """Entry of the forked process: waits until ranks are wanted, and never returns."""
    processes.set_name("mnode-fork")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    server = ForkServer(order, agent)
    try:
        server.wait_for(StartForkServer)
        with processes.made_to_stay():
            server.import_torch()
        server.collect(server.wait_for(Collect))
    except EOFError:
        os._exit(0)
    except WorldError as error:
        server.fail(str(error))
    except BaseException:
        server.fail(f"could not import or collect the tests:\n{traceback.format_exc()}")
    sys.stderr.flush()
    os._exit(0)


class ForkServer:
    """Imports, collects, forks."""

    def __init__(self, order: AgentOrder, agent: Pipe) -> None:
        self.order = order
        self.agent = agent
        self._received: list[Any] = []

    def fail(self, text: str) -> None:
        self.agent.send(ForkServerFailed(text))

    def wait_for(self, kind: type[Any]) -> Any:
        """The next message of this kind; others that came before it are kept for later."""
        while True:
            for message in self._received:
                if isinstance(message, kind):
                    self._received.remove(message)
                    return message
            self._received += map(pickle.loads, self.agent.receive())

    def import_torch(self) -> None:
        try:
            # What ranks would import one by one after the fork, each for itself.
            import encodings.idna  # noqa: F401
            import multiprocessing.popen_fork
            import multiprocessing.queues  # noqa: F401

            from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: F401

            from pytest_mnode.agent import elastic  # noqa: F401
            from pytest_mnode.rank import entry
        except ImportError as error:
            raise WorldError(
                f"torch cannot be imported by {sys.executable}: {error}; install torch>=2.6"
            ) from None
        entry.prepare()

    def collect(self, collect: Collect) -> None:
        from pytest_mnode.rank import entry

        if self.order.remote:  # there, temporary files of ranks are removed with the run
            collect = replace(collect, basetemp=f"{self.order.run_dir}/tmp")
        os.chdir(collect.cwd)
        sys.path[:] = sys_path_here(collect.sys_path, self.order)
        entry.collect(collect, self.order, self.serve, self.fail)

    def serve(self, rank_main: RankMain) -> None:
        """Called by pytest's run loop, with everything collected: fork for ever."""
        check_can_fork("the test modules were imported")
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every page
        self.agent.send(ForkServerReady())
        while True:
            processes.reap()
            if select.select([self.agent], [], [], _REAP_S)[0]:
                for payload in self.agent.receive():
                    message = pickle.loads(payload)
                    if isinstance(message, ForkLauncher):
                        self._fork(message.launch, message.namespace_pid, rank_main)

    def _fork(self, launch: Launch, namespace_pid: int | None, rank_main: RankMain) -> None:
        """Fork the elastic launcher, inside the namespaces of its node where it has any."""
        to_agent = self.agent.fds.popleft()
        store = self.agent.fds.popleft() if launch.node_rank == 0 else None
        server_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.agent.close()
            processes.die_with_parent(server_pid)

            def elastic() -> None:
                from pytest_mnode.agent import elastic

                elastic.main(self.order, launch, Pipe.from_fd(to_agent), store, rank_main)

            if namespace_pid is None:
                processes.run_and_exit(elastic)
            processes.run_and_exit(lambda: _inside(namespace_pid, elastic))
        os.close(to_agent)
        if store is not None:
            os.close(store)
        self.agent.send(LauncherForked(launch.node, launch.world.id, pid))


def _inside(namespace_pid: int, function: Callable[[], None]) -> None:
    """Call `function` in a child inside the namespaces of a node, and stay as its parent."""
    namespaces.enter(namespace_pid)
    outside = os.getpid()
    inside = os.fork()
    if inside == 0:  # only a child is in the PID namespace
        processes.die_with_parent(outside)
        processes.run_and_exit(function)
    processes.close_all_but(set())
    processes.set_name("mnode-enter")
    os.waitpid(inside, 0)


def check_can_fork(when: str) -> None:
    """Raise WorldError if a forked child would inherit a thread's locks or a device's state."""
    names = processes.thread_names()
    if len(names) > 1:
        python = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        raise WorldError(
            f"after {when} {len(names) - 1} more threads run ({', '.join(python or names[1:])}); "
            "ranks are forked from this process and need it single-threaded: start threads in a "
            "fixture or in the test, not when a module is imported"
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise WorldError(
            f"after {when} a CUDA device is in use; ranks are forked from this process and could "
            "not use it: touch devices in a fixture or in the test, not when a module is imported"
        )
