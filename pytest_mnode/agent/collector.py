"""Imports the test modules in a process of its own, and forks the ranks that share these imports.

A child of the fork server, which stays as it was: what a module starts on import is here alone.
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
from pytest_mnode.agent.pipe import Pipe
from pytest_mnode.machine.own_threads import lost_by_fork
from pytest_mnode.protocol.agent_messages import (
    AgentOrder,
    ForkLauncher,
    ForkServerFailed,
    ForkServerReady,
)
from pytest_mnode.protocol.hub_messages import Collect

if TYPE_CHECKING:
    from pytest_mnode.agent.elastic import RankMain
    from pytest_mnode.rank.trial import Trial

_REAP_S = 1.0
_MORE_TO_COME = 2
"""After so many forks, huge pages pay for themselves: some worlds need new ranks for each test."""


@dataclass(frozen=True)
class Unfit:
    """No rank can be forked from a collector, which ends: why, by file, as far as it knows.

    One without these files may take its place.
    """

    files: dict[str, str]


class Collector:
    """tries: each module is imported by a child first, and here only where that did no harm."""

    def __init__(self, order: AgentOrder, server: Pipe, *, tries: bool) -> None:
        self.order = order
        self.server = server
        self.tries = tries

    def run(self, collect: Collect) -> None:
        """Entry of the forked process; never returns."""
        from pytest_mnode.rank import entry
        from pytest_mnode.rank.trial import Trial

        processes.set_name("mnode-collect")
        trial = Trial(lost, self._unfit) if self.tries else None
        try:
            entry.collect(
                collect,
                self.order,
                lambda session: self._serve(entry.rank_main(self.order, session), trial),
                lambda text: self.server.send(ForkServerFailed(text)),
                trial,
            )
        except EOFError:
            os._exit(0)
        except BaseException:
            text = f"could not import or collect the tests:\n{traceback.format_exc()}"
            self.server.send(ForkServerFailed(text))
        sys.stderr.flush()
        os._exit(0)

    def _serve(self, rank_main: RankMain, trial: Trial | None) -> None:
        """Called by pytest's run loop, with everything collected: fork for ever."""
        if found := lost():
            self._unfit({} if trial is None else trial.all_files(f"after all imports: {found}"))
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every page
        self.server.send(ForkServerReady(trial.found if trial else {}))
        forks, joined = 0, huge_pages.joined_one_by_one()
        while True:
            processes.reap()
            more = forks >= _MORE_TO_COME and next(joined, False)
            if select.select([self.server], [], [], 0 if more else _REAP_S)[0]:
                for message in map(pickle.loads, self.server.receive()):
                    assert isinstance(message, ForkLauncher)
                    self.server.send(fork_launcher(self.order, message, self.server, rank_main))
                    forks += 1

    def _unfit(self, files: dict[str, str]) -> NoReturn:
        self.server.send(Unfit(files))
        os._exit(0)


def lost() -> str:
    """What of this process a forked child would lack, or could not use; "" where nothing."""
    found = lost_by_fork()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found.append("a CUDA device in use")
    return ", ".join(found)
