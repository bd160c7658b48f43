"""Imports torch once, then has an elastic launcher forked for each part of a world.

Stays single-threaded and never touches a device: both would break in a forked child. Test modules
may do either when they are imported, so a child, the collector, imports them and forks the ranks of
all modules that it can share: threads or devices that a module starts on import do not affect the
fork server. Ranks of the other modules are forked here and import them themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import os
import pickle
import re
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_mnode import processes
from pytest_mnode.agent.orders import sys_path_here
from pytest_mnode.env_reads import READS
from pytest_mnode.errors import WorldError
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.own_threads import lost_by_fork
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import (
    AgentOrder,
    Call,
    Collect,
    Collected,
    Launch,
)

if TYPE_CHECKING:
    from pytest_mnode.agent.elastic import RankMain
    from pytest_mnode.rank.trial import Trial

_REAP_S = 1.0


def main(order: AgentOrder, agent: Pipe) -> None:
    """Entry point of the forked process: wait until ranks are needed; never returns."""
    processes.set_name("mnode-fork")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    server = ForkServer(order, agent)
    try:
        server.wait_for(Call)  # import_torch
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
        from pytest_mnode.rank import binding, entry, exit_handlers

        exit_handlers.disown()  # torch's 136 finalizers take 25 ms
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


_MORE_TO_COME = 2
"""Forks after which preparations pay off, because some worlds need new ranks for each test."""


class Collector:
    """Collects the tests and forks ranks.

    tries: import each module in a child first, and here only if the child stayed fit for forks.
    """

    def __init__(self, order: AgentOrder, server: Pipe, *, tries: bool) -> None:
        self.order = order
        self.server = server
        self.tries = tries

    def run(self, collect: Collect) -> None:
        """Entry point of the forked process; never returns."""
        from pytest_mnode.rank import entry
        from pytest_mnode.rank.trial import Trial

        processes.set_name("mnode-collect")
        trial = Trial(lost, self._unfit) if self.tries else None
        try:
            entry.collect(
                collect,
                self.order,
                lambda session: self._serve(
                    entry.rank_main(self.order, session), trial, collect.files
                ),
                lambda text: self.server.send(Collected(failure=text)),
                trial,
            )
        except BaseException:
            text = f"could not import or collect the tests:\n{traceback.format_exc()}"
            self.server.send(Collected(failure=text))
        _end()

    def _serve(self, rank_main: RankMain, trial: Trial | None, files: frozenset[str]) -> None:
        """Fork for ever; pytest's run loop calls this when all tests are collected."""
        from pytest_mnode.rank.trial import read_by, starts

        if found := lost():
            self._unfit({} if trial is None else trial.all_files(starts("some import", found)))
        readers = read_by(files, alone=trial is None)
        if readers or READS.shared:  # of modules that share one, only the first importer is known
            self._unfit(readers)
        gc.collect()
        gc.freeze()  # a garbage collection in a child would write to, and so copy, every page
        self.server.send(Collected(trial.found if trial else {}))
        forks, prepared = 0, prepared_step_by_step()
        while True:
            processes.reap()
            more = forks >= _MORE_TO_COME and next(prepared, False)
            if select.select([self.server], [], [], 0 if more else _REAP_S)[0]:
                for message in map(pickle.loads, self._orders()):
                    assert isinstance(message, Launch)
                    self.server.send(fork_launcher(self.order, message, self.server, rank_main))
                    forks += 1

    def _orders(self) -> list[bytes]:
        try:
            return self.server.receive()
        except EOFError:  # the run has ended
            processes.kill_descendants()  # ranks, which share temporary directories of modules
            _end()

    def _unfit(self, files: dict[str, str]) -> NoReturn:
        self.server.send(Collected(files, fit=False))
        _end()


def _end() -> NoReturn:
    from pytest_mnode.rank import exit_handlers

    exit_handlers.finalize()
    sys.stderr.flush()
    os._exit(0)


def lost() -> str:
    """Resources of this process that a forked child would lack or could not use; "" if none."""
    found = lost_by_fork()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found.append("a CUDA device in use")
    return ", ".join(found)


def fork_launcher(
    order: AgentOrder,
    launch: Launch,
    source: Pipe,
    rank_main: RankMain,
    others: Sequence[Pipe] = (),
) -> Call:
    """Fork the elastic launcher of a node's part of a world, in the namespaces of the node.

    source: pipe of the message and its descriptors, which the child closes. others: further pipes
    that the child closes.
    """
    namespace_pid = launch.namespace_pid
    to_agent, store = take_fds(launch, source)
    server_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        for pipe in (source, *others):
            pipe.close()
        processes.die_with_parent(server_pid)

        def elastic() -> None:
            from pytest_mnode.agent import elastic

            elastic.main(order, launch, Pipe.from_fd(to_agent), store, rank_main)

        if namespace_pid is None:
            processes.run_and_exit(elastic)
        processes.run_and_exit(lambda: _inside(namespace_pid, elastic))
    os.close(to_agent)
    if store is not None:
        os.close(store)
    return Call(0, "forked", (launch.node, launch.world.id, pid))


def take_fds(launch: Launch, source: Pipe) -> tuple[int, int | None]:
    """The descriptors of a message: its pipe to the agent and, on the first node, its store."""
    return source.fds.popleft(), source.fds.popleft() if launch.node_rank == 0 else None


def _inside(namespace_pid: int, function: Callable[[], None]) -> None:
    """Call `function` in a child inside the namespaces of a node, and stay as its parent."""
    namespaces.enter(namespace_pid)
    outside = os.getpid()
    inside = os.fork()
    if inside == 0:  # only a child is inside the PID namespace
        processes.die_with_parent(outside)
        processes.run_and_exit(function)
    processes.close_all_but(set())
    processes.set_name("mnode-enter")
    os.waitpid(inside, 0)


_MADV_COLLAPSE = 25
_BYTES = 1 << 21
_PRIVATE = re.compile(r"(\w+)-(\w+) rw-p \w+ 00:00 0 *(?:\[heap\])?$")
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def prepared_step_by_step() -> Iterator[bool]:
    """Do once what all later children would pay for; yields True per step of some milliseconds.

    The first step has inspect note the files of all modules, which pytest needs to show the source
    of a failure: 27 ms in each rank that fails. Not if it would import a lazy module here.
    """
    if not any("Lazy" in type(module).__name__ for module in sys.modules.values()):
        with contextlib.suppress(Exception):  # of a module that has no attributes
            inspect.getmodule(compile("", "<of no module>", "exec"))
        yield True
    yield from joined_one_by_one()


def joined_one_by_one() -> Iterator[bool]:
    """Join pages of this process into huge pages, 2 MiB at each step, which takes some
    milliseconds; yields True per step.

    A process that has imported torch has some 70,000 private pages, and a fork copies an entry for
    each: 9 ms per rank, one rank after another. With huge pages a fork takes 2.5 ms. The cost of
    the pages that a child writes to stays the same.

    A step has no effect on kernels without MADV_COLLAPSE (before Linux 6.1) or without free memory
    for a huge page.
    """
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        if (match := _PRIVATE.match(line)) is not None:
            first, end = (int(word, 16) for word in match.groups())
            for start in range(-(-first // _BYTES) * _BYTES, end - _BYTES + 1, _BYTES):
                _libc.madvise(start, _BYTES, _MADV_COLLAPSE)
                yield True
