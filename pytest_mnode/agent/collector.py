"""Imports the test modules in a process of its own, and forks the ranks that share these imports.

It is a child of the fork server, so that threads or devices that a module starts on import do not
affect the fork server.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pytest_mnode import processes
from pytest_mnode.agent import huge_pages
from pytest_mnode.agent.forking import fork_launcher
from pytest_mnode.env_reads import READS
from pytest_mnode.machine.own_threads import lost_by_fork
from pytest_mnode.protocol.agent_messages import (
    AgentOrder,
    ForkLauncher,
    ForkServerFailed,
    ForkServerReady,
)
from pytest_mnode.protocol.hub_messages import Collect
from pytest_mnode.protocol.pipe import Pipe

if TYPE_CHECKING:
    from pytest_mnode.agent.elastic import RankMain
    from pytest_mnode.rank.trial import Trial

_REAP_S = 1.0
_MORE_TO_COME = 2
"""Forks after which huge pages pay off, because some worlds need new ranks for each test."""


@dataclass(frozen=True)
class Unfit:
    """Last message of a collector that no rank can be forked from.

    files: the files that cause this, as far as known, each with the reason. Without them, another
    collector may be fit.
    """

    files: dict[str, str]


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
                lambda text: self.server.send(ForkServerFailed(text)),
                trial,
            )
        except BaseException:
            text = f"could not import or collect the tests:\n{traceback.format_exc()}"
            self.server.send(ForkServerFailed(text))
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
        self.server.send(ForkServerReady(trial.found if trial else {}))
        forks, joined = 0, huge_pages.joined_one_by_one()
        while True:
            processes.reap()
            more = forks >= _MORE_TO_COME and next(joined, False)
            if select.select([self.server], [], [], 0 if more else _REAP_S)[0]:
                for message in map(pickle.loads, self._orders()):
                    assert isinstance(message, ForkLauncher)
                    self.server.send(fork_launcher(self.order, message, self.server, rank_main))
                    forks += 1

    def _orders(self) -> list[bytes]:
        try:
            return self.server.receive()
        except EOFError:  # the run has ended
            processes.kill_descendants()  # ranks, which share temporary directories of modules
            _end()

    def _unfit(self, files: dict[str, str]) -> NoReturn:
        self.server.send(Unfit(files))
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
