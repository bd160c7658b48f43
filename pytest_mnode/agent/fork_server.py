"""Imports torch once, then has an elastic launcher forked for each part of a world.

Stays single-threaded and never touches a device: both would break in a forked child. Test modules
may do either when they are imported, so a child, the collector, imports them and forks the ranks of
all modules that it can share. Ranks of the other modules are forked here and import them
themselves.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_mnode import processes
from pytest_mnode.agent.collector import Collector, fork_launcher, lost, take_fds
from pytest_mnode.agent.orders import sys_path_here
from pytest_mnode.errors import WorldError
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import (
    AgentOrder,
    Collect,
    Collected,
    Launch,
    StartForkServer,
)

if TYPE_CHECKING:
    from pytest_mnode.agent.elastic import RankMain

_REAP_S = 1.0


def main(order: AgentOrder, agent: Pipe) -> None:
    """Entry point of the forked process: wait until ranks are needed; never returns."""
    processes.set_name("mnode-fork")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    server = ForkServer(order, agent)
    try:
        server.wait_for(StartForkServer)
        with processes.made_to_stay():
            server.import_torch()
        server.serve(server.wait_for(Collect))
    except EOFError:
        server.end()
    except WorldError as error:
        server.fail(str(error))
    except BaseException:
        server.fail(f"could not import or collect the tests:\n{traceback.format_exc()}")
    sys.stderr.flush()
    os._exit(0)


def import_modules() -> None:
    """Import torch, and what otherwise each rank would import for itself after the fork."""
    import encodings.idna  # noqa: F401
    import multiprocessing.popen_fork
    import multiprocessing.queues  # noqa: F401

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: F401

    from pytest_mnode.agent import elastic  # noqa: F401
    from pytest_mnode.rank import binding, entry  # noqa: F401


class ForkServer:
    """Imports torch, has a collector import the tests, and forks ranks that import for themselves.

    order: the agent's order. agent: the pipe to the agent.
    """

    def __init__(self, order: AgentOrder, agent: Pipe) -> None:
        self.order = order
        self.agent = agent
        self._received: list[Any] = []
        self._collector: Pipe | None = None
        self._collector_pid = 0

    def fail(self, text: str) -> None:
        self.agent.send(Collected(failure=text))

    def end(self) -> None:
        """Wait until the collector has removed its temporary directories; the agent has a limit."""
        if self._collector is not None:
            self._collector.close()
            os.waitpid(self._collector_pid, 0)

    def wait_for(self, kind: type[Any]) -> Any:
        """The next message of this kind; messages that arrive before it are kept for later."""
        while True:
            for message in self._received:
                if isinstance(message, kind):
                    self._received.remove(message)
                    return message
            self._received += map(pickle.loads, self.agent.receive())

    def import_torch(self) -> None:
        try:
            import_modules()
        except ImportError as error:
            raise WorldError(
                f"torch cannot be imported by {sys.executable}: {error}; install torch>=2.6"
            ) from None
        from pytest_mnode.rank import binding, entry

        entry.prepare()
        binding.memories()

    def serve(self, collect: Collect) -> None:
        """Have the tests collected, then serve requests for ranks for ever."""
        if found := lost():
            raise WorldError(
                f"{found}, after torch was imported; ranks are forked from this process and would "
                "not have it; check sitecustomize, .pth files and PYTHONSTARTUP of this Python"
            )
        if self.order.remote:  # temporary files of ranks there are removed with the run
            collect = replace(collect, basetemp=f"{self.order.run_dir}/tmp")
        os.chdir(collect.cwd)
        sys.path[:] = sys_path_here(collect.sys_path, self.order)
        self.agent.send(Collected(self._have_collected(collect)))
        from pytest_mnode.rank import entry

        own = entry.importing_rank_main(self.order, collect)
        while True:
            sources = [self.agent, *([self._collector] if self._collector else [])]
            for source in select.select(sources, [], [], _REAP_S)[0]:
                if source is self._collector:
                    for payload in self._from_collector():
                        self.agent.send_bytes(payload)
                    continue
                for message in map(pickle.loads, self.agent.receive()):
                    if isinstance(message, Launch):
                        self._launch(message, own)
            self._reap()

    def _launch(self, message: Launch, own: RankMain) -> None:
        if self._collector is None or message.own_imports:
            others = [self._collector] if self._collector else []
            self.agent.send(fork_launcher(self.order, message, self.agent, own, others))
            return
        fds = [fd for fd in take_fds(message, self.agent) if fd is not None]
        # If the collector has ended, its EOF tells how.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._collector.send(message, fds)
        for fd in fds:
            os.close(fd)

    def _have_collected(self, collect: Collect) -> dict[str, str]:
        """Start a collector that ranks can be forked from; returns the files that it left out.

        The first collector imports all files. If that makes it unfit for forks, the next one tries
        each import in a child; it too is replaced if conftest.py files made it unfit.
        """
        own: dict[str, str] = {}
        tries = False
        while files := collect.files - own.keys():
            word = self._first_word_of_collector(collect.only(files), tries)
            if word.failure:
                raise WorldError(word.failure)
            own |= word.own_imports
            if word.fit:
                return own
            if tries and not word.own_imports.keys() & files:
                raise WorldError("ranks cannot be forked from the process that collects tests")
            tries = True
        self._collector = None
        return own

    def _first_word_of_collector(self, collect: Collect, tries: bool) -> Collected:
        ours, theirs = Pipe.pair()
        server_pid = os.getpid()
        self._collector_pid = os.fork()
        if self._collector_pid == 0:
            ours.close()
            self.agent.close()
            processes.die_with_parent(server_pid)
            Collector(self.order, theirs, tries=tries).run(collect)
        theirs.close()
        self._collector = ours
        while not (payloads := self._from_collector()):
            pass
        word: Collected = pickle.loads(payloads[0])
        return word

    def _from_collector(self) -> list[bytes]:
        assert self._collector is not None
        try:
            return self._collector.receive()
        except EOFError:
            _, status = os.waitpid(self._collector_pid, 0)
            _end_as(status)

    def _reap(self) -> None:
        for pid, status in processes.reap():
            if self._collector is not None and pid == self._collector_pid:
                _end_as(status)


def _end_as(status: int) -> NoReturn:
    """End as the collector ended, because the agent reports how the fork server ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # raised for SIGKILL, which has no handler
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the collector's core dump is enough
        os.kill(os.getpid(), -code)
    os._exit(code)
