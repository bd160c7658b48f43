"""Results of the programs beside what the spec promises of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_mnode.measuring.tools.nccl import NcclRun
from pytest_mnode.measuring.tools.rdma import PairBandwidth
from pytest_mnode.spec.bandwidth import busbw_at_line_rate
from pytest_mnode.spec.quantity import RATE, SIZE

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec.fabric import BusbwPromise, WriteBandwidthPromise
    from pytest_mnode.spec.inventory import Fabric


def record_devices(measure: Measure, devices: Mapping[str, Sequence[str]], fabric: Fabric) -> None:
    """A measurement a node: without its devices there is nothing to write over."""
    for node, names in devices.items():
        measure(
            f"RDMA devices of {node}",
            len(names),
            at_least=fabric.nics_per_node,
            source="fabric.nics_per_node",
            culprit=f"{node} has {', '.join(names) or 'no RDMA device of the fabric'}",
        )


def record_write_bandwidths(
    measure: Measure,
    pairs: Iterable[PairBandwidth],
    fabric: Fabric,
    promise: WriteBandwidthPromise,
) -> None:
    """A measurement a pair and rail, against one port's line rate."""
    for pair in pairs:
        measure(
            f"{promise.program} {pair.path}",
            pair.gbits_s,
            "Gbit/s",
            at_least=promise.at_least_fraction * fabric.line_rate_gbits_s,
            source=(
                f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}"
                f" × at_least_fraction {promise.at_least_fraction:g}"
            ),
            culprit=pair.path,
            note=pair.why,
        )


def record_nccl_run(measure: Measure, run: NcclRun, fabric: Fabric, promise: BusbwPromise) -> None:
    """A measurement for each plateau size of the promise, and one of wrong values."""
    told = f"{run.test.program or ''} {run.test.version or ''}".strip() if run.test else ""
    line = busbw_at_line_rate(run.collective, fabric, run.nodes, run.ranks_per_node, "nccl")
    bound = promise.bound_gbytes_s(line)
    for size_bytes in promise.plateau_sizes_bytes:
        row = None if run.why else run.row(size_bytes)
        busbw = row.out_of_place.busbw_gbytes_s if row else None
        part = f"{busbw / line.gbytes_s:.1%} of the line" if busbw else ""
        measure(
            f"nccl-tests {run.collective} {SIZE.text(size_bytes)} busbw",
            busbw,
            "GB/s",
            at_least=bound.limit,
            tolerance=bound.tolerance,
            source=promise.source(line),
            note="; ".join(filter(None, [run.why or part or "no row of that size", told])),
        )
    # What was seen to be wrong is, however the program ended.
    wrong = run.test.wrong if run.test and (run.test.wrong or not run.why) else None
    sizes = run.test.wrong_by_size if run.test else {}
    where = ", ".join(f"{count} of {SIZE.text(size)}" for size, count in sizes.items())
    unchecked = "" if wrong is not None else "results were not checked (-c 0)"
    measure(
        f"nccl-tests {run.collective} #wrong",
        wrong,
        equals=0,
        source="as nccl-tests checks them",
        culprit=f"wrong values: {where or wrong}",
        note=run.why or unchecked,
    )
