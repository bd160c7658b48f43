"""Judges bandwidth sweeps, the traffic off the fabric, and slow links. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_mnode.criteria.nics_used import judge_nics
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection, Estimate, smallest_share_wrong
from pytest_mnode.measurement import (
    Curve,
    HeadlineMark,
    Measurement,
    Verdict,
    all_of,
    at_most,
    equals,
    listed,
    with_suspects,
)
from pytest_mnode.measuring.latency import EXCHANGES, TIMES_AS_LONG, Latencies
from pytest_mnode.measuring.locating.rates import ALIKE, STANDS_OUT
from pytest_mnode.measuring.naming import culprit_of_collective
from pytest_mnode.measuring.traffic import nodes_off_fabric, off_fabric
from pytest_mnode.spec.alpha_beta import SLOW_STEPS
from pytest_mnode.spec.alpha_beta import Algorithm as Moves
from pytest_mnode.spec.bandwidth import Collective, busbw_formula
from pytest_mnode.spec.quantity import DURATION, SIZE

if TYPE_CHECKING:
    from pytest_mnode.measuring.busbw import AlgorithmSweep, Busbw
    from pytest_mnode.measuring.locating.locate import SlowLinks
    from pytest_mnode.measuring.sweep import Row, Sweep

_MOST_PAST_PERCENT = 10.0
_FEWEST_THAT_SHARE = 4
_OVER_ALL_NICS = (
    *(Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER),
    Collective.ALL_TO_ALL,
)
"""Collectives in which each node sends as much over each NIC: in a broadcast not all nodes send,
and send_recv uses those of some ranks."""
_KNOWN_STEPS = ("infiniband", "roce", "efa")
_COLUMNS = (
    ("size", "(B)", 12),
    ("count", "(elements)", 14),
    ("type", "", 10),
    ("redop", "", 8),
    ("root", "", 8),
    ("time", "(us)", 11),
    ("algbw", "(GB/s)", 9),
    ("busbw", "(GB/s)", 9),
    ("#wrong", "", 8),
    ("min", "(us)", 13),
    ("p99", "(us)", 11),
    ("max", "(us)", 11),
    ("calls", "", 9),
)
_BEFORE_TIMES, _TIMES = 5, 4


def judge_busbw(found: Busbw) -> list[Measurement]:
    """Measurements of every sweep, and whether the fabric carried its bytes.

    Results must be right at every size; only plateau sizes have a bound on busbw.
    """
    judged = [m for one in found.sweeps for m in _judge_sweep(found, one)]
    return [*judged, *_judge_nics(found), _judge_traffic(found)]


def curves(found: Busbw) -> list[Curve]:
    """One curve per algorithm, for the certificate."""
    return [
        replace(
            one.sweep.curve(one.algorithm.name, found.backend),
            line_gbytes_s=one.line_gbytes_s,
            expected=one.bounds[max(one.bounds)],
            judged_bytes=tuple(one.bounds),
        )
        for one in found.sweeps
    ]


def tables(found: Busbw) -> str:
    """Each sweep in the format of nccl-tests, below the name of its algorithm."""
    return "\n\n".join(
        f"# {one.algorithm.name}: {one.algorithm.note}\n{sweep_table(one.sweep)}"
        for one in found.sweeps
    )


def judge_slow_links(found: SlowLinks) -> list[Measurement]:
    """Slow links, and how they were found; inconclusive if the search was cut off or is unsure."""
    every = found.every_path
    unmeasured = f"; not measured: {found.unmeasured}" if found.unmeasured else ""
    inside = ""
    if found.nvlink_mbits_s is not None:
        inside = f", inside an NVLink domain {found.nvlink_mbits_s:.4g} (of NVLink's line)"
    if not found.nics_measured:
        unmeasured += "; NICs: no path leaves the NVLink domain"
    part = found.paths_measured < found.paths
    share = f" ({found.paths_measured / found.paths:.1%})" if part else ""
    return [
        Measurement(
            "slow nodes, rails and paths",
            found.faults,
            "",
            equals(0),
            f"each pair, alone, carries {found.bound_mbits_s:.4g} Mbit/s (at_least_fraction "
            f"less tolerance_fraction × fabric.line_rate of the NICs of a rank){inside}, or "
            f"{STANDS_OUT:g} to {ALIKE:g} of the rate of the fast pairs, by their noise",
            with_suspects(found.culprit, filter(None, [found.silent]))
            or (Culprit(found.cut_off) if found.cut_off else None),
            f"{found}; {found.effort}",
            detection=None
            if found.detectable_loss is None
            else Detection("less", found.detectable_loss, found.paths_measured),
        ),
        Measurement(
            "ordered paths measured",
            None if found.unmeasured and every else found.paths_measured,
            "",
            equals(found.paths) if every else None,
            "n(n-1) ordered pairs of n nodes" if every else "",
            note=f"{found.paths_measured} of {found.paths} ordered paths measured{share}"
            + unmeasured,
        ),
        *_judge_shared(found),
        Measurement(
            "paths that corrupt the data sent",
            found.corrupt_paths if found.slowest else None,
            "",
            equals(0),
            "received data must equal the data sent, even if checksums match",
            found.corrupter,
        ),
    ]


def _judge_shared(found: SlowLinks) -> list[Measurement]:
    """Links that paths share, such as uplinks of a leaf: recorded, with what a ring shows of them.

    A ring over all nodes leaves half of them once, over links that half of the nodes share.
    """
    if found.nodes < _FEWEST_THAT_SHARE or not found.slowest:
        return []
    share = 1 - 2 / found.nodes
    return [
        Measurement(
            "paths slow only beside others, over links that they share",
            found.crowded_paths,
            "",
            None,
            note="promise all_to_all_busbw to have links judged that nodes share, as uplinks of a "
            f"leaf; of those that half of the nodes share, a ring shows a loss of {share:.0%}",
            detection=Detection("less", share, found.paths_measured),
        )
    ]


def judge_latencies(found: Iterable[Latencies], nodes: Sequence[str]) -> list[Measurement]:
    """Latency of each size of the slowest node, compared with most nodes."""
    return [_judge_latency(one, nodes) for one in found]


def _judge_latency(one: Latencies, nodes: Sequence[str]) -> Measurement:
    times = one.by_node
    slowest = max(times, key=times.__getitem__)
    shown = [f"{nodes[node]} {times[node] * 1e6:.4g} µs" for node in one.slow or [slowest]]
    return Measurement(
        f"latency of {SIZE.text(one.size_bytes)}, slowest node against most nodes",
        times[slowest] / one.usual_s,
        "×",
        at_most(TIMES_AS_LONG),
        f"one way, over a node's fastest pair, by the median node or {one.least_s * 1e6:.4g} µs",
        all_of(Culprit(nodes[node], nodes[node]) for node in one.slow),
        f"{listed(shown, separator=', ')}, usual {one.usual_s * 1e6:.4g} µs; "
        f"least of {one.repeats} medians of {EXCHANGES} exchanges",
    )


def _judge_sweep(found: Busbw, one: AlgorithmSweep) -> list[Measurement]:
    label = one.algorithm.label
    measurements = []
    for row in one.sweep.rows:
        name = f"{row.collective} {SIZE.text(row.size_bytes)}"
        measurements.append(
            Measurement(
                f"{name} #wrong{label}",
                row.wrong,
                "",
                equals(0),
                "copies and sums of whole numbers are exact",
                culprit_of_collective(
                    found.world, row.collective, row.wrong_ranks, row.wrong_senders
                ),
                f"{row.checked} calls checked",
                detection=smallest_share_wrong(row.checked),
            )
        )
        measurements += _judge_row(found, one, f"{name} busbw{label}", row)
    measurements += _judge_step(one, label)
    for missing in one.sweep.unmeasured:
        bound = one.bounds.get(missing.size_bytes)
        name = f"{one.sweep.measured.collective} {SIZE.text(missing.size_bytes)} busbw{label}"
        source = one.promise.source(one.model, one.moves, missing.size_bytes) if bound else ""
        measurements.append(Measurement(name, None, "GB/s", bound, source, note=missing.why))
    return measurements


def _judge_step(one: AlgorithmSweep, label: str) -> list[Measurement]:
    """The mean step of the smallest size, beside the model's; judged if it is promised, and on
    fabrics with RDMA, whose steps are published, by `SLOW_STEPS` times the model's.

    Of a known algorithm only, and where its steps take most of the time.
    """
    promise, model, rows = one.promise, one.model, one.sweep.rows
    if not rows or len(one.moves) > 1 or one.moves[0] is Moves.NVLS:
        return []
    [algorithm], row = one.moves, rows[0]
    count, alpha_s = sum(model.steps(algorithm)), model.alpha_s(algorithm)
    moving_s = model.time_s(algorithm, row.moved_bytes) - alpha_s
    name = f"{row.collective} {SIZE.text(row.size_bytes)} step{label}"
    most_s, bound, source = promise.step_at_most_s, None, ""
    if most_s is not None:
        bound = at_most(most_s * 1e6).of("step_at_most", most_s)
        source = f"step_at_most {DURATION.text(most_s)}"
    if moving_s > alpha_s:
        why = "its bytes take most of the time: sweep a smaller size"
        return [Measurement.unknown(name, why, unit="µs", expected=bound)] if bound else []
    if bound is None and model.backend != "gloo" and model.platform.kind in _KNOWN_STEPS:
        bound = at_most(SLOW_STEPS * alpha_s / count * 1e6)
        source = f"{SLOW_STEPS:g} × the model's: {model.platform.alpha.source}"
    measured_us, expected_us = ((t / count) * 1e6 for t in (row.median_s - moving_s, alpha_s))
    return [
        Measurement(
            name,
            max(0.0, measured_us),
            "µs",
            bound,
            source,
            Culprit("slow steps: C-states, IOMMU, staging through the host, or a far NIC"),
            note=f"{measured_us / expected_us:.2g} × the model's {expected_us:.3g} µs "
            f"({model.platform.alpha.source}), mean of {count:g} steps of a {algorithm}",
        )
    ]


def _judge_row(found: Busbw, one: AlgorithmSweep, name: str, row: Row) -> list[Measurement]:
    line = one.line_gbytes_s
    share = row.busbw_gbytes_s / line
    of_the_model = row.busbw_gbytes_s / one.model.least_gbytes_s(one.moves, row.size_bytes)
    bound = one.bounds.get(row.size_bytes)
    moved = f", {row.moved_bytes} bytes moved" if row.moved_bytes != row.size_bytes else ""
    estimate = row.estimate
    note = (
        f"{share:.1%} of the line, {of_the_model:.1%} of the model, {_shape(row)}, "
        f"p99 {row.p99_s * 1e3:.4g} ms{moved}{_noise(estimate)}; {one.algorithm.note}"
    )
    if found.attempt > 1:
        note += (
            f"; attempt {found.attempt}: earlier attempts missed the bound and no slow pair was "
            "found"
        )
    busbw = row.busbw_gbytes_s
    if bound is None:
        return [Measurement(name, busbw, "GB/s", note=note)]
    formula = busbw_formula(row.collective)
    source = f"{one.promise.source(one.model, one.moves, row.size_bytes)}; {formula}"
    interval = estimate.interval if estimate else None
    judged = Measurement(
        *(name, busbw, "GB/s", bound, source, found.culprit, note),
        detection=estimate.detection(bound.accepted) if estimate else None,
        interval=interval,
        headline=_headline(row.collective, line),
    )
    if judged.verdict is Verdict.FAIL and found.held_back:
        why = (
            f"{busbw:.4g} GB/s; no node or path is slow, and threads were ready without a CPU for "
            f"{found.waited_fraction:.0%} of the time: free this machine of other work"
        )
        judged = replace(judged, value=None, culprit=None, note=f"{why}; {note}")
    elif why := one.promise.why_undecided(one.model, one.moves, row.size_bytes, judged):
        judged = replace(judged, value=None, note=f"{why}; {note}")
    measurements = [judged]
    if one.ceiling is not None:
        measurements.append(
            Measurement(
                f"{name} against the ceiling of the NICs",
                busbw,
                "GB/s",
                one.ceiling,
                f"what no algorithm exceeds on {one.model.line.text}; {formula}",
                Culprit(
                    "the clock, fabric.line_rate or fabric.nics_per_node of the spec, or a path "
                    "that is not the fabric"
                ),
                one.algorithm.note,
                # A check of what measures: it accuses only if the rate is surely impossible.
                interval=(estimate.low, busbw) if estimate else None,
            )
        )
    return measurements


def _headline(collective: str, line_gbytes_s: float) -> HeadlineMark:
    """All-reduce answers for the fabric; without it, the first collective in torch's order."""
    order = tuple(Collective).index(Collective(collective))
    words = collective.replace("_", "-")
    return HeadlineMark(words, of=line_gbytes_s, whole="the line", order=order)


def _shape(row: Row) -> str:
    """What was timed, such as "median of 5 × 3 calls" of one communicator."""
    calls = f"median of {len(row.times_s[0])} × {row.calls} calls"
    count = len(row.times_s)
    return calls if count == 1 else f"mean of {count} communicators, each the {calls}"


def _noise(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    within, between = estimate.scatter
    return f", repeats vary by {within:.2%} and communicators by {between:.2%}"


def _judge_nics(found: Busbw) -> list[Measurement]:
    if found.collective not in _OVER_ALL_NICS:
        return []
    return judge_nics(found.traffic, found.spec, found.world.local_size)


def _judge_traffic(found: Busbw) -> Measurement:
    """A rate says nothing about the fabric unless the bytes went over it."""
    fabric = found.spec.fabric
    senders = [node for node in found.traffic if node.least_bytes]
    shares = [node.share(fabric) for node in senders]
    past = [100 * (1 - share) for share in shares if share is not None]
    over = nodes_off_fabric(senders, fabric, _MOST_PAST_PERCENT / 100)
    culprit = found.culprit or off_fabric(found.traffic, fabric)
    if over:
        each = Culprit(f"{listed(over)} sent over other networks", over)
        culprit = Culprit.merged(culprit or each, [culprit, each])
    judged = fabric.kind == "ethernet"  # not every RDMA port counts bytes
    unread = [Culprit(n.node, n.node) for n in senders if judged and n.share(fabric) is None]
    return Measurement(
        "off-fabric traffic, worst node",
        max(past) if past and (over or len(past) == len(shares)) else None,
        "%",
        at_most(_MOST_PAST_PERCENT) if judged else None,
        "fabric.interfaces: busbw measures the fabric only if the bytes went over it",
        with_suspects(culprit, unread),
        ", ".join(f"{node.node} mostly {node.carrier}" for node in senders),
    )


def sweep_table(sweep: Sweep) -> str:
    """Text table with the columns of nccl-tests: one row per size, then skipped sizes and reasons.

    `time` is the median of the repeats; `calls` is repeats × consecutive calls per repeat. A sweep
    is in place if torch.distributed works in place. An average over sizes would say nothing.
    """
    measured = sweep.measured
    widths = [width for _, _, width in _COLUMNS]
    left, times = sum(widths[:_BEFORE_TIMES]), sum(widths[_BEFORE_TIMES:][:_TIMES])
    place = "in-place" if measured.in_place else "out-of-place"
    repeats = sum(widths[_BEFORE_TIMES + _TIMES :])
    lines = [
        f"# {measured.collective} over {sweep.ranks} ranks",
        "#" + f"{'':{left - 1}}{place:^{times}}{'repeats':^{repeats}}".rstrip(),
        _line(["#", *(name for name, _, _ in _COLUMNS)]),
        _line(["#", *(unit for _, unit, _ in _COLUMNS)]),
    ]
    for row in sweep.rows:
        point = row.point
        cells = (
            *(str(row.moved_bytes), str(row.count), "float", measured.redop, str(measured.root)),
            _us(point.time_median_us),
            *(f"{point.algbw_gbytes_s:.4g}", f"{point.busbw_gbytes_s:.4g}", str(row.wrong)),
            *(_us(t) for t in (point.time_min_us, point.time_p99_us, point.time_max_us)),
            f"{len(row.all_times_s)}×{row.calls}",
        )
        lines.append(_line([" ", *cells]))
    lines += [
        f"# {left_out.size_bytes} not measured: {left_out.why}" for left_out in sweep.unmeasured
    ]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    first, *rest = cells
    text = "".join(f"{cell:>{width}}" for cell, (_, _, width) in zip(rest, _COLUMNS, strict=True))
    return (first + text[1:]).rstrip()


def _us(time_us: float) -> str:
    return f"{time_us:.1f}" if time_us < 1e5 else f"{time_us:.0f}"
