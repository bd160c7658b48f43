"""How ranks find out in a store that all of them are there, or who is not.

The store may be older than the ranks: torchrun keeps it when it starts ranks anew, and counts
restarts by node, so that the count is no name that all ranks share. Meetings are therefore numbered
in the store itself, and what ranks left there that were killed in a meeting must count for nothing:

- Rank 0 opens the next meeting, and ends the one before if that never ended. The others go to the
  one that is open, or wait for the one to come.
- Only what is announced after the opening counts, and only rank 0 may say that all are there: in
  a meeting whose rank 0 is gone nothing is ever decided, until the next rank 0 ends it.
- Whoever reaches its limit first calls the roll. Who answers is alive, and the line that names the
  others is everybody's error. Who came to the next meeting only, in a store that outlives the one
  that failed, is told what was said there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.absent import Comer, came_late, never_came
from pytest_mnode.errors import TimeLimitError, WorldError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

PREFIX = "mnode-meet"
_OPENED = f"{PREFIX}/opened"
_OPEN, _ALL, _NEXT, _CALL = "open", "all", "next", "call"
_ROLL_S = 0.5
"""How long those who are alive have to answer the roll."""
_FOUND_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Gathering:
    """One rank's side of it.

    until: when this rank gives up, by the monotonic clock; within_s: the same for messages.
    keeps_store: the store ends with this process.
    """

    store: TCPStore
    rank: int
    size: int
    within_s: float
    until: float
    keeps_store: bool

    def come(self) -> int:
        """The number of the meeting, once all are there.

        Raises TimeLimitError that names who never came, WorldError where the store was lost or a
        second process is rank 0.
        """
        from torch.distributed import DistNetworkError

        try:
            number = self._first()
            while not self._all_in(f"{PREFIX}/{number}"):
                number += 1
        except DistNetworkError:
            raise WorldError(
                f"{me(self.rank, self.size)} lost the store while it waited for the others: "
                "rank 0, or the torchrun that keeps it, ended"
            ) from None
        return number

    def _first(self) -> int:
        if self.rank > 0:
            number = max(1, self.store.add(_OPENED, 0))
            while self._is_over(number):
                number += 1
            return number
        number = self.store.add(_OPENED, 1)
        while self._is_over(number):
            number = self.store.add(_OPENED, 1)
        for key in ("opening", "end") if number > 1 else ():
            self.store.compare_set(f"{PREFIX}/{number - 1}/{key}", "", _NEXT)
        self.store.compare_set(f"{PREFIX}/{number}/opening", "", _OPEN)
        return number

    def _is_over(self, number: int) -> bool:
        return bool(self.store.check([f"{PREFIX}/{number}/end"]))

    def _all_in(self, at: str) -> bool:
        """Whether this meeting ended with all of them there; False: it is on to the next one."""
        news = self._wait(at, "opening")
        if news == _OPEN:
            first = self.store.add(f"{at}/times/{self.rank}", 1) == 1
            if first and self.store.add(f"{at}/came", 1) == self.size:
                self.store.compare_set(f"{at}/full", "", _ALL)
            if self.rank == 0 and self._wait(at, "full") == _ALL:
                self.store.compare_set(f"{at}/end", "", _ALL)
            news = self._wait(at, "end")
        if news == _CALL:
            raise TimeLimitError(self._answer_roll(at))
        if news == _NEXT and self.rank == 0:
            raise WorldError(
                f"{me(self.rank, self.size)} waited, and another process came as rank 0: "
                "RANK must be different in every process"
            )
        return news == _ALL

    def _wait(self, at: str, key: str) -> str:
        """What this key says, once it does; at the limit the roll is called."""
        from torch.distributed import DistNetworkError

        try:
            self.store.wait([f"{at}/{key}"], left(self.until))
        except DistNetworkError:
            raise
        except RuntimeError:  # the limit: of a kind of its own in some versions only
            for one in ("opening", "full", "end"):
                self.store.compare_set(f"{at}/{one}", "", _CALL)
            self.store.compare_set(f"{at}/caller", "", str(self.rank))
        return self.store.get(f"{at}/{key}").decode()

    def _answer_roll(self, at: str) -> str:
        """The line that names who is missing, made by the first who called."""
        node = socket.gethostname()
        times = self.store.add(f"{at}/answers/{self.rank}", 1)
        said = {"node": node, "local_size": _local_size(), "place": f"{node} (pid {os.getpid()})"}
        self.store.set(f"{at}/answer/{self.rank}/{times}", json.dumps(said))
        self.store.add(f"{at}/answered", 1)
        caller = self.store.get(f"{at}/caller").decode() == str(self.rank) and times == 1
        if caller:
            self._wait_for_answers(at)
            self.store.set(f"{at}/found", self._who_is_missing(at))
        limit = timedelta(seconds=_FOUND_S)
        self.store.wait([f"{at}/found"], limit)
        line = self.store.get(f"{at}/found").decode()
        self.store.add(f"{at}/read", 1)
        if self.keeps_store:
            self._let_all_read(at)
        return line

    def _wait_for_answers(self, at: str) -> None:
        end = time.monotonic() + _ROLL_S
        while time.monotonic() < end and self.store.add(f"{at}/answered", 0) < self.size:
            time.sleep(_POLL_S)

    def _who_is_missing(self, at: str) -> str:
        came: dict[int, Comer] = {}
        twice: dict[int, str] = {}
        for rank in range(self.size):
            if not self.store.check([f"{at}/answers/{rank}"]):
                continue
            times = self.store.add(f"{at}/answers/{rank}", 0)
            said = [json.loads(self.store.get(f"{at}/answer/{rank}/{n + 1}")) for n in range(times)]
            came[rank] = Comer(said[0]["node"], said[0]["local_size"])
            if times > 1:
                twice[rank] = " and ".join(one["place"] for one in said)
        before = self._before(at, came)
        if before is not None:
            return came_late(self.size, came, before)
        return never_came(self.size, came, self.within_s, twice)

    def _before(self, at: str, came: Collection[int]) -> str | None:
        """What was found in the meeting before, where it failed and none of these was in it."""
        before = f"{PREFIX}/{int(at.rpartition('/')[2]) - 1}"
        if not self.store.check([f"{before}/found"]):
            return None
        if any(self.store.check([f"{before}/answers/{rank}"]) for rank in came):
            return None
        return self.store.get(f"{before}/found").decode()

    def _let_all_read(self, at: str) -> None:
        """The others shall have read before the store ends with this process."""
        end = time.monotonic() + 4 * _ROLL_S
        while time.monotonic() < end:
            if self.store.add(f"{at}/read", 0) >= self.store.add(f"{at}/answered", 0):
                return
            time.sleep(_POLL_S)


def me(rank: int, size: int) -> str:
    """ "rank 2 of 4 on node1"."""
    return f"rank {rank} of {size} on {socket.gethostname()}"


def left(until: float) -> timedelta:
    """Time left; never so little that torch takes it for none."""
    return timedelta(seconds=max(0.1, until - time.monotonic()))


def _local_size() -> int | None:
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) > 0 else None
