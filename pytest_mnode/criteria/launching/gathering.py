"""Protocol by which ranks agree in a store that all have come, or find out which are missing.

The store may be older than the ranks: torchrun keeps it when it restarts ranks, and counts restarts
by node, so that the ranks share no restart count. Meetings are therefore numbered in the store, and
keys of ranks that were killed in an earlier meeting must not count:

- Rank 0 opens the next meeting, and ends the previous one if that never ended. The others go to the
  open meeting, or wait for the next.
- Only ranks that announce themselves after the opening count, and only rank 0 may declare a meeting
  complete: a meeting whose rank 0 is gone stays undecided until the next rank 0 ends it.
- The first rank that reaches its limit calls the roll. Ranks that answer are alive; all of them
  raise the same line, which names the others. A rank that comes only to the next meeting, in a
  store that outlives the failed one, raises the line of the failed meeting as well.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_mnode.errors import TimeLimitError, WorldError
from pytest_mnode.outcome.describe import ranks_text

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

PREFIX = "mnode-meet"
_OPENED = f"{PREFIX}/opened"
_OPEN, _ALL, _NEXT, _CALL = "open", "all", "next", "call"
_ROLL_S = 0.5
"""Time that ranks may take to answer the roll."""
_FOUND_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Gathering:
    """One rank's side of a meeting.

    until: when this rank gives up, by the monotonic clock. within_s: its limit, for messages.
    hosts_store: whether the store is in this process, and ends with it.
    """

    store: TCPStore
    rank: int
    size: int
    within_s: float
    until: float
    hosts_store: bool

    def wait_for_all(self) -> int:
        """Wait until all ranks have come; the number of the meeting.

        Raises TimeLimitError that names the ranks that never came, WorldError if the store was lost
        or a second process is rank 0.
        """
        from torch.distributed import DistNetworkError

        try:
            number = self._first()
            while not self._all_in(f"{PREFIX}/{number}"):
                number += 1
        except DistNetworkError:
            raise WorldError(
                f"{rank_text(self.rank, self.size)} lost the store while it waited for the others: "
                "rank 0, or the torchrun that hosts it, ended"
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
        """Whether this meeting is complete; False: go on to the next one."""
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
                f"{rank_text(self.rank, self.size)} waited, but another process joined as rank 0: "
                "RANK must be different in every process"
            )
        return news == _ALL

    def _wait(self, at: str, key: str) -> str:
        """The value of this key, once it is set; at the limit this rank calls the roll."""
        from torch.distributed import DistNetworkError

        try:
            self.store.wait([f"{at}/{key}"], time_left(self.until))
        except DistNetworkError:
            raise
        except RuntimeError:  # the limit; some versions of torch raise a subclass
            for one in ("opening", "full", "end"):
                self.store.compare_set(f"{at}/{one}", "", _CALL)
            self.store.compare_set(f"{at}/caller", "", str(self.rank))
        return self.store.get(f"{at}/{key}").decode()

    def _answer_roll(self, at: str) -> str:
        """The line that names the missing ranks, made by the first rank that called the roll."""
        node = socket.gethostname()
        times = self.store.add(f"{at}/answers/{self.rank}", 1)
        own = {"node": node, "local_size": _local_size(), "place": f"{node} (pid {os.getpid()})"}
        self.store.set(f"{at}/answer/{self.rank}/{times}", json.dumps(own))
        self.store.add(f"{at}/answered", 1)
        caller = self.store.get(f"{at}/caller").decode() == str(self.rank) and times == 1
        if caller:
            self._wait_for_answers(at)
            self.store.set(f"{at}/found", self._who_is_missing(at))
        limit = timedelta(seconds=_FOUND_S)
        self.store.wait([f"{at}/found"], limit)
        line = self.store.get(f"{at}/found").decode()
        self.store.add(f"{at}/read", 1)
        if self.hosts_store:
            self._let_all_read(at)
        return line

    def _wait_for_answers(self, at: str) -> None:
        end = time.monotonic() + _ROLL_S
        while time.monotonic() < end and self.store.add(f"{at}/answered", 0) < self.size:
            time.sleep(_POLL_S)

    def _who_is_missing(self, at: str) -> str:
        came: dict[int, Arrival] = {}
        twice: dict[int, str] = {}
        for rank in range(self.size):
            if not self.store.check([f"{at}/answers/{rank}"]):
                continue
            times = self.store.add(f"{at}/answers/{rank}", 0)
            answers = [
                json.loads(self.store.get(f"{at}/answer/{rank}/{n + 1}")) for n in range(times)
            ]
            came[rank] = Arrival(answers[0]["node"], answers[0]["local_size"])
            if times > 1:
                twice[rank] = " and ".join(one["place"] for one in answers)
        before = self._before(at, came)
        if before is not None:
            return came_late(self.size, came, before)
        return never_came(self.size, came, self.within_s, twice)

    def _before(self, at: str, came: Collection[int]) -> str | None:
        """The line of the previous meeting if it failed without any of these ranks; else None."""
        before = f"{PREFIX}/{int(at.rpartition('/')[2]) - 1}"
        if not self.store.check([f"{before}/found"]):
            return None
        if any(self.store.check([f"{before}/answers/{rank}"]) for rank in came):
            return None
        return self.store.get(f"{before}/found").decode()

    def _let_all_read(self, at: str) -> None:
        """Wait until the others have read the line: the store ends with this process."""
        end = time.monotonic() + 4 * _ROLL_S
        while time.monotonic() < end:
            if self.store.add(f"{at}/read", 0) >= self.store.add(f"{at}/answered", 0):
                return
            time.sleep(_POLL_S)


def rank_text(rank: int, size: int) -> str:
    """Text such as "rank 2 of 4 on node1"."""
    return f"rank {rank} of {size} on {socket.gethostname()}"


def time_left(until: float) -> timedelta:
    """Time left; at least 0.1 s, because torch treats 0 as no limit."""
    return timedelta(seconds=max(0.1, until - time.monotonic()))


def _local_size() -> int | None:
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) > 0 else None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank that came: its node, and the number of ranks there (None: unknown)."""

    node: str
    local_size: int | None


def never_came(
    size: int, came: Mapping[int, Arrival], within_s: float, twice: Mapping[int, str] | None = None
) -> str:
    """One line that names those of `size` ranks that are not in `came`.

    twice: ranks that came from two places, with the places as text.
    """
    missing = [rank for rank in range(size) if rank not in came]
    nodes = _nodes_of(missing, came)
    where = f" ({', '.join(nodes)})" if nodes else ""
    names = list(dict.fromkeys(came[rank].node for rank in sorted(came)))
    did = f"{ranks_text(sorted(came))} on {','.join(names)} did" if came else "nobody did"
    line = f"{ranks_text(missing)} of {size}{where} never came within {within_s:g} s ({did})"
    if not missing:
        line = f"all {size} ranks came, but not all of them within {within_s:g} s"
    for rank, places in sorted((twice or {}).items()):
        line += f"; rank {rank} came twice, from {places}: RANK must be different in every process"
    return line


def came_late(size: int, came: Mapping[int, Arrival], before: str) -> str:
    """The line of ranks that came after the others had failed. before: the line of the others."""
    nodes = list(dict.fromkeys(came[rank].node for rank in sorted(came)))
    who = f"{ranks_text(sorted(came))} of {size} on {','.join(nodes)}"
    return f"{who} came after the others had given up: {before}"


def _nodes_of(missing: list[int], came: Mapping[int, Arrival]) -> list[str]:
    """Nodes of missing ranks, if another rank of the same node came."""
    found: dict[str, None] = {}
    for rank, arrival in sorted(came.items()):
        if arrival.local_size:
            first = rank - rank % arrival.local_size
            if any(first <= other < first + arrival.local_size for other in missing):
                found[arrival.node] = None
    return list(found)
