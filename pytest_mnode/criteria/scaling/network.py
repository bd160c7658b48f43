"""What the fabric does by itself, and which NICs traffic the steps' bytes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_mnode.criteria.scaling.timings import GroupSteps, JobTimings
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.measuring.traffic import LowerDevices, SentByNode, off_fabric
from pytest_mnode.spec import Spec
from pytest_mnode.spec.bandwidth import Collective, busbw_gbytes_s, ring_at_line_rate
from pytest_mnode.spec.scaling import ScalingCriterion

_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class CollectiveBaseline:
    """All-reduces over `count` nodes with nothing else going on.

    all_s: of all gradients of a step at once. last_s: of the last bucket, which nothing can hide.
    line_fraction: bus bandwidth of all gradients at once, as a part of the line rate.
    """

    count: int
    size_bytes: int
    all_s: float
    last_s: float
    line_fraction: float

    def exposed_s(self, backward_s: float) -> float:
        """What must be exposed in any case: the last bucket, or what outlasts computing."""
        return max(self.last_s, self.all_s - backward_s)


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """What NICs sent during the timed steps of groups of two nodes or more.

    elsewhere: by node, the part of its bytes that went over other NICs than the fabric's; None
    where its counters do not show them. least_bytes: what nodes had to send. off_fabric: what
    carried them instead of the fabric, in words, None where nothing did; culprit: who did so.
    """

    elsewhere: Mapping[str, float | None]
    least_bytes: float
    off_fabric: str | None = None
    culprit: str | None = None
    busiest: str = ""

    @property
    def elsewhere_fraction(self) -> float | None:
        """Part of a node's bytes that went over other NICs, of the node where it is most; None
        where that is not known of each."""
        return None if self.unseen or not self.elsewhere else self.elsewhere[self.worst] or 0.0

    @property
    def worst(self) -> str:
        """The node of most bytes over other NICs; among many one alone does not show in a sum."""
        return max(self.elsewhere, key=lambda node: self.elsewhere[node] or 0.0)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Nodes whose counters do not show what they had to send."""
        return tuple(node for node, part in self.elsewhere.items() if part is None)


def baseline_over(timings: JobTimings, count: int, spec: Spec) -> CollectiveBaseline | None:
    """The baseline over `count` nodes: of groups that were tried at the same time, the median."""
    all_reduces = [one for one in timings.all_reduces if len(one.nodes) == count]
    ranks = count * timings.ranks_per_node
    if count < 2 or not all_reduces or ranks < 2:
        return None
    sizes = sorted({one.size_bytes for one in all_reduces})
    times = {
        size: median(one.time_s for one in all_reduces if one.size_bytes == size) for size in sizes
    }
    largest = sizes[-1]
    if times[largest] <= 0:
        return None
    busbw = busbw_gbytes_s(Collective.ALL_REDUCE, largest, times[largest], ranks)
    fraction = busbw / ring_at_line_rate(spec.fabric).gbytes_s
    return CollectiveBaseline(count, largest, times[largest], times[sizes[0]], fraction)


def step_traffic(trained: Sequence[GroupSteps], timings: JobTimings, spec: Spec) -> StepTraffic:
    """Which NICs carried what the steps of these groups sent. Groups of one node send nothing.

    By whatever algorithm, a node sends the gradients of a step once at least.
    """
    sent: dict[str, Counter[str]] = {}
    least: Counter[str] = Counter()
    lower_devices: dict[str, LowerDevices] = {}
    for one in trained:
        if one.count < 2:
            continue
        lower_devices |= zip(one.nodes, one.lower_devices, strict=False)
        for node, counts in zip(one.nodes, one.sent_bytes, strict=True):
            least[node] += timings.gradient_bytes * len(one.steps[0])
            mine = sent.setdefault(node, Counter())
            for nic, count in counts.items():
                if nic != _LOOPBACK or timings.ranks_per_node == 1:
                    mine[nic.partition(":")[0]] += count
    by_node = [
        SentByNode(node, counts, least[node], lower_devices.get(node, {}))
        for node, counts in sent.items()
    ]
    shares = {node.node: node.share(spec.fabric) for node in by_node}
    own = {node.node: Counter(node.own_bytes(spec.fabric)) for node in by_node}
    totals = sum(own.values(), Counter[str]())
    traffic = StepTraffic(
        {node: None if share is None else 1 - share for node, share in shares.items()},
        sum(least.values()),
        busiest=", ".join(f"{nic} {count / 1e6:.1f} MB" for nic, count in totals.most_common(3)),
    )
    if traffic.unseen:
        return traffic
    wrong = {
        node.node: name for node in by_node if (name := node.off_fabric(spec.fabric)) is not None
    }
    if not wrong:
        return traffic
    names = "+".join(dict.fromkeys(wrong.values()))
    moved = sum(own[node][nic] for node, nic in wrong.items())
    instead = "+".join(spec.fabric.interfaces)
    return replace(
        traffic,
        off_fabric=f"{names} ({moved / 1e6:.0f} MB), not {instead}",
        culprit=off_fabric(by_node, spec.fabric),
    )


def judge_network(traffic: StepTraffic, spec: Spec, promise: ScalingCriterion) -> list[Measurement]:
    """Whether the bytes of the steps went over the fabric's NICs."""
    most, fraction = promise.elsewhere_fraction, traffic.elsewhere_fraction
    culprit, note = traffic.culprit, traffic.busiest
    if fraction is not None and culprit is None:
        instead = "+".join(spec.fabric.interfaces)
        culprit = f"{traffic.worst} sent {fraction:.0%} over other NICs than {instead}"
    if fraction is None and len(traffic.unseen) < len(traffic.elsewhere):
        note = f"no counter of {', '.join(traffic.unseen)} shows what it had to send: {note}"
    elif fraction is None:
        note = f"no counter shows the {traffic.least_bytes / 1e6:.0f} MB that were sent"
    name = "sent past the fabric during the steps"
    source = f"criteria.scaling.elsewhere_fraction {most:g}"
    return [Measurement(name, fraction, "of the bytes", at_most(most), source, culprit, note)]
