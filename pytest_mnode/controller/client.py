"""A pytest process's connection to the hub: leases, worlds, messages to and from ranks."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from pytest_mnode import errors
from pytest_mnode.launchers.node import count
from pytest_mnode.protocol.agent_messages import Death, PartLost, TakeStacks
from pytest_mnode.protocol.channel import PeerLine
from pytest_mnode.protocol.hub_messages import (
    Answer,
    AskLauncher,
    CloseWorld,
    Granted,
    LeaseNodes,
    Opened,
    OpenWorld,
    Refused,
    ReleaseNodes,
    StopHub,
    Withdraw,
)
from pytest_mnode.protocol.launcher_requests import LauncherRequest
from pytest_mnode.protocol.world import HUB, Lease, WorldInfo

LEASE_LIMIT_S = 3600.0
"""Longest wait for nodes that other tests use; with pytest-xdist all of them may be long."""
ANSWER_LIMIT_S = 450.0
"""Longer than the hub's limits for importing torch and for starting ranks."""


class Client:
    """A client of the hub; one per pytest process, used by its main thread only."""

    def __init__(self, name: str, line: PeerLine) -> None:
        self.name = name
        self.line = line
        self.ordinals = itertools.count(1)
        self._seq = itertools.count(1)
        self._inbox: deque[Any] = deque()
        self._deferred: list[Death | PartLost] = []

    def tell(self, message: Any) -> None:
        """Send a message to the hub."""
        self.line.send(HUB, message)

    def tell_ranks(self, world: WorldInfo, message: Any) -> None:
        self.line.send(f"world/{world.id}", message)

    def tell_rank(self, world: WorldInfo, rank: int, message: Any) -> None:
        self.line.send(f"rank/{world.id}/{rank}", message)

    def next_message(self, timeout_s: float) -> Any | None:
        """The next message that does not answer a request to the hub; None after `timeout_s`."""
        if self._inbox:
            return self._inbox.popleft()
        return self.line.receive(timeout_s)

    def defer(self, message: Death | PartLost) -> None:
        """Keep a message of a world that the caller does not wait for now."""
        self._deferred.append(message)

    def take_deferred(self, world: str) -> list[Death | PartLost]:
        """The messages of this world that were deferred, oldest first."""
        kept = [m for m in self._deferred if m.world == world]
        self._deferred = [m for m in self._deferred if m.world != world]
        return kept

    def lease(
        self,
        nodes: int | None,
        exclusive: bool,
        label: str,
        on: tuple[str, ...] = (),
        *,
        ranks: bool = True,
    ) -> Lease:
        """Wait until this client has its nodes. on, ranks: see LeaseNodes.

        Raises the hub's error if the nodes cannot be leased.
        """
        wanted = "all nodes" if nodes is None else count(nodes)
        with self._request() as seq:
            self.tell(LeaseNodes(seq, nodes, exclusive, label, on, ranks))
            granted = self._answer(seq, LEASE_LIMIT_S, f"{label} was not given {wanted}")
            return Lease(granted.lease, granted.nodes)

    def release(self, lease: Lease) -> None:
        self.tell(ReleaseNodes(lease.id))

    def open_world(
        self,
        lease: Lease,
        procs_per_node: int,
        fresh: bool,
        nodes: tuple[str, ...] | None = None,
        *,
        held: str = "",
        file: str = "",
    ) -> WorldInfo:
        """A world with running ranks on nodes of the lease; the world `held` if it still exists.

        file: of the test that needs it. Raises WorldError that names the missing ranks.
        """
        with self._request() as seq:
            names = nodes, held, file
            self.tell(OpenWorld(seq, lease.id, procs_per_node, fresh, *names))
            world = self._answer(seq, ANSWER_LIMIT_S, "no world was started").world
            assert isinstance(world, WorldInfo)
            return world

    @contextlib.contextmanager
    def _request(self) -> Iterator[int]:
        """The number of a new request, which is withdrawn if the block raises."""
        seq = next(self._seq)
        try:
            yield seq
        except BaseException:
            self.tell(Withdraw(seq))
            raise

    def close_world(
        self, world: WorldInfo, reusable: bool, new_group: bool, held: bool = False
    ) -> None:
        """Give a world back. new_group: see WorldInfo; held: its ranks stay reserved for this
        client, but not its nodes."""
        self.tell(CloseWorld(world.id, reusable, new_group, held))

    def take_stacks(self, world: WorldInfo, poll_id: int | None = None) -> None:
        """Request stacks and calls of all ranks (see TakeStacks): one StackTexts per node."""
        for node in world.nodes:
            self.tell(TakeStacks(node, world.id, poll_id))

    def take_native_stacks(self, world: WorldInfo, node: str, ranks: tuple[int, ...]) -> None:
        """Request the C stacks of ranks of a node: one StackTexts with nothing else."""
        self.tell(TakeStacks(node, world.id, native=ranks))

    def ask_launcher(self, request: LauncherRequest) -> Any:
        """The launcher's answer. Raises ClusterError if it does not support the request."""
        seq = next(self._seq)
        self.tell(AskLauncher(seq, request))
        why = f"the launcher did not {request.does}"
        return self._answer(seq, request.limit_s, why).value

    def stop_hub(self) -> None:
        self.tell(StopHub())

    def close(self) -> None:
        self.line.close()

    def _answer(self, seq: int, limit_s: float, why: str) -> Any:
        """The answer to request `seq`. why: what did not happen, for the timeout's message."""
        end = time.monotonic() + limit_s
        while True:
            message = self.line.receive(max(0.0, end - time.monotonic()))
            match message:
                case None:
                    raise errors.TimeLimitError(f"{why} within {limit_s:.0f} s")
                case Granted() | Opened() | Answer() if message.seq == seq:
                    return message
                case Refused() if message.seq == seq:
                    raise _error(message)
                case Granted() | Opened() | Answer() | Refused():
                    continue  # the answer to a request that was withdrawn
                case _:
                    self._inbox.append(message)


def _error(message: Refused) -> errors.MnodeError:
    if message.kind == "NodeLostError":
        return errors.NodeLostError(message.node, message.text)
    kind = getattr(errors, message.kind, errors.WorldError)
    assert issubclass(kind, errors.MnodeError)
    return kind(message.text)
