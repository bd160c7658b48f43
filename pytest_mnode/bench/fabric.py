"""A collective against what the spec promises of it: measured, and located where it falls short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pytest_mnode.bench.collectives import Measured
from pytest_mnode.bench.locate import locate
from pytest_mnode.bench.sweep import Row, Sweep, sweep
from pytest_mnode.bench.traffic import Counted, NodeTraffic, astray
from pytest_mnode.spec import Spec
from pytest_mnode.spec.criteria import BusbwPromise
from pytest_mnode.spec.quantity import SIZE
from pytest_mnode.spec.wire import line_rate_gbytes_s
from pytest_mnode.world.contract import World

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure


_MOST_PAST_PERCENT = 10.0


@dataclass(frozen=True, slots=True)
class Busbw:
    """A sweep beside its promise; the same on every rank.

    traffic: what each node sent meanwhile. culprit: None where the promise was kept.
    """

    spec: Spec
    promise: BusbwPromise
    sweep: Sweep
    traffic: tuple[NodeTraffic, ...]
    culprit: str | None

    def record(self, measure: Measure) -> None:
        """Plateau sizes with their bound, smaller ones without; results must be right at all."""
        for row in self.sweep.rows:
            name = f"{row.collective} {SIZE.text(row.size_bytes)}"
            measure(f"{name} #wrong", row.wrong, equals=0, source="a sum of whole numbers is exact")
            self._record_busbw(measure, f"{name} busbw", row)
        self._record_traffic(measure)

    def _record_busbw(self, measure: Measure, name: str, row: Row) -> None:
        fabric = self.spec.fabric
        part = row.busbw_gbytes_s / line_rate_gbytes_s(fabric)
        note = f"{part:.1%} of the line, median of {len(row.times_s)} × {row.calls} calls"
        if row.size_bytes not in self.promise.plateau_sizes_bytes:
            measure(name, row.busbw_gbytes_s, "GB/s", note=note)
            return
        bound = self.promise.bound_gbytes_s(fabric)
        measure(
            name,
            row.busbw_gbytes_s,
            "GB/s",
            at_least=bound.limit,
            tolerance=bound.tolerance,
            source=self.promise.source(fabric),
            culprit=self.culprit,
            note=note,
        )

    def _record_traffic(self, measure: Measure) -> None:
        """A rate says nothing of the fabric unless the bytes went over it."""
        fabric = self.spec.fabric
        shares = [node.share(fabric) for node in self.traffic]
        past = [100 * (1 - share) for share in shares if share is not None]
        judged = fabric.kind == "ethernet"  # the kernel does not count what RDMA moves
        measure(
            "sent past the fabric, by the node that did most",
            max(past) if len(past) == len(shares) else None,
            "%",
            at_most=_MOST_PAST_PERCENT if judged else None,
            source="what is measured is the fabric only if the bytes went over it",
            culprit=self.culprit or astray(self.traffic, fabric),
            note=", ".join(f"{node.node} mostly {node.carrier}" for node in self.traffic),
        )


def measured_busbw(
    measured: Measured, promise: BusbwPromise, spec: Spec, world: World, device: torch.device
) -> Busbw:
    """Sweep the sizes of the promise; where a plateau size falls short, find out who is to blame.

    All ranks call this, with the default group in place. Takes a few seconds, and up to
    `locate.BUDGET_S` more where the promise is broken.
    """
    with Counted(world) as counted:
        result = sweep(
            measured,
            promise.sizes_bytes,
            warmup=promise.warmup,
            repeats=promise.repeats,
            device=device,
        )
    traffic = counted.by_node(sum(row.timed_bytes for row in result.rows))
    bound = promise.bound_gbytes_s(spec.fabric)
    plateau = [row for row in result.rows if row.size_bytes in promise.plateau_sizes_bytes]
    culprit = None
    if not all(bound.holds(row.busbw_gbytes_s) for row in plateau):
        fraction = promise.at_least_fraction - promise.tolerance_fraction
        culprit = locate(world, spec, traffic, fraction * spec.fabric.line_rate_mbits_s, device)
    return Busbw(spec, promise, result, traffic, culprit)
