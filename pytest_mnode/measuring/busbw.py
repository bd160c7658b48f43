"""Busbw of a collective compared with its promise, and the culprit if it falls short."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_mnode.culprit import Culprit
from pytest_mnode.logs.lines import plain_lines
from pytest_mnode.logs.nccl_files import log_of_process, settings_of_files
from pytest_mnode.logs.nvls import NvlsFacts, release
from pytest_mnode.machine.software import nccl_version
from pytest_mnode.machine.waiting import cpu_wait_so_far_s, difference
from pytest_mnode.measurement import Bound, at_most
from pytest_mnode.measuring.algorithms import RAILS, Algorithm, algorithms_of, fresh_group
from pytest_mnode.measuring.collectives import COLLECTIVES, Measured, send_recv_by_rails
from pytest_mnode.measuring.locating.leave_one_out import (
    Rates,
    measured_in_ranks,
    slow_in_collectives,
)
from pytest_mnode.measuring.locating.locate import BUDGET_S, SlowLinks, find_slow_links
from pytest_mnode.measuring.nic_counters import Counted
from pytest_mnode.measuring.ranks import barrier, by_rank, gathered
from pytest_mnode.measuring.sweep import Row, Sweep, sweep
from pytest_mnode.measuring.traffic import SentByNode, off_fabric
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec
from pytest_mnode.spec.alpha_beta import Algorithm as Moves
from pytest_mnode.spec.alpha_beta import CollectiveModel, Nvls, Platform
from pytest_mnode.spec.bandwidth import Collective, least_node_bytes
from pytest_mnode.spec.fabric import BusbwPromise

_ATTEMPTS = 3
"""Attempts at a sweep that falls short without a culprit, if nodes share a machine's CPUs."""
_BUSY_FRACTION = 0.1
_PAST_PHYSICS = 0.05
"""Fraction by which busbw may exceed the ceiling: shaper bursts and clock resolution."""
_VALID_S = 300.0
"""Age after which a culprit is searched for again, because faults come and go."""


@dataclass(frozen=True, slots=True)
class AlgorithmSweep:
    """A sweep with one algorithm, and what it is judged by; the same on every rank."""

    algorithm: Algorithm
    sweep: Sweep
    promise: BusbwPromise
    model: CollectiveModel

    @property
    def bounds(self) -> Mapping[int, Bound]:
        """The busbw that each size judged must reach."""
        return bounds_of(self.promise, self.model, self.algorithm)

    @property
    def ceiling(self) -> Bound | None:
        """The busbw that nothing exceeds: of what the NICs limit their rate, else the model's."""
        highest = self.model.ceiling_gbytes_s
        if self.algorithm.physical:
            highest = self.model.line.ceiling_gbytes_s
        if highest is not None and self.algorithm.name == RAILS:
            highest = self.line_gbytes_s
        return None if highest is None else at_most(highest, _PAST_PHYSICS * highest)

    @property
    def falls_short(self) -> bool:
        """Whether a size was measured below its bound."""
        bounds = self.bounds
        return not all(bounds[row.size_bytes].holds(row.busbw_gbytes_s) for row in self.judged)

    @property
    def decided(self) -> bool:
        """Whether each measured size surely keeps or surely misses its bound."""
        bounds = self.bounds
        found = [(row.estimate, bounds[row.size_bytes]) for row in self.judged]
        return all(one and bound.decides(*one.interval) is not None for one, bound in found)

    @property
    def judged(self) -> tuple[Row, ...]:
        """The rows of the sizes that are judged."""
        bounds = self.bounds
        return tuple(row for row in self.sweep.rows if row.size_bytes in bounds)

    @property
    def line_gbytes_s(self) -> float:
        """What busbw is a share of: the line of a ring, or of rails."""
        rails = self.algorithm.name == RAILS
        return self.model.line_gbytes_s(Moves.RAILS) if rails else self.model.line.gbytes_s

    @property
    def moves(self) -> tuple[Moves, ...]:
        """What the model may take the algorithm for."""
        return self.model.algorithms(self.algorithm.name)


def bounds_of(
    promise: BusbwPromise, model: CollectiveModel, algorithm: Algorithm
) -> dict[int, Bound]:
    """By size that is judged, the busbw that it must reach."""
    moves = model.algorithms(algorithm.name)
    sizes = promise.judged_sizes_bytes(model)
    return {size: promise.bound_gbytes_s(model, moves, size) for size in sizes}


@dataclass(frozen=True, slots=True)
class Busbw:
    """Sweeps of a collective with each algorithm; the same on every rank.

    traffic: bytes that each node sent during the sweeps. culprit: None if the promise was kept.
    named: whether the culprit is a node, path or rail, and not why none was found. attempt: number
    of this attempt, from 1; earlier ones fell short without a culprit. waited_fraction: share of
    the sweeps' time in which threads of the rank that waited longest were ready and had no CPU.
    """

    spec: Spec
    world: World
    backend: str
    sweeps: tuple[AlgorithmSweep, ...]
    traffic: tuple[SentByNode, ...]
    culprit: Culprit | None = None
    named: bool = False
    attempt: int = 1
    waited_fraction: float = 0.0

    @property
    def collective(self) -> Collective:
        """What the sweeps measured."""
        return self.sweeps[0].sweep.measured.collective

    @property
    def held_back(self) -> bool:
        """Whether the machine that all nodes share may explain rates below the bound."""
        busy = self.waited_fraction > _BUSY_FRACTION
        return self.spec.shares_processors and busy and not self.named


@dataclass(frozen=True, slots=True)
class KnownCulprit:
    """A culprit that an earlier search found.

    nodes: the nodes of that search. instead: what carried the traffic if the fabric did not, else
    None. collective: the collective that fell short. at_s: when, by the clock of rank 0's node.
    """

    nodes: tuple[str, ...]
    instead: str | None
    culprit: Culprit
    collective: str
    at_s: float

    @classmethod
    def read(cls, text: str) -> KnownCulprit:
        """From a file's text. Raises ValueError, TypeError or KeyError if it is not one's."""
        kept = json.loads(text)
        culprit = Culprit.of_record(kept)
        plain = {key: value for key, value in kept.items() if not key.startswith("culprit")}
        return cls(**{**plain, "nodes": tuple(kept["nodes"]), "culprit": culprit})

    def text(self) -> str:
        """The text of its file."""
        return json.dumps({**asdict(self), **self.culprit.record})

    def explains(self, nodes: tuple[str, ...], instead: str | None, now_s: float) -> bool:
        """Whether this culprit may replace a search now, with these nodes and this traffic."""
        recent = 0 <= now_s - self.at_s <= _VALID_S
        return recent and self.nodes == nodes and self.instead == instead


class KnownCulprits:
    """The last culprit found in a run, so that one slow node is not searched for per collective.

    A pair of nodes is equally fast for every collective, so one search explains all of them. Its
    result is kept in a file on rank 0's node, in a directory of this run only, because the ranks
    of a failed test are not reused.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = directory / "culprit.json"
        self._clock = clock

    def explaining(self, world: World, instead: str | None) -> KnownCulprit | None:
        """The known culprit if it explains this; the same on every rank. All ranks call this."""
        known = [self._read(world, instead) if world.rank == 0 else None]
        dist.broadcast_object_list(known, src=0)
        return known[0]

    def keep(self, world: World, instead: str | None, culprit: Culprit, collective: str) -> None:
        """Keep a culprit. If its file cannot be written, the next sweep searches again."""
        known = KnownCulprit(world.nodes, instead, culprit, collective, self._clock())
        if world.rank == 0:
            with contextlib.suppress(OSError):
                self._path.write_text(known.text())

    def _read(self, world: World, instead: str | None) -> KnownCulprit | None:
        try:
            known = KnownCulprit.read(self._path.read_text())
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
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
    """Sweep the sizes of the promise; if a plateau size falls short, find the culprit.

    collective: torch.distributed's name. known: a culprit found before in this run is not searched
    for again. All ranks call this, with the default group in place. It takes a few seconds, and up
    to `budget_s` more in total if the promise is broken. If nodes share the CPUs of one machine,
    which other programs may use too, a sweep that falls short without a culprit, or whose noise
    leaves it undecided, is repeated, twice at most.
    """
    attempts = _ATTEMPTS if spec.shares_processors else 1
    culprit, named = None, False
    for attempt in range(1, attempts + 1):
        found = replace(_sweeps(collective, promise, spec, world, device), attempt=attempt)
        short = next((one for one in found.sweeps if one.falls_short), None)
        if short is None and (attempt == attempts or all(one.decided for one in found.sweeps)):
            return found
        if short is None:
            continue
        if culprit is not None and not budget_s:
            continue  # a search without time left would replace the earlier answer by none
        started_s = time.monotonic()
        culprit, named = _culprit(found, short, device, budget_s, known=known)
        if named:
            break
        [spent_s] = by_rank([time.monotonic() - started_s], device)[0]  # the same on all ranks
        budget_s = max(0.0, round(budget_s - spent_s, 1))
    return replace(found, culprit=culprit, named=named)


def _sweeps(
    collective: str, promise: BusbwPromise, spec: Spec, world: World, device: torch.device
) -> Busbw:
    measured = COLLECTIVES[collective]
    backend = dist.get_backend()
    nodes, ranks_per_node = len(world.nodes), world.local_size
    chosen = os.environ.get("NCCL_ALGO", "")
    model = CollectiveModel(Platform.of(spec), collective, nodes, ranks_per_node, backend)
    if backend == "nccl":
        barrier(device)  # NCCL logs what it has when it is first used
        model = replace(
            model,
            platform=replace(model.platform, nccl=release(nccl_version() or "")),
            nvls=nvls_of_ranks(across=model.domains > 1),
        )
    waited_s, started_s = cpu_wait_so_far_s(), time.monotonic()
    with Counted(world) as counted:
        sweeps = sweeps_by(
            lambda one, algorithm, bounds: sweep(
                one,
                promise.sizes_bytes,
                warmup=promise.warmup,
                repeats=promise.repeats,
                device=device,
                communicator=functools.partial(fresh_group, algorithm, device),
                judged=bounds,
                communicators=promise.communicators,
            ),
            promise,
            model,
            chosen,
        )
    waited_s = difference(waited_s, cpu_wait_so_far_s()) or 0.0
    shares = by_rank([waited_s / (time.monotonic() - started_s)], device)
    timed_bytes = sum(row.timed_bytes for one in sweeps for row in one.sweep.rows)
    traffic = counted.by_node(_least_bytes(measured.collective, timed_bytes, world))
    return Busbw(spec, world, backend, sweeps, traffic, waited_fraction=max(shares)[0])


def sweeps_by(
    measure: Callable[[Measured, Algorithm, Mapping[int, Bound]], Sweep],
    promise: BusbwPromise,
    model: CollectiveModel,
    chosen: str = "",
) -> tuple[AlgorithmSweep, ...]:
    """A sweep of the model's collective with each algorithm. chosen: NCCL_ALGO."""
    collective, ranks_per_node = Collective(model.collective), model.ranks_per_node
    sweeps = []
    for algorithm in algorithms_of(collective, model.backend, ranks_per_node, chosen):
        rails = algorithm.name == RAILS
        measured = send_recv_by_rails(ranks_per_node) if rails else COLLECTIVES[collective]
        found = measure(measured, algorithm, bounds_of(promise, model, algorithm))
        sweeps.append(AlgorithmSweep(algorithm, found, promise, model))
    return tuple(sweeps)


def _least_bytes(collective: Collective, timed_bytes: int, world: World) -> list[int]:
    """Bytes each node must have sent; in a broadcast only the root's node must send any."""
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
) -> tuple[Culprit, bool]:
    """The culprit, found now or before in this run, or why there is none; and whether there is one.

    All ranks call this.
    """
    world, spec, promise = found.world, found.spec, short.promise
    instead = off_fabric(found.traffic, spec.fabric)
    before = known.explaining(world, instead) if known is not None else None
    if before is not None:
        print(f"# culprit found earlier, when {before.collective} was measured")
        return before.culprit, True
    slow_below_mbits_s = promise.nic_mbits_s(spec.fabric)
    links = find_slow_links(
        world, spec, found.traffic, slow_below_mbits_s, device, budget_s=budget_s
    )
    left_s = budget_s - links.effort.spent_s
    culprit, named = culprit_by(
        found, short, links, lambda size: measured_in_ranks(world, size, device, left_s)
    )
    # A search without a culprit is not kept: it cannot explain a fault that came later.
    if known is not None and named:
        known.keep(world, instead, culprit, short.sweep.measured.collective.value)
    return culprit, named


def culprit_by(
    found: Busbw, short: AlgorithmSweep, links: SlowLinks, rates: Callable[[int], Rates]
) -> tuple[Culprit, bool]:
    """The culprit by slow links or, if none is slow, by collectives; and whether there is one.

    short: the sweep that missed its bound. rates: measures all-reduces of so many bytes.
    """
    culprit = links.summary if links.culprit is not None else None
    if links.faults == 0:  # a node may be slow in collectives although its pairs are fast
        fabric = found.spec.criteria.fabric
        promise = (fabric.all_reduce_busbw if fabric else None) or short.promise
        size = promise.sizes_bytes[-1]

        def enough(nodes: int) -> float:
            model = replace(short.model, collective=Collective.ALL_REDUCE, nodes=nodes)
            return promise.bound_gbytes_s(model, (Moves.RING,), size).accepted[0]

        culprit = slow_in_collectives(found.world.nodes, enough, rates(size))
    return culprit or links.summary, bool(culprit)


def nvls_of_ranks(*, across: bool) -> Nvls:
    """What the settings, the release and the log of all ranks say; the same on every rank.

    across: over several NVLink domains. All ranks call this after their first use of NCCL, which
    writes the log. One rank without it is enough for NCCL to do without it everywhere.
    """
    files = {name: value for name, (value, _) in settings_of_files(os.environ).items()}
    settings = files | dict(os.environ)
    log = log_of_process(settings.get("NCCL_DEBUG_FILE", "")) or b""
    facts = NvlsFacts(settings, release(nccl_version() or "")).with_log(plain_lines(log))
    every = gathered(facts.used(across=across))
    return next((one for used in (False, None) for one in every if one.used is used), every[0])
