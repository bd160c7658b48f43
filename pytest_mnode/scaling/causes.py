"""What made n nodes lose time against one, each cause with its seconds, its name and whose it is.

Pure. Every part of the loss along the slowest rank of each step goes to one cause, so that causes
add up to the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mnode.scaling.attribution import Attribution, RankTime
from pytest_mnode.scaling.fabric import Carried, Lane
from pytest_mnode.scaling.facts import PARTS
from pytest_mnode.spec.scaling import ScalingCriterion

NETWORK, FABRIC, OVERLAP, COMMUNICATION = "network", "fabric", "overlap", "communication"
STRAGGLER, SKEW, COMPUTE, REST = "straggler", "skew", "compute", "rest"
OWNED = (NETWORK, FABRIC, OVERLAP, STRAGGLER, "input", "checkpoint")
"""Kinds that have somebody to blame, or something; others may come of whatever else goes on."""
_OWN = {"input": "waits {ms} a step for input", "optimiser": "takes {ms} a step longer to optimise"}
_OWN["checkpoint"] = "takes {ms} a step longer for its checkpoint"
_TELLS_APART = 0.5
"""Part of the steps in which one node must be the slowest to be the straggler: by chance each of
three or more is so in less; of what one rank has over the others, what must be its own."""
_MATTERS = 0.1
"""Of the loss: causes of less are not told, unless they are the largest."""
_HIDDEN = 0.5
"""Part of the gradients' way that has to be hidden for communication to be overlapped."""


@dataclass(frozen=True, slots=True)
class Cause:
    """kind: of `spec.scaling.AllowedCause`, or "network" or "rest". seconds: of each step.

    text: what happens, with numbers. culprit: node, rank, NIC or setting; None where nobody's.
    """

    kind: str
    seconds: float
    text: str
    culprit: str | None = None


def causes_of(
    found: Attribution,
    lane: Lane | None,
    carried: Carried,
    promise: ScalingCriterion,
) -> tuple[Cause, ...]:
    """What the loss on `found.count` nodes is due to, largest first.

    lane: what the fabric does with nothing else going on, None where that is
    not known. carried: which NICs the bytes went over.
    """
    lost = dict(zip(PARTS, found.lost_on_path, strict=True))
    ideal = dict(zip(PARTS, found.path_ideal, strict=True))
    causes = [
        *_computing(found, lost["compute"], ideal["compute"]),
        _communicating(found, lost["exposed"], lane, carried, promise),
    ]
    for part, words in _OWN.items():
        causes += _own_part(found, part, lost[part], ideal[part], words)
    uneven_s = found.uneven_s
    text = f"ranks hear unevenly that a collective has ended: {_ms(uneven_s)} a step"
    causes.append(Cause(SKEW, uneven_s, text))
    causes.append(
        Cause(REST, lost["rest"], f"{_ms(lost['rest'])} a step have no name: bookkeeping of ranks")
    )
    return tuple(sorted(causes, key=lambda cause: -cause.seconds))


def told(causes: Sequence[Cause], lost_s: float) -> str:
    """The causes that matter in words, largest first."""
    worth = [c for i, c in enumerate(causes) if not i or c.seconds >= _MATTERS * lost_s]
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


def slowest(ranks: Sequence[RankTime], of: Callable[[RankTime], float]) -> tuple[str, float, float]:
    """Who has most of something: a node where all its ranks do, else a rank; its seconds, and the
    median of the others, of a node's ranks the middle one's."""
    by_node: dict[str, list[RankTime]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node, []).append(rank)
    worst = max(ranks, key=of)
    others = [of(r) for r in ranks if r.node != worst.node] or [
        of(r) for r in ranks if r is not worst
    ]
    usual = median(others) if others else of(worst)
    mates = [of(r) for r in by_node[worst.node]]
    if min(mates) > max(others, default=usual) and min(mates) - usual > (of(worst) - usual) / 2:
        return worst.node, median(mates), usual
    same_node = [of(r) for r in ranks if r is not worst]
    return f"rank {worst.rank} on {worst.node}", of(worst), median(same_node or [of(worst)])


def _computing(found: Attribution, lost_s: float, ideal_s: float) -> Iterator[Cause]:
    """What all ranks take longer than one node alone, and what the slowest takes beyond that."""
    ranks = found.ranks
    who, its_s, others_s = slowest(ranks, lambda rank: rank.compute)
    usual_s = median(rank.compute for rank in ranks)
    is_one = its_s - others_s >= _TELLS_APART * (lost_s - (usual_s - ideal_s))
    is_one = is_one and lost_s > 0 and _is_waited_for(ranks, who)
    common_s = (others_s if is_one else usual_s) - ideal_s
    own_s = lost_s - common_s
    yield Cause(
        COMPUTE,
        common_s,
        f"all ranks compute {_times(ideal_s + common_s, ideal_s)} as long as one node alone: "
        f"{_ms(common_s)} more",
        "all nodes",
    )
    if is_one:
        text = (
            f"{who} computes {_times(its_s, others_s)} slower: {_ms(its_s)}, others {_ms(others_s)}"
        )
        yield Cause(STRAGGLER, own_s, text, who)
        return
    often = Counter({rank.node: rank.slowest_in for rank in ranks}).most_common(1)[0][0]
    text = f"ranks compute unevenly: the slowest of a step, mostly {often}, takes {_ms(own_s)} more"
    yield Cause(SKEW, own_s, text, None)


def _is_waited_for(ranks: Sequence[RankTime], who: str) -> bool:
    """Whether it is one and the same that the others wait for."""
    mine = [r.slowest_in for r in ranks if who in (r.node, f"rank {r.rank} on {r.node}")]
    return sum(mine) >= _TELLS_APART


def _own_part(
    found: Attribution, part: str, lost_s: float, ideal_s: float, words: str
) -> Iterator[Cause]:
    who, its_s, others_s = slowest(found.ranks, lambda rank: float(getattr(rank, part)))
    if lost_s > 0 and its_s - others_s >= _TELLS_APART * lost_s:
        text = f"{who} {words.format(ms=_ms(its_s))}, others {_ms(others_s)}"
        yield Cause(part, lost_s, text, who)
    else:
        text = f"{part} takes {_ms(ideal_s + lost_s)} a step, on one node {_ms(ideal_s)}"
        yield Cause(part, lost_s, text, "all nodes" if lost_s > 0 else None)


def _communicating(
    found: Attribution,
    lost_s: float,
    lane: Lane | None,
    carried: Carried,
    promise: ScalingCriterion,
) -> Cause:
    """Exposed communication: on the wrong network, slow, not hidden, or just too much."""
    exposed = f"collectives exposed {_ms(lost_s)} a step"
    hidden = found.hidden_fraction
    hid = "" if hidden is None else f"; {hidden:.0%} of communication is hidden"
    if carried.astray is not None:
        return Cause(NETWORK, lost_s, f"traffic on {carried.astray}: {exposed}", carried.culprit)
    if lane is not None and lane.line_fraction < promise.fabric_fraction:
        at = f"fabric at {lane.line_fraction:.0%} of line rate"
        text = f"all-reduce exposed {_ms(lost_s)} a step: {at}{hid}"
        return Cause(FABRIC, lost_s, text, "the fabric")
    if hidden is not None and hidden < _HIDDEN and found.sent_s is not None:
        text = (
            f"collectives are not overlapped: {hidden:.0%} of communication is hidden, "
            f"{_ms(lost_s)} a step exposed"
        )
        if lane is not None:
            text += f", where the fabric allows {_ms(lane.exposed_s(found.backward_s))}"
        return Cause(OVERLAP, lost_s, text, "the job")
    text = f"{exposed}{hid}"
    if lane is not None:
        text += (
            f"; fabric at {lane.line_fraction:.0%} of line rate, which allows "
            f"{_ms(lane.exposed_s(found.backward_s))}"
        )
    return Cause(COMMUNICATION, lost_s, text, "the job" if lane is not None else None)


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f} ms" if abs(value) >= 10 else f"{value:.1f} ms"


def _times(one_s: float, other_s: float) -> str:
    return f"{one_s / other_s:.2g}×" if other_s > 0 else "∞×"
