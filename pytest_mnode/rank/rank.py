"""One rank: its place in the world, its connection to the controller, its groups and files."""

from __future__ import annotations

import contextlib
import os
from os import getpid  # a test may replace os.getpid
from typing import Any, NoReturn

from pytest_mnode.protocol.channel import UnixLine
from pytest_mnode.protocol.messages import HUB, AgentOrder, Call, Launch
from pytest_mnode.protocol.rank_files import ProgressFile, RankFiles
from pytest_mnode.rank.process_group import GroupKeeper, connection
from pytest_mnode.rank.recorder import Recorder
from pytest_mnode.rank.votes import Votes
from pytest_mnode.rank.world import World

_CONTRACT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""torchrun's variables, which are restored before each test because a test may change them."""


class Rank:
    """A rank; created in the rank's own process."""

    def __init__(self, order: AgentOrder, launch: Launch, world: World) -> None:
        self.launch = launch
        self.world = world
        self.pid = getpid()
        self.groups = GroupKeeper(world, launch.backend, launch.accelerators)
        name = f"rank/{launch.world.id}/{world.rank}"
        self.line = UnixLine(name, order.path, order.token)
        self.reply_to = HUB
        self.ordinal = -1
        self.files = RankFiles(launch.world, world.rank)
        self.progress = ProgressFile(self.files.progress)
        self.votes: dict[str, Votes] = {}
        """The votes of the running test by subject, whose keys rank 0 deletes in its teardown."""
        self._votes_store: Any = None
        self.calls = Recorder(self.files.calls, world.size)
        self._contract = {name: os.environ[name] for name in _CONTRACT if name in os.environ}

    @property
    def is_child(self) -> bool:
        """Whether this process is a child that a test forked from the rank."""
        return getpid() != self.pid

    def tell(self, method: str, *args: Any) -> None:
        """Call a method of the test, or function, that this rank runs; see `WorldTest`."""
        if self.is_child:
            self.child_left("the code that forked it")
        self.line.send(self.reply_to, Call(self.ordinal, method, (self.world.rank, *args)))

    def say_progress(self, text: str, done: int | None, total: int | None) -> None:
        """Send a test's progress to the client that runs it."""
        if not self.is_child:
            self.tell("progress", text, done, total)

    def child_left(self, what: str) -> NoReturn:
        """End a child that a test forked, because it must not send messages to the controller."""
        text = f"a forked child (pid {getpid()}) left {what}; it must end by os._exit"
        self.progress.leave_note(text)
        os._exit(1)

    def begin(self, ordinal: int, phase: str) -> None:
        """Begin the order that was received last, without the calls of an earlier test."""
        self.reply_to, self.ordinal = self.line.sender, ordinal
        self.progress.write(self.ordinal, phase)
        self.calls.begin()

    def votes_on(self, subject: str) -> Votes:
        """The votes of the running test on this subject."""
        if subject not in self.votes:
            self._votes_store = self._votes_store or connection()
            name, world = f"{self.reply_to}/{self.ordinal}/{subject}", self.world
            self.votes[subject] = Votes(self._votes_store, name, world.rank, world.size)
        return self.votes[subject]

    def close_votes(self) -> None:
        """Close the votes, because all ranks have ended the body."""
        while self.votes:
            self.votes.popitem()[1].close()

    def tidy(self) -> None:
        """Undo what imports or an order changed or left here, before waiting for the next one."""
        with contextlib.suppress(OSError):  # stacks of an earlier test do not explain the next
            os.truncate(self.files.fault, 0)
        self.restore_contract()

    def restore_contract(self) -> None:
        """Restore torchrun's variables to their values at the rank's start."""
        for name, value in self._contract.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    def receive(self, method: str = "") -> Call:
        """The next call, or the next of `method` if given."""
        while True:
            call = self.line.receive(None)
            assert isinstance(call, Call)
            if method in ("", call.method):
                return call
