"""What made n nodes lose time against one: causes, each with its seconds, kind and culprit.

Pure. Every part of the loss along the slowest rank of each step goes to one cause, so that causes
add up to the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mnode.criteria.scaling.attribution import Attribution, RankMeans
from pytest_mnode.criteria.scaling.network import CollectiveBaseline
from pytest_mnode.criteria.scaling.timings import PARTS
from pytest_mnode.spec.scaling import ScalingCriterion

NETWORK, FABRIC, OVERLAP, COMMUNICATION = "network", "fabric", "overlap", "communication"
CONTENTION, UNMEASURED = "contention", "unmeasured"
STRAGGLER, SKEW, COMPUTE, REST = "straggler", "skew", "compute", "rest"
OWNED = (NETWORK, FABRIC, OVERLAP, STRAGGLER, "input", "checkpoint")
"""Kinds that have a culprit; others may come from whatever else runs."""
_OWN = {
    "input": ("waits", "wait", "for input"),
    "optimiser": ("takes", "take", "longer to optimise"),
    "checkpoint": ("takes", "take", "longer for its checkpoint"),
    "rest": ("takes", "take", "that is unattributed"),
}
_NAMED_FROM = 0.5
"""Of what is lost beyond what all lose: a rank that is slower by this part is named."""
_NOTHING = 1e-3
"""Of a step: nobody is named for losing less."""
_LISTED_FROM = 0.1
"""Of the loss: smaller causes are not listed, except the largest of all."""
_HIDDEN = 0.5
"""Of the gradients' way, as far as computing lasts: what has to be hidden to be overlapped."""

Of = Callable[[RankMeans], float]


@dataclass(frozen=True, slots=True)
class Cause:
    """kind: of `spec.scaling.AllowedCause`, or "network", "unmeasured" or "rest". seconds: of each
    step.

    text: what happens, with numbers. culprit: node, rank, NIC or setting; None where nobody's.
    """

    kind: str
    seconds: float
    text: str
    culprit: str | None = None


def causes_of(
    found: Attribution,
    baseline: CollectiveBaseline | None,
    instead: tuple[str, str | None] | None,
    promise: ScalingCriterion,
) -> tuple[Cause, ...]:
    """The causes of the loss on `found.count` nodes, largest first.

    baseline: what the fabric does with nothing else going on, None where that is
    not known. instead: see network.instead_of.
    """
    lost = dict(zip(PARTS, found.lost_on_path, strict=True))
    ideal = dict(zip(PARTS, found.path_ideal, strict=True))
    causes = [
        *_computing(found, lost["compute"]),
        *_communicating(found, lost["exposed"], baseline, instead, promise),
    ]
    causes += [_own_part(found, part, lost[part], ideal[part]) for part in _OWN]
    text = f"ranks hear unevenly that a collective has ended: {_ms(found.uneven_s)} a step"
    causes.append(Cause(SKEW, found.uneven_s, text))
    return tuple(sorted(causes, key=lambda cause: -cause.seconds))


def describe(causes: Sequence[Cause], lost_s: float) -> str:
    """The causes that matter in words, largest first."""
    worth = [c for i, c in enumerate(causes) if not i or c.seconds >= _LISTED_FROM * lost_s]
    return "; ".join(cause.text for cause in worth)


def explained(causes: Sequence[Cause], allowed: Sequence[str], lost_s: float) -> float:
    """Part of the loss that allowed causes account for, 0 to 1.

    What a cause gains does not pay for what another loses: the whole is the larger of the loss and
    of all that is lost anywhere.
    """
    whole = max(lost_s, sum(max(0.0, cause.seconds) for cause in causes))
    if whole <= 0:
        return 1.0
    return sum(max(0.0, c.seconds) for c in causes if c.kind in allowed) / whole


def _computing(found: Attribution, lost_s: float) -> Iterator[Cause]:
    """What all ranks take longer than one node alone, what some mostly take beyond that, and what
    the slowest of a step takes beyond those.

    The usual rank is compared with the usual rank of one node. What is uneven inside one node costs
    nothing against it: so much of the other two was there before.
    """
    usual = usual_s(found.ranks, _compute)
    alone_s = usual_s(found.alone, _compute)
    common_s = usual - alone_s
    own_s = lost_s - common_s
    as_alone_s = uneven_s(found.alone, _compute)
    late = None
    if own_s > _NOTHING * found.step_s:
        late = slow(
            found.ranks,
            _compute,
            as_alone_s + _NAMED_FROM * own_s,
            lambda rank: rank.computes_mostly,
        )
    yield Cause(
        COMPUTE,
        common_s,
        f"all ranks compute {_times(usual, alone_s)} as long as one node alone: "
        f"{_ms(common_s)} more",
        "all nodes",
    )
    if late is not None:
        its_s = min(own_s, late.seconds - usual - as_alone_s)
        own_s -= its_s
        verb = "compute up to" if late.several else "computes"
        text = f"{late.who} {verb} {_times(late.seconds, usual)} slower: {_ms(late.seconds)}"
        yield Cause(STRAGGLER, its_s, f"{text}, others {_ms(usual)}", late.who)
    often = max(found.ranks, key=lambda rank: rank.slowest_in)
    text = (
        f"ranks compute unevenly: the slowest of a step, most often rank {often.rank} on "
        f"{often.node}, takes {_ms(own_s)} more"
    )
    yield Cause(SKEW, own_s, text, None)


def _compute(rank: RankMeans) -> float:
    return rank.compute


def _own_part(found: Attribution, part: str, lost_s: float, ideal_s: float) -> Cause:
    def of(rank: RankMeans) -> float:
        return float(getattr(rank, part))

    late: SlowRanks | None = None
    if lost_s > _NOTHING * found.step_s:
        late = slow(found.ranks, of, uneven_s(found.alone, of) + _NAMED_FROM * lost_s)
    if late is None and part == REST:
        text = f"unattributed: {_ms(lost_s)} a step, the bookkeeping of ranks"
        return Cause(REST, lost_s, text)
    if late is None:
        text = f"{part} takes {_ms(ideal_s + lost_s)} a step, on one node {_ms(ideal_s)}"
        return Cause(part, lost_s, text, "all nodes" if lost_s > 0 else None)
    one, many, what = _OWN[part]
    verb = f"{many} up to" if late.several else one
    text = f"{late.who} {verb} {_ms(late.seconds)} a step {what}, others {_ms(late.usual_s)}"
    return Cause(part, lost_s, text, late.who)


def _communicating(
    found: Attribution,
    lost_s: float,
    baseline: CollectiveBaseline | None,
    instead: tuple[str, str | None] | None,
    promise: ScalingCriterion,
) -> Iterator[Cause]:
    """Exposed communication: on the wrong network, slow, as much as the fabric needs, and more."""
    exposed = f"collectives exposed {_ms(lost_s)} a step"
    hidden = found.hidden_fraction
    hid = "" if hidden is None else f"; {hidden:.0%} of communication is hidden"
    if instead is not None:
        network, culprit = instead
        yield Cause(NETWORK, lost_s, f"traffic on {network}: {exposed}", culprit)
        return
    if baseline is None:
        text = f"{exposed}{hid}; what the fabric allows was not measured"
        yield Cause(UNMEASURED, lost_s, text)
        return
    at = f"{baseline.line_fraction:.0%} of line rate"
    if baseline.line_fraction < promise.fabric_fraction:
        text = f"all-reduce exposed {_ms(lost_s)} a step: fabric at {at}{hid}"
        yield Cause(FABRIC, lost_s, text, "the fabric")
        return
    allowed_s = baseline.exposed_s(found.backward_s)
    more_s = lost_s - allowed_s
    if more_s <= 0:
        text = f"{exposed}{hid}; fabric at {at}, which allows {_ms(allowed_s)}"
        yield Cause(COMMUNICATION, lost_s, text, "the job")
        return
    text = f"collectives need {_ms(allowed_s)} a step by themselves that nothing hides"
    yield Cause(COMMUNICATION, allowed_s, text, "the job")
    if _not_overlapped(found):
        text = (
            f"collectives are not overlapped: {hidden:.0%} of communication is hidden, "
            f"{_ms(lost_s)} a step exposed, where the fabric allows {_ms(allowed_s)}"
        )
        yield Cause(OVERLAP, more_s, text, "the job")
        return
    text = f"{exposed}{hid}; {_ms(more_s)} more than the fabric allows at {at}"
    yield Cause(CONTENTION, more_s, text, None)


def _not_overlapped(found: Attribution) -> bool:
    """Whether little of what computing could have hidden was hidden; False where not known."""
    if found.sent_s is None or found.hidden_s is None:
        return False
    return found.hidden_s < _HIDDEN * min(found.sent_s, found.backward_s)


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f} ms" if abs(value) >= 10 else f"{value:.1f} ms"


def _times(one_s: float, other_s: float) -> str:
    return f"{one_s / other_s:.2g}×" if other_s > 0 else "∞×"


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """Nodes all of whose ranks take longer, and ranks of other nodes. seconds: of the slowest.
    usual_s: of the others."""

    names: tuple[str, ...]
    seconds: float
    usual_s: float

    @property
    def who(self) -> str:
        *most, last = self.names
        return f"{', '.join(most)} and {last}" if most else last

    @property
    def several(self) -> bool:
        return len(self.names) > 1


def usual_s(ranks: Sequence[RankMeans], of: Of) -> float:
    """The median of the faster half."""
    times = sorted(map(of, ranks))
    return median(times[: (len(times) + 1) // 2])


def uneven_s(ranks: Sequence[RankMeans], of: Of) -> float:
    """By how much the slowest takes longer than is usual."""
    return max(map(of, ranks)) - usual_s(ranks, of)


def slow(
    ranks: Sequence[RankMeans], of: Of, more_s: float, mostly: Of | None = None
) -> SlowRanks | None:
    """Who takes so much longer than is usual; None where nobody does.

    mostly: what a rank takes at least in most of its steps, where once in a while is not enough.
    """
    usual = usual_s(ranks, of)
    late = [rank for rank in ranks if (mostly or of)(rank) - usual >= more_s]
    if not late:
        return None
    on_time = {rank.node for rank in ranks if rank not in late}
    names = dict.fromkeys(
        f"rank {rank.rank} on {rank.node}" if rank.node in on_time else rank.node for rank in late
    )
    return SlowRanks(tuple(names), max(map(of, late)), usual)
