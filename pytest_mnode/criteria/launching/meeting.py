"""`meet` replaces `dist.init_process_group`, and its error names the ranks that never came.

With plain torch, a missing rank is a store timeout on all other ranks, with addresses but without
ranks. The module runs in ranks; only its functions import torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_mnode.errors import EnvironmentContractError, TimeLimitError, WorldError
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
    """One rank's side of a meeting: ranks agree in a store that all have come, or who is missing.

    The store may be older than the ranks: torchrun keeps it when it restarts ranks, and counts
    restarts by node, so that the ranks share no restart count. Meetings are therefore numbered in
    the store, and keys of ranks that were killed in an earlier meeting must not count:

    - Rank 0 opens the next meeting, and ends the previous one if that never ended. The others go to
      the open meeting, or wait for the next.
    - Only ranks that announce themselves after the opening count, and only rank 0 may declare a
      meeting complete: one whose rank 0 is gone stays undecided until the next rank 0 ends it.
    - The first rank that reaches its limit calls the roll. Ranks that answer are alive; all of them
      raise the same line, which names the others. A rank that comes only to the next meeting, in a
      store that outlives the failed one, raises the line of the failed meeting as well.

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


_STORE_LIMIT_S = 300.0
"""torch's default limit of store operations, restored after the meeting."""
_RETRY_S = 0.1
_REMEDY = "start the job with torchrun, or set it as torchrun does"


def meet(timeout_s: float, backend: str | None = None) -> None:
    """Make the default process group from torchrun's variables, or name the ranks that never came.

    timeout_s: from the call to the end of initialisation; collectives keep torch's default limit.
    backend: as of `dist.init_process_group`; None if torch chooses it by device.

    Raises EnvironmentContractError for a variable that is missing or wrong, TimeLimitError if ranks
    or the store were not there in time, WorldError if a second process was rank 0, or if all ranks
    came but the group could not be made.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if not 0 <= rank < size:
        raise EnvironmentContractError(f"RANK={rank} is outside WORLD_SIZE={size}")
    until = time.monotonic() + timeout_s
    torchrun_hosts_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    hosts_store = rank == 0 and not torchrun_hosts_store
    host = "the torchrun of the first node" if torchrun_hosts_store else "rank 0"
    store = _connect(
        rank_text(rank, size), size, host, hosts_store, until=until, within_s=timeout_s
    )
    number = Gathering(store, rank, size, timeout_s, until, hosts_store).wait_for_all()
    # The prefix is this meeting's own, because earlier ranks may have left keys in the store.
    group_store = PrefixStore(f"{PREFIX}/{number}/group", store)
    group_store.set_timeout(time_left(until))
    try:
        dist.init_process_group(
            backend, store=group_store, rank=rank, world_size=size, timeout=time_left(until)
        )
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise WorldError(
            f"all {size} ranks came, but their process group was not created: {line}"
        ) from error
    _use_default_limits(store)


def _connect(
    who: str, size: int, host: str, hosts_store: bool, *, until: float, within_s: float
) -> TCPStore:
    """A client of the store, or the store itself if this rank hosts it."""
    from torch._C._distributed_c10d import TCPStore

    address = os.environ.get("MASTER_ADDR")
    if not address:
        raise EnvironmentContractError(f"MASTER_ADDR is not set; {_REMEDY}")
    port = _number("MASTER_PORT")
    if not 0 < port < 65536:
        raise EnvironmentContractError(f"MASTER_PORT={port} is not a port; accepted: 1 to 65535")
    if not hosts_store:
        why = unreachable(address, port, until)
        if why is not None:
            raise TimeLimitError(
                f"{who} could not reach the store at {address}:{port} within {within_s:g} s: "
                f"{why}; {host} hosts the store: it may be absent, or the address cannot be "
                "reached from here"
            )
    try:
        return TCPStore(address, port, size, hosts_store, time_left(until), False, True)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        doing = "host" if hosts_store else "use"
        raise TimeLimitError(
            f"{who} could not {doing} the store at MASTER_ADDR:MASTER_PORT, {address}:{port}, "
            f"within {within_s:g} s: {line}"
        ) from error


def _number(name: str) -> int:
    text = os.environ.get(name)
    if text is None:
        raise EnvironmentContractError(f"{name} is not set; {_REMEDY}")
    try:
        return int(text)
    except ValueError:
        raise EnvironmentContractError(f"{name}={text!r} is not a number") from None


def _use_default_limits(store: TCPStore) -> None:
    """Set torch's default limits, as after a plain init; ours was for initialisation only."""
    from torch.distributed import constants
    from torch.distributed import distributed_c10d as c10d

    store.set_timeout(timedelta(seconds=_STORE_LIMIT_S))
    set_limit = getattr(c10d, "_set_pg_timeout", None)
    if set_limit is None:
        return
    usual = constants.default_pg_timeout
    if c10d.get_backend() == "nccl":
        usual = getattr(constants, "default_pg_nccl_timeout", None) or usual
    with contextlib.suppress(RuntimeError):  # not every backend has a limit
        set_limit(usual)


def unreachable(address: str, port: int, until: float) -> str | None:
    """None as soon as a process listens there; the reason if none does before `until`.

    until: by the monotonic clock. A look-up of the name cannot be interrupted, and may outlast it.
    """
    while True:
        left = max(_RETRY_S, until - time.monotonic())
        try:
            socket.create_connection((address, port), timeout=left).close()
        except socket.gaierror as error:
            why = f"{address!r} cannot be resolved ({error.strerror})"
        except TimeoutError:
            why = "no answer"
        except (OSError, OverflowError) as error:
            why = (getattr(error, "strerror", None) or str(error)).lower()
        else:
            return None
        if time.monotonic() + _RETRY_S > until:
            return why
        time.sleep(_RETRY_S)
