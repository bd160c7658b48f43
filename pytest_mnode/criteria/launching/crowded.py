"""What many clients of a store show, judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.absent import gist
from pytest_mnode.criteria.launching.clients import Part, crowd
from pytest_mnode.criteria.launching.rendezvous import stands_out
from pytest_mnode.errors import MnodeError

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster, RankWorld
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec.launch import StorePromise

_LONG_LOOK_UP = 0.3
"""Part of the time of a crowd from which on the look-up of a name explains it."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many clients of one store, by the ranks that had them. `failed`: why there is nothing."""

    clients: int
    parts: tuple[Part, ...]
    failed: str = ""

    @property
    def errors(self) -> list[str]:
        """Of clients and ranks, each with its node."""
        own = [f"{part.node}: {error}" for part in self.parts for error in part.errors]
        return [self.failed, *own] if self.failed else own

    def latest(self, step: Callable[[Part], float | None]) -> tuple[float, Part] | None:
        """The time of the slowest client, and whose it was; None where one never came so far."""
        times = [(value, part) for part in self.parts if (value := step(part)) is not None]
        if not times or len(times) < len(self.parts):
            return None
        return max(times, key=lambda one: one[0])


def table(crowds: Sequence[Crowd]) -> str:
    """A line a number of clients, with the seconds after which the slowest was so far."""
    steps: Sequence[Callable[[Part], float | None]] = (
        lambda part: part.connected_s,
        lambda part: part.told_s,
        lambda part: part.passed_s,
    )
    lines = ["clients  connected  all told  barrier passed (s, slowest client)"]
    for one in crowds:
        found = [one.latest(step) for step in steps]
        words = [f"{at[0]:.3f}" if at else "never" for at in found]
        lines.append(f"{one.clients:7d}  {words[0]:>9}  {words[1]:>8}  {words[2]:>14}")
    return "\n".join(lines)


def crowds_of(cluster: Cluster, promise: StorePromise) -> list[Crowd]:
    """Have a store of rank 0 serve each number of clients, one after the other."""
    limit_s = 3 * promise.within_s + 5
    found: list[Crowd] = []
    try:
        with cluster.world(fresh=True) as world:
            for clients in promise.clients:
                found.append(_crowd(world, clients, limit_s))
    except MnodeError as error:
        why = gist(str(error))
        found += [Crowd(n, (), why) for n in promise.clients[len(found) :]]
    return found


def _crowd(world: RankWorld, clients: int, limit_s: float) -> Crowd:
    name = f"mnode-crowd-{clients}"
    return Crowd(clients, tuple(world.run(crowd, clients, name, limit_s, timeout=3 * limit_s)))


def record_crowds(crowds: Sequence[Crowd], promise: StorePromise, measure: Measure) -> None:
    """Record the time of each number of clients, wrong keys, and what was left.

    A client that had an error, or a limit of open files that is too low, leaves it unmeasured.
    """
    source = f"criteria.launch.store.within {promise.within_s:g} s"
    for one in crowds:
        last = one.latest(lambda part: part.passed_s) if not one.errors else None
        measure(
            f"store: {one.clients} clients came, told each other and passed a barrier",
            last[0] if last else None,
            "s",
            at_most=promise.within_s,
            source=source,
            culprit=_slow(one, last[1]) if last else None,
            note=_shortened(one.errors),
        )
    parts = [part for one in crowds for part in one.parts]
    unread = not parts or any(one.errors for one in crowds)
    wrong = [f"rank {part.rank} on {part.node}" for part in parts if part.wrong]
    measure(
        "store: keys that did not come right",
        sum(part.wrong for part in parts) if wrong or not unread else None,
        equals=0,
        source="each client reads its neighbour's key",
        culprit=", ".join(wrong) or None,
    )
    left = [
        f"rank {part.rank} on {part.node}: {', '.join(part.left)}" for part in parts if part.left
    ]
    measure(
        "store: ranks that left clients or ports open",
        len(left) if parts else None,
        equals=0,
        source="open files and threads before and after",
        culprit=left[0] if left else None,
        note=_shortened(left),
    )


def _slow(one: Crowd, last: Part) -> str:
    """Whose clients took longest to connect, where that stands out; else who was the last."""
    names = max(one.parts, key=lambda part: part.look_up_s or 0.0)
    if (names.look_up_s or 0.0) > _LONG_LOOK_UP * (last.passed_s or 0.0):
        return f"{names.node} (the store's address is looked up in {names.look_up_s:.1f} s)"
    times = {part: part.connected_s for part in one.parts if part.connected_s is not None}
    slowest = max(times, key=lambda part: times[part])
    if stands_out(list(times.values())):
        return f"{slowest.node} (clients of rank {slowest.rank}: {times[slowest]:.2f} s to connect)"
    return f"{last.node} (clients of rank {last.rank} last)"


def _shortened(lines: Sequence[str]) -> str:
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")
