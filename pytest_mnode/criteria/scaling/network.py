"""Times of collectives on the idle fabric, and the NICs that carried the steps' bytes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mnode.criteria.nics_used import judge_nics
from pytest_mnode.criteria.scaling.timings import GroupSteps, JobTimings
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.measuring.traffic import LowerDevices, SentByNode, nodes_off_fabric, off_fabric
from pytest_mnode.spec import Spec
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective, busbw_gbytes_s, ring_at_line_rate
from pytest_mnode.spec.inventory import Network
from pytest_mnode.spec.scaling import ScalingCriterion

_LOOPBACK = "lo"
_LEAST_OF_A_NIC_BYTES = 64 << 20
"""[choice] Gradients of all steps, for each NIC, from which all must have carried their share: a
bucket of 25 MiB, torch's default, takes all of NCCL's channels."""


@dataclass(frozen=True, slots=True)
class CollectiveBaseline:
    """The collectives of a step while nothing else runs.

    all_s: of all of them, back to back. last_s: of the last for gradients, which nothing can hide.
    of_model: their speed, as a fraction of what the model gives for them one after the other.
    of_line: bus bandwidth of all gradients at once, as a fraction of the line rate.
    """

    all_s: float
    last_s: float
    of_model: float
    of_line: float

    @property
    def speed(self) -> str:
        return f"{self.of_model:.0%} of its model and {self.of_line:.0%} of line rate"

    def exposed_s(self, backward_s: float) -> float:
        """Seconds exposed in any case: the last call, or all calls beyond `backward_s`."""
        return max(self.last_s, self.all_s - backward_s)


def baseline_over(timings: JobTimings, count: int, spec: Spec) -> CollectiveBaseline | None:
    """The baseline over `count` nodes: the median of groups measured at the same time."""
    alone = [one for one in timings.alone if len(one.nodes) == count]
    if count < 2 or not alone:
        return None
    times = zip(*((one.all_s, one.last_s, one.whole_s) for one in alone), strict=True)
    all_s, last_s, whole_s = map(median, times)
    if min(all_s, whole_s) <= 0:
        return None
    platform, shape = Platform.of(spec), (count, timings.ranks_per_node, timings.backend)
    model_s = 0.0
    for call in timings.calls:
        # gloo sums up the whole tensor on all ranks, of which each keeps its part.
        twice = timings.backend == "gloo" and call.collective == Collective.REDUCE_SCATTER
        name = Collective.ALL_REDUCE if twice else call.collective
        model = CollectiveModel(platform, name, *shape)
        model_s += max(model.time_s(algorithm, call.size_bytes) for algorithm in model.default)
    ranks, size = count * timings.ranks_per_node, timings.whole.size_bytes
    busbw = busbw_gbytes_s(Collective.ALL_REDUCE, size, whole_s, ranks)
    of_line = busbw / ring_at_line_rate(spec.fabric).gbytes_s
    return CollectiveBaseline(all_s, last_s, model_s / all_s, of_line)


def sent_in_steps(trained: Sequence[GroupSteps], timings: JobTimings) -> tuple[SentByNode, ...]:
    """Bytes that each node sent in the steps of these groups. Groups of one node send nothing.

    With any algorithm, a node sends the gradients of a step at least once.
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
    return tuple(
        SentByNode(node, counts, least[node], lower_devices.get(node, {}))
        for node, counts in sent.items()
    )


def off_fabric_nics(
    fabric: Network, sent: Sequence[SentByNode]
) -> tuple[str, Culprit | None] | None:
    """The NICs that carried the bytes instead of the fabric, in words, and the culprit; None if
    there are none, or if counters do not show the bytes that each node had to send."""
    if any(one.share(fabric) is None for one in sent):
        return None
    wrong = [(one, name) for one in sent if (name := one.off_fabric(fabric)) is not None]
    if not wrong:
        return None
    names = "+".join(dict.fromkeys(name for _, name in wrong))
    moved = sum(one.own_bytes(fabric)[name] for one, name in wrong)
    text = f"{names} ({moved / 1e6:.0f} MB), not {'+'.join(fabric.interfaces)}"
    return text, off_fabric(sent, fabric)


def judge_network(
    sent: Sequence[SentByNode],
    spec: Spec,
    promise: ScalingCriterion,
    ranks_per_node: int | None = None,
) -> list[Measurement]:
    """Whether the bytes of the steps went over the fabric's NICs, and over all of them.

    The node that sent the largest fraction over other NICs counts, because in a sum one node of
    many does not show. ranks_per_node: one per accelerator if None.
    """
    fabric, most = spec.fabric, promise.elsewhere_fraction
    shares = {one.node: one.share(fabric) for one in sent}
    elsewhere = {node: 1 - share for node, share in shares.items() if share is not None}
    unseen = [node for node in shares if node not in elsewhere]
    totals = sum((Counter(one.own_bytes(fabric)) for one in sent), Counter[str]())
    note = ", ".join(f"{nic} {count / 1e6:.1f} MB" for nic, count in totals.most_common(3))
    fraction, culprit = None, None
    if elsewhere and not unseen:
        worst = max(elsewhere, key=lambda node: elsewhere[node])
        fraction = elsewhere[worst]
        over = f"other NICs than {'+'.join(fabric.interfaces)}"
        words = off_fabric(sent, fabric) or f"{worst} sent {fraction:.0%} over {over}"
        culprit = Culprit(words, nodes_off_fabric(sent, fabric, most))
    elif elsewhere:
        note = f"no counter of {', '.join(unseen)} shows the bytes that it had to send: {note}"
    else:
        least = sum(one.least_bytes for one in sent)
        note = f"no counter shows the {least / 1e6:.0f} MB that were sent"
    name = "off-fabric traffic during the steps"
    source = f"criteria.scaling.elsewhere_fraction {most:g}"
    bound = at_most(most).of("criteria.scaling.elsewhere_fraction", most)
    over_others = Measurement(name, fraction, "of the bytes", bound, source, culprit, note)
    # Few bytes take few of NCCL's channels, and so few NICs.
    fewest = min((one.least_bytes for one in sent), default=0)
    if fewest / fabric.nics_per_node < _LEAST_OF_A_NIC_BYTES:
        return [over_others]
    ranks = ranks_per_node or max(1, spec.accelerators.per_node)
    return [over_others, *judge_nics(sent, spec, ranks, "the steps")]
