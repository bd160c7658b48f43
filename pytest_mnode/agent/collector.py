"""Imports the test modules in a process of its own, and forks the ranks that share these imports.

It is a child of the fork server, so that threads or devices that a module starts on import do not
affect the fork server.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import re
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_mnode import processes
from pytest_mnode.env_reads import READS
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
_MORE_TO_COME = 2
"""Forks after which huge pages pay off, because some worlds need new ranks for each test."""


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
        forks, joined = 0, joined_one_by_one()
        while True:
            processes.reap()
            more = forks >= _MORE_TO_COME and next(joined, False)
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
