"""Judges of a rendezvous store under many clients. The clients are in `store_clients`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.rendezvous import first_error, stands_out
from pytest_mnode.criteria.launching.store_clients import RankClients, run_clients
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError
from pytest_mnode.measurement import Measurement, all_of, at_most, equals, listed
from pytest_mnode.progress import progress
from pytest_mnode.spec.launch import StorePromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

_LONG_LOOK_UP = 0.3
"""A name look-up that takes more than this share of the whole time is the cause."""


@dataclass(frozen=True, slots=True)
class StoreLoad:
    """Results of one number of clients, by rank. failed: why there are none; "" if there are."""

    clients: int
    ranks: tuple[RankClients, ...]
    failed: str = ""

    @property
    def errors(self) -> list[str]:
        """Errors of clients and ranks, each with its node."""
        own = [f"{rank.node}: {error}" for rank in self.ranks for error in rank.errors]
        return [self.failed, *own] if self.failed else own

    def latest(
        self, step: Callable[[RankClients], float | None]
    ) -> tuple[float, RankClients] | None:
        """Time and rank of the slowest client at a step; None if a client never reached it."""
        times = [(value, rank) for rank in self.ranks if (value := step(rank)) is not None]
        if not times or len(times) < len(self.ranks):
            return None
        return max(times, key=lambda one: one[0])


def table(loads: Sequence[StoreLoad]) -> str:
    """One line for each number of clients, with the time of its slowest client at each step."""
    steps: Sequence[Callable[[RankClients], float | None]] = (
        lambda rank: rank.connected_s,
        lambda rank: rank.all_came_s,
        lambda rank: rank.passed_s,
    )
    lines = ["clients  connected  all came  barrier passed (s, slowest client)"]
    for one in loads:
        found = [one.latest(step) for step in steps]
        words = [f"{at[0]:.3f}" if at else "never" for at in found]
        lines.append(f"{one.clients:7d}  {words[0]:>9}  {words[1]:>8}  {words[2]:>14}")
    return "\n".join(lines)


def measured_loads(cluster: Cluster, promise: StorePromise) -> list[StoreLoad]:
    """Have a store of rank 0 serve each number of clients in turn."""
    limit_s = 3 * promise.within_s + 5
    found: list[StoreLoad] = []
    try:
        with cluster.world(fresh=True) as world:
            for clients in promise.clients:
                progress(f"{clients} clients", len(found), len(promise.clients))
                name = f"mnode-store-{clients}"
                ranks = world.run(run_clients, clients, name, limit_s, timeout=3 * limit_s)
                found.append(StoreLoad(clients, tuple(ranks)))
    except MnodeError as error:
        why = first_error(str(error))
        found += [StoreLoad(n, (), why) for n in promise.clients[len(found) :]]
    return found


def judged_loads(loads: Sequence[StoreLoad], promise: StorePromise) -> list[Measurement]:
    """The time of each number of clients, and the number of wrong keys.

    A time is inconclusive after a client's error, or if the limit of open files is too low.
    """
    source = f"criteria.launch.store.within {promise.within_s:g} s"
    judged = []
    for one in loads:
        last = one.latest(lambda rank: rank.passed_s) if not one.errors else None
        judged.append(
            Measurement(
                f"store: {one.clients} clients connected, exchanged keys and passed a barrier",
                last[0] if last else None,
                "s",
                at_most(promise.within_s).of("criteria.launch.store.within", promise.within_s),
                source,
                _slowest(one, last[1]) if last else None,
                listed(one.errors, 3),
            )
        )
    ranks = [rank for one in loads for rank in one.ranks]
    unread = not ranks or any(one.errors for one in loads)
    wrong = [Culprit.rank(f"rank {r.rank} on {r.node}", r.node, r.rank) for r in ranks if r.wrong]
    return [
        *judged,
        Measurement(
            "store: wrong keys",
            sum(rank.wrong for rank in ranks) if wrong or not unread else None,
            "",
            equals(0),
            "each client reads its neighbour's key",
            all_of(wrong, 16, ", "),
        ),
    ]


def _slowest(one: StoreLoad, last: RankClients) -> Culprit:
    """The node with slow name look-ups or much later clients; else the rank of the last client."""
    names = max(one.ranks, key=lambda rank: rank.look_up_s or 0.0)
    if (names.look_up_s or 0.0) > _LONG_LOOK_UP * (last.passed_s or 0.0):
        why = f"looking up the store's address took {names.look_up_s:.1f} s"
        return Culprit(f"{names.node} ({why})", names.node)
    times = {rank: rank.connected_s for rank in one.ranks if rank.connected_s is not None}
    slowest = max(times, key=lambda rank: times[rank])
    if stands_out(list(times.values())):
        why = f"clients of rank {slowest.rank}: {times[slowest]:.2f} s to connect"
        return Culprit(f"{slowest.node} ({why})", slowest.node)
    return Culprit(f"{last.node} (clients of rank {last.rank} last)")
