"""Judges traffic of many nodes at once: bisection, incast, congestion. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_mnode.criteria.port_counters.judging import judge as judge_ports
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.detection import estimate
from pytest_mnode.intervals import interval_of
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.measurement import Measurement, all_of, at_least, at_most, equals, listed

if TYPE_CHECKING:
    from pytest_mnode.measuring.at_once import Beside, Bisection, Incast
    from pytest_mnode.spec.at_once import (
        BisectionPromise,
        CongestionPromise,
        Counted,
        IncastPromise,
    )
    from pytest_mnode.spec.inventory import Fabric

_CONFIDENCE = 0.98
"""Of both sides together: the true value is beyond one end in at most 1 of 100 cases."""
_MARKS = ("np_cnp_sent", "np_ecn_marked_roce_packets")


def judge_bisection(found: Bisection, promise: BisectionPromise) -> list[Measurement]:
    """The sum over all pairs. If each pair alone is fast enough, what they share is to blame."""
    fraction, blocking = promise.at_least_fraction, promise.oversubscription
    limit = fraction * found.line_gbits_s / blocking
    value = estimate(found.gbits_s, looks=1)
    names = [compress(half) for half in found.halves]
    text = f"{names[0]} and {names[1]}"
    each = fraction * found.line_gbits_s / len(found.halves[0])
    slow = {pair: rate for pair, rate in found.alone_gbits_s.items() if rate < each / blocking}
    shown = listed(f"{a} and {b} alone {rate:.4g}" for (a, b), rate in slow.items())
    culprit = Culprit(
        f"uplinks between {text}: each pair alone is fast enough",
        either=[[node for half in found.halves for node in half]],
    )
    if slow:
        culprit = Culprit.merged(shown, [Culprit.path(shown, (a, b), (b, a)) for a, b in slow])
    bound = at_least(limit).of("criteria.fabric.bisection.at_least_fraction", fraction)
    return [
        Measurement(
            "bisection, all pairs at once, both ways",
            value.value if value else None,
            "Gbit/s",
            bound,
            f"fabric.bisection: at_least_fraction {fraction:g} × line rate of "
            f"{2 * len(found.halves[0])} nodes' NICs {found.line_gbits_s:g} Gbit/s / "
            f"oversubscription {blocking:g}",
            culprit,
            f"between {text}; {len(found.gbits_s)} communicators",
            interval=value.interval if value else None,
        )
    ]


def judge_incast(found: Incast, promise: IncastPromise, fabric: Fabric) -> list[Measurement]:
    """What the slowest node received in its turn, and what ports counted meanwhile."""
    fraction = promise.at_least_fraction
    limit = fraction * found.line_gbits_s
    slow = {node: rate for node, rate in found.gbits_s.items() if rate < limit}
    worst = min(found.gbits_s, key=found.gbits_s.__getitem__)
    words = listed(f"{node} received {rate:.4g} Gbit/s" for node, rate in slow.items())
    if (lost := promise.lost_at_most_fraction) is not None:
        fabric = fabric.model_copy(update={"lost_at_most_fraction": lost})
    key = "fabric.lost_at_most_fraction"
    ports = [
        one
        if lost is None or key not in one.source
        else replace(one, source=one.source.replace(key, "fabric.incast.lost_at_most_fraction"))
        for one in judge_ports(found.before, found.after, fabric)
    ]
    if lost is None and fabric.by_kernel:
        ports = [
            replace(one, expected=None, source="recorded: TCP finds its rate by losses")
            if key in one.source
            else one
            for one in ports
        ]
    return [
        Measurement(
            "incast, node that received least",
            found.gbits_s[worst],
            "Gbit/s",
            at_least(limit).of("criteria.fabric.incast.at_least_fraction", fraction),
            f"fabric.incast.at_least_fraction {fraction:g} × line rate of its NICs "
            f"{found.line_gbits_s:g} Gbit/s",
            Culprit(words, slow) if slow else None,
            f"{worst}, from {found.senders} nodes at once; {len(found.gbits_s)} nodes in turns",
        ),
        *(replace(one, name=f"{one.name}, in an incast") for one in ports),
        *_counted("pause frames in an incast", "pause", promise.pause, found.pauses),
        *_counted("congestion marks in an incast", "ecn", promise.ecn, _marks(found)),
    ]


def _marks(found: Incast) -> dict[str, int | str]:
    """Marks and notifications that each node counted; of several counters the largest."""
    counts: dict[str, int | str] = {}
    for node, after in found.after.items():
        before = found.before[node].ports
        rises = [
            now - start
            for port, counters in after.ports.items()
            for name in _MARKS
            if (now := counters.get(name)) is not None
            and (start := before.get(port, {}).get(name)) is not None
        ]
        counts[node] = max(rises) if rises else "its NICs do not count marks"
    return counts


def _counted(
    name: str, key: str, wanted: Counted, counts: dict[str, int | str] | object
) -> list[Measurement]:
    """The sum over nodes, judged if it must be or must not be; what nobody counts is inconclusive
    where it is judged, and left out where it is not."""
    assert isinstance(counts, dict)
    known = {node: count for node, count in counts.items() if isinstance(count, int)}
    why = listed(f"{node}: {count}" for node, count in counts.items() if isinstance(count, str))
    source = f"fabric.incast.{key} {wanted}"
    total = sum(known.values())
    if wanted == "may":
        return [Measurement(name, total, "", note=why)] if known else []
    bound = at_least(1) if wanted == "must" else equals(0)
    if why and not (total if wanted == "must" else any(known.values())):
        return [Measurement.unknown(name, why, expected=bound, source=source)]
    guilty = [node for node, count in known.items() if bool(count) is (wanted == "never")]
    culprit = Culprit(f"{compress(guilty)}: {'none' if wanted == 'must' else 'some'}", guilty)
    return [Measurement(name, total, "", bound, source, culprit, why)]


def judge_congestion(found: Beside, promise: CongestionPromise) -> list[Measurement]:
    """The victims' loss: over the rounds, of the ratio of times alone and beside the aggressors."""
    ratios = [one / both for one, both in zip(found.alone_s, found.beside_s, strict=True)]
    kept = interval_of(ratios, _CONFIDENCE)
    name, most = "loss of an all-reduce beside other traffic", promise.loss_at_most
    bound = None if most is None else at_most(100 * most)
    if bound is not None and most is not None:
        bound = bound.of("criteria.fabric.congestion.loss_at_most", most)
    source = "recorded" if most is None else f"fabric.congestion.loss_at_most {most:g}"
    text = f"all-reduce over {compress(found.victims)}, exchange over {compress(found.aggressors)}"
    if kept is None:
        return [Measurement.unknown(name, text, unit="%", expected=bound, source=source)]
    low, high = 100 * (1 - kept.high), 100 * (1 - kept.low)
    early = sum(last < both for last, both in zip(found.lasted_s, found.beside_s, strict=True))
    notes = [text, f"{len(ratios)} rounds"]
    notes += [f"in {early} of them the other traffic ended first: it costs more"] if early else []
    culprit = all_of(
        [
            Culprit(
                f"what {compress(found.victims)} and {compress(found.aggressors)} share",
                either=[[*found.victims, *found.aggressors]],
                parts=Parts(),
            )
        ]
    )
    value = min(max(100 * (1 - (kept.low * kept.high) ** 0.5), low), high)
    return [
        Measurement(name, value, "%", bound, source, culprit, listed(notes), interval=(low, high))
    ]
