"""A collective against what the spec promises of it: measured, and located where it falls short."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_mnode.measurement import Bound
from pytest_mnode.measuring.agree import by_rank
from pytest_mnode.measuring.algorithms import Algorithm, algorithms_of, chosen_algorithm, group_for
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.findings import Findings
from pytest_mnode.measuring.leave_one_out import slow_in_company
from pytest_mnode.measuring.locate import BUDGET_S, located
from pytest_mnode.measuring.mesh import whose
from pytest_mnode.measuring.sweep import Row, Sweep, Unmeasured, sweep
from pytest_mnode.measuring.table import table
from pytest_mnode.measuring.traffic import Counted, NodeTraffic, astray
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec
from pytest_mnode.spec.bandwidth import (
    BusbwAtLineRate,
    Collective,
    busbw_at_line_rate,
    busbw_formula,
    least_node_bytes,
)
from pytest_mnode.spec.fabric import BusbwPromise
from pytest_mnode.spec.quantity import SIZE

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

_MOST_PAST_PERCENT = 10.0
_PAST_PHYSICS = 0.05
"""Of the ceiling, by which busbw may exceed it: a shaper's burst and the grain of clocks."""
_TRIALS = 3
"""Of an emulated fabric that falls short with nobody to blame."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A sweep with one algorithm, beside what it is judged by; the same on every rank.

    culprit: None where the promise was kept. trial: how often it was measured until then.
    """

    algorithm: Algorithm
    sweep: Sweep
    promise: BusbwPromise
    line: BusbwAtLineRate
    culprit: str | None = None
    trial: int = 1
    world: World | None = None

    @property
    def bound(self) -> Bound:
        """What busbw must reach on the plateau."""
        return self.promise.bound_gbytes_s(self.line)

    @property
    def falls_short(self) -> bool:
        """Whether a size of the plateau was measured below the bound."""
        return not all(self.bound.holds(r.busbw_gbytes_s) for r in self.sweep.rows if self._on(r))

    def _on(self, size: Row | Unmeasured) -> bool:
        return size.size_bytes in self.promise.plateau_sizes_bytes

    def record(self, measure: Measure) -> None:
        """Results must be right at every size; plateau sizes have their bound, others have none."""
        pinned = ", ring pinned" if self.algorithm.pinned else ""
        for row in self.sweep.rows:
            name = f"{row.collective} {SIZE.text(row.size_bytes)}"
            measure(
                f"{name} #wrong{pinned}",
                row.wrong,
                equals=0,
                source="whole numbers, sent or added up, are exact",
                culprit=whose(self.world, row.wrong_ranks) if self.world else None,
            )
            self._record_busbw(measure, f"{name} busbw{pinned}", row)
        for missing in self.sweep.unmeasured:
            name = f"{self.sweep.measured.collective} {SIZE.text(missing.size_bytes)}"
            self._record_missing(measure, f"{name} busbw{pinned}", missing)

    def _record_busbw(self, measure: Measure, name: str, row: Row) -> None:
        share = row.busbw_gbytes_s / self.line.gbytes_s
        moved = f", {row.moved_bytes} bytes moved" if row.moved_bytes != row.size_bytes else ""
        note = (
            f"{share:.1%} of the line, median of {len(row.times_s)} × {row.calls} calls, "
            f"p99 {row.p99_s * 1e3:.4g} ms{moved}; {self.algorithm.note}"
        )
        if self.trial > 1:
            note += f"; sweep {self.trial}, for before it fell short with nobody slow"
        if not self._on(row):
            measure(name, row.busbw_gbytes_s, "GB/s", note=note)
            return
        measure(
            name,
            row.busbw_gbytes_s,
            "GB/s",
            at_least=self.bound.limit,
            tolerance=self.bound.tolerance,
            source=f"{self.promise.source(self.line)}; {busbw_formula(row.collective)}",
            culprit=self.culprit,
            note=note,
        )
        ceiling = self.line.ceiling_gbytes_s
        if self.algorithm.physical and ceiling is not None:
            measure(
                f"{name} beside what NICs carry",
                row.busbw_gbytes_s,
                "GB/s",
                at_most=ceiling,
                tolerance=_PAST_PHYSICS * ceiling,
                source=f"what all NICs of a node carry; {busbw_formula(row.collective)}",
                culprit="the clock, fabric.line_rate or fabric.nics_per_node of the spec, or a "
                "path that is not the fabric",
                note=self.algorithm.note,
            )

    def _record_missing(self, measure: Measure, name: str, missing: Unmeasured) -> None:
        judged = self._on(missing)
        measure(
            name,
            None,
            "GB/s",
            at_least=self.bound.limit if judged else None,
            tolerance=self.bound.tolerance if judged else 0.0,
            source=self.promise.source(self.line) if judged else "",
            note=missing.why,
        )


@dataclass(frozen=True, slots=True)
class Busbw:
    """A collective beside its promise, with each algorithm; the same on every rank.

    traffic: what each node sent meanwhile. culprit: None where the promise was kept.
    """

    spec: Spec
    backend: str
    judged: tuple[Judged, ...]
    traffic: tuple[NodeTraffic, ...]

    @property
    def culprit(self) -> str | None:
        """Who is to blame where a promise was broken."""
        return next((j.culprit for j in self.judged if j.culprit), None)

    def after(self, trial: int, culprit: str | None = None) -> Busbw:
        """The same as the outcome of this trial."""
        judged = tuple(replace(j, culprit=culprit, trial=trial) for j in self.judged)
        return replace(self, judged=judged)

    def tables(self) -> str:
        """Each sweep as nccl-tests prints it, under the algorithm it was made with."""
        return "\n\n".join(
            f"# {j.algorithm.name}: {j.algorithm.note}\n{table(j.sweep)}" for j in self.judged
        )

    def record(self, measure: Measure) -> None:
        """Every sweep with its bounds and its curve, and whether the fabric carried it."""
        for judged in self.judged:
            judged.record(measure)
            measure.curve(judged.sweep.curve(judged.algorithm.name, self.backend))
        self._record_traffic(measure)

    def _record_traffic(self, measure: Measure) -> None:
        """A rate says nothing of the fabric unless the bytes went over it."""
        fabric = self.spec.fabric
        senders = [node for node in self.traffic if node.least_bytes]
        shares = [node.share(fabric) for node in senders]
        past = [100 * (1 - share) for share in shares if share is not None]
        judged = fabric.kind == "ethernet"  # not every RDMA port counts bytes
        measure(
            "sent past the fabric, by the node that did most",
            max(past) if past and len(past) == len(shares) else None,
            "%",
            at_most=_MOST_PAST_PERCENT if judged else None,
            source="what is measured is the fabric only if the bytes went over it",
            culprit=self.culprit or astray(self.traffic, fabric),
            note=", ".join(f"{node.node} mostly {node.carrier}" for node in senders),
        )


def measured_busbw(
    collective: str,
    promise: BusbwPromise,
    spec: Spec,
    world: World,
    device: torch.device,
    *,
    findings: Findings | None = None,
    budget_s: float = BUDGET_S,
) -> Busbw:
    """Sweep the sizes of the promise; where a plateau size falls short, find out who is to blame.

    collective: torch.distributed's name. findings: what was located before in this run; a culprit
    that is known is not looked for again. All ranks call this, with the default group in place.
    Takes a few seconds, and up to `budget_s` more in all where the promise is broken. Emulated
    nodes share the processors of one machine, which others may use as well: where the promise is
    broken and nobody is found to be slow, it is all done again, twice at the most, and the note
    says so.
    """
    for trial in range(1, _TRIALS + 1):
        found = _measured(collective, promise, spec, world, device)
        short = [j for j in found.judged if j.falls_short]
        if not short:
            return found.after(trial)
        started_s = time.monotonic()
        culprit, named = _located(
            world, short[0], spec, found.traffic, device, findings=findings, budget_s=budget_s
        )
        if named or not spec.emulated:
            break
        [spent_s] = by_rank([time.monotonic() - started_s], device)[0]  # the same on all ranks
        budget_s = max(0.0, round(budget_s - spent_s, 1))
    return found.after(trial, culprit)


def _measured(
    collective: str, promise: BusbwPromise, spec: Spec, world: World, device: torch.device
) -> Busbw:
    """One sweep with each algorithm."""
    measured = COLLECTIVES[collective]
    backend = dist.get_backend()
    line = busbw_at_line_rate(collective, spec.fabric, len(world.nodes), world.local_size, backend)
    judged = []
    with Counted(world) as counted:
        for algorithm in algorithms_of(
            measured.collective, backend, world.local_size, chosen_algorithm()
        ):
            with group_for(algorithm, device) as group:
                found = sweep(
                    measured,
                    promise.sizes_bytes,
                    warmup=promise.warmup,
                    repeats=promise.repeats,
                    device=device,
                    group=group,
                )
            judged.append(Judged(algorithm, found, promise, line, world=world))
    timed_bytes = sum(row.timed_bytes for j in judged for row in j.sweep.rows)
    traffic = counted.by_node(_least_bytes(measured.collective, timed_bytes, world))
    return Busbw(spec, backend, tuple(judged), traffic)


def _least_bytes(collective: Collective, timed_bytes: int, world: World) -> list[int]:
    """What each node must have sent; of a broadcast the root's alone, others may send nothing."""
    nodes = len(world.nodes)
    least = least_node_bytes(collective, timed_bytes, nodes, world.local_size)
    return [timed_bytes] + [0] * (nodes - 1) if least is None else [int(least)] * nodes


def _located(  # noqa: PLR0917  what `located` takes
    world: World,
    told_by: Judged,
    spec: Spec,
    traffic: tuple[NodeTraffic, ...],
    device: torch.device,
    budget_s: float,
    *,
    findings: Findings | None,
) -> tuple[str, bool]:
    """Who is to blame, found now or before in this run; and whether it is anybody.

    All ranks call this.
    """
    collective = told_by.sweep.measured.collective.value
    instead = astray(traffic, spec.fabric)
    known = findings.explaining(world, instead) if findings is not None else None
    if known is not None:
        print(f"# culprit as located when {known.told_by} was measured")
        return known.culprit, True
    slow_below_mbits_s = told_by.promise.nic_mbits_s(spec.fabric)
    found = located(world, spec, traffic, slow_below_mbits_s, device, budget_s=budget_s)
    culprit = str(found) if found.culprit is not None else None
    if found.faults == 0:
        culprit = _in_company(world, spec, told_by, device, budget_s - found.spent_s)
    # That nobody was found explains nothing, least of all a fault that came later.
    if findings is not None and culprit:
        findings.keep(world, instead, culprit, collective)
    return culprit or str(found), bool(culprit)


def _in_company(
    world: World, spec: Spec, told_by: Judged, device: torch.device, budget_s: float
) -> str:
    """Who slows collectives though every pair that it is in is fast; "" where nobody is found."""
    fabric = spec.criteria.fabric
    promise = (fabric.all_reduce_busbw if fabric else None) or told_by.promise
    bound = promise.bound_gbytes_s(spec.fabric)
    size_bytes = promise.plateau_sizes_bytes[-1]
    return slow_in_company(world, size_bytes, bound.limit - bound.tolerance, device, budget_s)
