"""Causes of the time that n nodes lose compared with one: seconds, kind and culprit of each.

Pure. Every part of the loss along the slowest rank of each step goes to one cause, so that causes
add up to the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from pytest_mnode.criteria.scaling.attribution import Attribution, RankMeans
from pytest_mnode.criteria.scaling.network import CollectiveBaseline
from pytest_mnode.criteria.scaling.timings import PARTS
from pytest_mnode.culprit import Culprit
from pytest_mnode.spec.scaling import ScalingCriterion

NETWORK, FABRIC, OVERLAP, COMMUNICATION = "network", "fabric", "overlap", "communication"
CONTENTION, UNMEASURED = "contention", "unmeasured"
STRAGGLER, SKEW, COMPUTE, REST = "straggler", "skew", "compute", "rest"
OWNED = (NETWORK, FABRIC, OVERLAP, STRAGGLER, "input", "checkpoint")
"""Kinds of cause that have a culprit; other kinds may come from unrelated processes."""
_OWN = {
    "input": ("waits", "wait", "for input"),
    "optimiser": ("takes", "take", "in the optimiser"),
    "checkpoint": ("takes", "take", "for the checkpoint"),
    "rest": ("takes", "take", "in unattributed work"),
}
_NAMED_FROM = 0.5
"""A rank is named if it is slower by this fraction of the loss that not all ranks share."""
_DEVICES_DIFFER = 0.05
"""Share of the usual time by which equal devices may differ: of 8,192, the slowest healthy one is
4 % slower (rehearsed, 1 % each). GPUs of a node differ by 5 % (stas00/ml-engineering, MAMF)."""
_NOTHING = 1e-3
"""Fraction of a step: no rank is named for a smaller loss."""
_LISTED_FROM = 0.1
"""Fraction of the loss: smaller causes are not listed, except the largest one."""
_HIDDEN = 0.5
"""Fraction of the transfer time that compute can hide: with less, collectives do not overlap."""

RankTime = Callable[[RankMeans], float]
_compute: RankTime = attrgetter("step.compute")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of loss. kind: of `spec.scaling.AllowedCause`, or "network", "unmeasured" or "rest".

    seconds: per step. text: what happens, with numbers. culprit: node, rank, NIC or setting; None
    if there is none.
    """

    kind: str
    seconds: float
    text: str
    culprit: Culprit | None = None


def causes_of(
    found: Attribution,
    baseline: CollectiveBaseline | None,
    off_fabric: tuple[str, Culprit | None] | None,
    promise: ScalingCriterion,
) -> tuple[Cause, ...]:
    """The causes of the loss, largest first.

    baseline: times of collectives while nothing else runs; None if not known. off_fabric: see
    network.off_fabric_nics.
    """
    lost = dict(zip(PARTS, found.lost_on_path, strict=True))
    ideal = dict(zip(PARTS, found.ideal.slowest.parts, strict=True))
    causes = [
        *_computing(found, lost["compute"], emulated=promise.compute_s is not None),
        *_communicating(found, lost["exposed"], baseline, off_fabric, promise),
    ]
    causes += [_own_part(found, part, lost[part], ideal[part]) for part in _OWN]
    text = "collectives complete at different times on different ranks: "
    text += f"{_ms(found.uneven_s)} per step"
    causes.append(Cause(SKEW, found.uneven_s, text))
    return tuple(sorted(causes, key=lambda cause: -cause.seconds))


def worth_listing(causes: Sequence[Cause], lost_s: float) -> list[Cause]:
    """The largest cause, and the others that are not too small, largest first."""
    return [c for i, c in enumerate(causes) if not i or c.seconds >= _LISTED_FROM * lost_s]


def explained(causes: Sequence[Cause], allowed: Sequence[str], lost_s: float) -> float:
    """Fraction of the loss that allowed causes account for, 0 to 1.

    A gain does not offset the loss of another cause: the whole is the larger of the loss and the
    sum of all causes that lose time.
    """
    whole = max(lost_s, sum(max(0.0, cause.seconds) for cause in causes))
    if whole <= 0:
        return 1.0
    return sum(max(0.0, c.seconds) for c in causes if c.kind in allowed) / whole


def _computing(found: Attribution, lost_s: float, *, emulated: bool) -> Iterator[Cause]:
    """Compute time that all ranks lose compared with one node, that slow ranks lose beyond it, and
    that the slowest rank of a step loses beyond both.

    The usual rank is compared with the usual rank of one node. Unevenness that one node has alone
    is no loss, and is subtracted from the other two. No rank is named that is as near to the usual
    one as equal devices are, unless compute is emulated, which takes equally long everywhere.
    """
    usual = usual_s(found.ranks, _compute)
    alone_s = usual_s(found.alone, _compute)
    common_s = usual - alone_s
    rank_specific_s = lost_s - common_s
    as_alone_s = uneven_s(found.alone, _compute)
    slow_ranks = None
    if rank_specific_s > _NOTHING * found.typical.mean.wall_s:
        slow_ranks = slow(
            found.ranks,
            _compute,
            max(
                as_alone_s + _NAMED_FROM * rank_specific_s,
                0.0 if emulated else _DEVICES_DIFFER * usual,
            ),
            lambda rank: rank.computes_mostly,
        )
    yield Cause(
        COMPUTE,
        common_s,
        f"all ranks compute {_times(usual, alone_s)} as long as one node alone: "
        f"{_ms(common_s)} more",
        Culprit("all nodes"),
    )
    if slow_ranks is not None:
        label, several, slowest_s = slow_ranks
        straggler_s = min(rank_specific_s, slowest_s - usual - as_alone_s)
        rank_specific_s -= straggler_s
        verb = "compute up to" if several else "computes"
        text = f"{label} {verb} {_times(slowest_s, usual)} slower: "
        text += f"{_ms(slowest_s)}, others {_ms(usual)}"
        yield Cause(STRAGGLER, straggler_s, text, label)
    often = max(found.ranks, key=lambda rank: rank.slowest_in)
    text = (
        f"ranks compute unevenly: the slowest of a step, most often rank {often.rank} on "
        f"{often.node}, takes {_ms(rank_specific_s)} more"
    )
    yield Cause(SKEW, rank_specific_s, text, None)


def _own_part(found: Attribution, part: str, lost_s: float, ideal_s: float) -> Cause:
    of: RankTime = attrgetter(f"step.{part}")
    slow_ranks = None
    if lost_s > _NOTHING * found.typical.mean.wall_s:
        slow_ranks = slow(found.ranks, of, uneven_s(found.alone, of) + _NAMED_FROM * lost_s)
    if slow_ranks is None and part == REST:
        text = f"unattributed: {_ms(lost_s)} per step in the bookkeeping of ranks"
        return Cause(REST, lost_s, text)
    if slow_ranks is None:
        text = f"{part} takes {_ms(ideal_s + lost_s)} per step, on one node {_ms(ideal_s)}"
        return Cause(part, lost_s, text, Culprit("all nodes") if lost_s > 0 else None)
    (one, many, what), (label, several, slowest_s) = _OWN[part], slow_ranks
    verb = f"{many} up to" if several else one
    text = f"{label} {verb} {_ms(slowest_s)} per step {what}"
    text += f", others {_ms(usual_s(found.ranks, of))}"
    return Cause(part, lost_s, text, label)


def _communicating(
    found: Attribution,
    lost_s: float,
    baseline: CollectiveBaseline | None,
    off_fabric: tuple[str, Culprit | None] | None,
    promise: ScalingCriterion,
) -> Iterator[Cause]:
    """Exposed communication: on the wrong network, slow, needed by the fabric, or beyond that."""
    exposed = f"collectives exposed {_ms(lost_s)} per step"
    hidden = found.hidden_fraction
    hid = "" if hidden is None else f"; {hidden:.0%} of communication is hidden"
    if off_fabric is not None:
        network, culprit = off_fabric
        yield Cause(NETWORK, lost_s, f"traffic on {network}: {exposed}", culprit)
        return
    if baseline is None:
        text = f"{exposed}{hid}; what the fabric allows was not measured"
        yield Cause(UNMEASURED, lost_s, text)
        return
    at = baseline.speed
    if min(baseline.of_model, baseline.of_line) < promise.fabric_fraction:
        text = f"{exposed}: fabric at {at}{hid}"
        yield Cause(FABRIC, lost_s, text, Culprit("the fabric"))
        return
    backward_s = found.typical.slowest.backward_s
    allowed_s = baseline.exposed_s(backward_s)
    more_s = lost_s - allowed_s
    if more_s <= 0:
        text = f"{exposed}{hid}; fabric at {at}, which allows {_ms(allowed_s)}"
        yield Cause(COMMUNICATION, lost_s, text, Culprit("the job"))
        return
    text = f"collectives alone need {_ms(allowed_s)} per step that nothing hides"
    yield Cause(COMMUNICATION, allowed_s, text, Culprit("the job"))
    sent_s, hidden_s = found.sent_s or 0.0, found.hidden_s
    if hidden_s is not None and hidden_s < _HIDDEN * min(sent_s, backward_s):
        text = (
            f"collectives are not overlapped: {hidden:.0%} of communication is hidden, "
            f"{_ms(lost_s)} per step exposed, where the fabric allows {_ms(allowed_s)}"
        )
        yield Cause(OVERLAP, more_s, text, Culprit("the job"))
        return
    text = f"{exposed}{hid}; {_ms(more_s)} more than the fabric allows at {at}"
    yield Cause(CONTENTION, more_s, text, None)


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f} ms" if abs(value) >= 10 else f"{value:.1f} ms"


def _times(one_s: float, other_s: float) -> str:
    return f"{one_s / other_s:.2g}×" if other_s > 0 else "∞×"


def usual_s(ranks: Sequence[RankMeans], of: RankTime) -> float:
    """The median time of the faster half of the ranks."""
    times = sorted(map(of, ranks))
    return median(times[: (len(times) + 1) // 2])


def uneven_s(ranks: Sequence[RankMeans], of: RankTime) -> float:
    """Seconds that the slowest rank takes beyond the usual time."""
    return max(map(of, ranks)) - usual_s(ranks, of)


def slow(
    ranks: Sequence[RankMeans], of: RankTime, more_s: float, mostly: RankTime | None = None
) -> tuple[Culprit, bool, float] | None:
    """Ranks that take at least `more_s` beyond the usual time, or nodes of which all do; whether
    they are several; and the seconds of the slowest. None if there are none.

    mostly: time that a rank takes at least in most steps; given if rare slow steps do not count.
    """
    usual = usual_s(ranks, of)
    slow_ranks = [rank for rank in ranks if (mostly or of)(rank) - usual >= more_s]
    if not slow_ranks:
        return None
    late = {rank.rank for rank in slow_ranks}
    on_time = {rank.node for rank in ranks if rank.rank not in late}
    names = dict.fromkeys(
        Culprit(
            f"rank {rank.rank} on {rank.node}" if rank.node in on_time else rank.node, rank.node
        )
        for rank in slow_ranks
    )
    *most, last = names
    label = Culprit.merged(f"{', '.join(most)} and {last}" if most else last, names)
    return label, bool(most), max(map(of, slow_ranks))
