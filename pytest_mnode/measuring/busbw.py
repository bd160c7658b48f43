"""A collective beside its promise: measured, and where it falls short, who is to blame."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_mnode.measurement import Bound
from pytest_mnode.measuring.algorithms import Algorithm, algorithms_of, chosen_algorithm, group_for
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.locating.leave_one_out import slow_in_company
from pytest_mnode.measuring.locating.locate import BUDGET_S, find_slow_links
from pytest_mnode.measuring.nic_counters import Counted
from pytest_mnode.measuring.ranks import by_rank
from pytest_mnode.measuring.sweep import Sweep, sweep
from pytest_mnode.measuring.traffic import SentByNode, off_fabric
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec
from pytest_mnode.spec.bandwidth import (
    BusbwAtLineRate,
    Collective,
    busbw_at_line_rate,
    least_node_bytes,
)
from pytest_mnode.spec.fabric import BusbwPromise

_ATTEMPTS = 3
"""Of a sweep that falls short with nobody to blame, where nodes share a machine's processors."""
_VALID_S = 300.0
"""A fault may come or go: what was found longer ago is searched again."""


@dataclass(frozen=True, slots=True)
class AlgorithmSweep:
    """A sweep with one algorithm, beside what it is judged by; the same on every rank."""

    algorithm: Algorithm
    sweep: Sweep
    promise: BusbwPromise
    line: BusbwAtLineRate

    @property
    def bound(self) -> Bound:
        """What busbw must reach on the plateau."""
        return self.promise.bound_gbytes_s(self.line)

    @property
    def falls_short(self) -> bool:
        """Whether a size of the plateau was measured below the bound."""
        return not all(
            self.bound.holds(row.busbw_gbytes_s)
            for row in self.sweep.rows
            if self.on_plateau(row.size_bytes)
        )

    def on_plateau(self, size_bytes: int) -> bool:
        """Whether this size is judged."""
        return size_bytes in self.promise.plateau_sizes_bytes


@dataclass(frozen=True, slots=True)
class Busbw:
    """A collective with each algorithm; the same on every rank.

    traffic: what each node sent meanwhile. culprit: None where the promise was kept. attempt: which
    one this is; earlier ones fell short with nobody to blame.
    """

    spec: Spec
    world: World
    backend: str
    sweeps: tuple[AlgorithmSweep, ...]
    traffic: tuple[SentByNode, ...]
    culprit: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class KnownCulprit:
    """Who was found to blame, on which nodes, when by the clock of rank 0's node.

    instead: what carried the traffic then where the fabric did not. collective: what fell short.
    """

    nodes: tuple[str, ...]
    instead: str | None
    culprit: str
    collective: str
    at_s: float

    def explains(self, nodes: tuple[str, ...], instead: str | None, now_s: float) -> bool:
        """Whether it may stand for a search over `nodes` now, with traffic as it is now."""
        recent = 0 <= now_s - self.at_s <= _VALID_S
        return recent and self.nodes == nodes and self.instead == instead


class KnownCulprits:
    """The last culprit found in a run, so that one slow node is not searched per collective.

    Pairs of nodes are as fast for one collective as for the next, so that one search explains them
    all. Its result is kept in a file of rank 0's node, in a directory that is the run's own,
    because the ranks of a test that failed do not live on.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = directory / "culprit.json"
        self._clock = clock

    def explaining(self, world: World, instead: str | None) -> KnownCulprit | None:
        """What was found before, where that explains; the same on every rank. All call this."""
        known = [self._read(world, instead) if world.rank == 0 else None]
        dist.broadcast_object_list(known, src=0)
        return known[0]

    def keep(self, world: World, instead: str | None, culprit: str, collective: str) -> None:
        """Keep what was found. A file that cannot be written costs one more search."""
        known = KnownCulprit(world.nodes, instead, culprit, collective, self._clock())
        if world.rank == 0:
            with contextlib.suppress(OSError):
                self._path.write_text(json.dumps(asdict(known)))

    def _read(self, world: World, instead: str | None) -> KnownCulprit | None:
        try:
            kept = json.loads(self._path.read_text())
            known = KnownCulprit(**{**kept, "nodes": tuple(kept["nodes"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return known if known.explains(world.nodes, instead, self._clock()) else None


def measure_busbw(
    collective: str,
    promise: BusbwPromise,
    spec: Spec,
    world: World,
    device: torch.device,
    *,
    known: KnownCulprits | None = None,
    budget_s: float = BUDGET_S,
) -> Busbw:
    """Sweep the sizes of the promise; where a plateau size falls short, find out who is to blame.

    collective: torch.distributed's name. known: a culprit found before in this run is not searched
    again. All ranks call this, with the default group in place. Takes a few seconds, and up to
    `budget_s` more in all where the promise is broken. Where nodes share the processors of one
    machine, which other programs may use too, a sweep that falls short with nobody to blame is
    repeated, twice at most.
    """
    attempts = _ATTEMPTS if spec.shares_processors else 1
    culprit = None
    for attempt in range(1, attempts + 1):
        found = replace(_sweeps(collective, promise, spec, world, device), attempt=attempt)
        short = next((one for one in found.sweeps if one.falls_short), None)
        if short is None:
            return found
        if culprit is not None and not budget_s:
            continue  # a search without time would replace what was found by just that
        started_s = time.monotonic()
        culprit, named = _culprit(found, short, device, budget_s, known=known)
        if named:
            break
        [spent_s] = by_rank([time.monotonic() - started_s], device)[0]  # the same on all ranks
        budget_s = max(0.0, round(budget_s - spent_s, 1))
    return replace(found, culprit=culprit)


def _sweeps(
    collective: str, promise: BusbwPromise, spec: Spec, world: World, device: torch.device
) -> Busbw:
    """One sweep with each algorithm."""
    measured = COLLECTIVES[collective]
    backend = dist.get_backend()
    nodes, ranks_per_node = len(world.nodes), world.local_size
    line = busbw_at_line_rate(collective, spec.fabric, nodes, ranks_per_node, backend)
    algorithms = algorithms_of(measured.collective, backend, ranks_per_node, chosen_algorithm())
    sweeps = []
    with Counted(world) as counted:
        for algorithm in algorithms:
            with group_for(algorithm, device) as group:
                found = sweep(
                    measured,
                    promise.sizes_bytes,
                    warmup=promise.warmup,
                    repeats=promise.repeats,
                    device=device,
                    group=group,
                    tolerated=dict.fromkeys(
                        promise.plateau_sizes_bytes, promise.tolerated_fraction
                    ),
                )
            sweeps.append(AlgorithmSweep(algorithm, found, promise, line))
    timed_bytes = sum(row.timed_bytes for one in sweeps for row in one.sweep.rows)
    traffic = counted.by_node(_least_bytes(measured.collective, timed_bytes, world))
    return Busbw(spec, world, backend, tuple(sweeps), traffic)


def _least_bytes(collective: Collective, timed_bytes: int, world: World) -> list[int]:
    """What each node must have sent; of a broadcast the root alone, others may send nothing."""
    nodes = len(world.nodes)
    least = least_node_bytes(collective, timed_bytes, nodes, world.local_size)
    return [timed_bytes] + [0] * (nodes - 1) if least is None else [int(least)] * nodes


def _culprit(
    found: Busbw,
    short: AlgorithmSweep,
    device: torch.device,
    budget_s: float,
    *,
    known: KnownCulprits | None,
) -> tuple[str, bool]:
    """Who is to blame, found now or before in this run; and whether it is anybody.

    All ranks call this.
    """
    world, spec, promise = found.world, found.spec, short.promise
    instead = off_fabric(found.traffic, spec.fabric)
    before = known.explaining(world, instead) if known is not None else None
    if before is not None:
        print(f"# culprit as found when {before.collective} was measured")
        return before.culprit, True
    slow_below_mbits_s = promise.nic_mbits_s(spec.fabric)
    links = find_slow_links(
        world, spec, found.traffic, slow_below_mbits_s, device, budget_s=budget_s
    )
    culprit = str(links) if links.culprit is not None else ""
    if links.faults == 0:
        culprit = _in_company(world, spec, promise, device, budget_s - links.effort.spent_s)
    # That nobody was found explains nothing, least of all a fault that came later.
    if known is not None and culprit:
        known.keep(world, instead, culprit, short.sweep.measured.collective.value)
    return culprit or str(links), bool(culprit)


def _in_company(
    world: World, spec: Spec, promise: BusbwPromise, device: torch.device, budget_s: float
) -> str:
    """Who slows collectives though every pair of it is fast; "" where nobody is found."""
    fabric = spec.criteria.fabric
    promise = (fabric.all_reduce_busbw if fabric else None) or promise
    bound = promise.bound_gbytes_s(spec.fabric)
    size_bytes = promise.plateau_sizes_bytes[-1]
    return slow_in_company(world, size_bytes, bound.limit - bound.tolerance, device, budget_s)
