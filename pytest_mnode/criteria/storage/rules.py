"""Judges how fast storage is, and whether it returns what was written. Pure.

A rate of all nodes is that of a repeat, from the common start to the end of the slowest node; the
mean of repeats is judged with its interval. A node is slow if its share of the median of all nodes,
repeat by repeat, is below its fraction with the whole interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_mnode.criteria.storage.in_ranks import UNUSABLE
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.detection import LOOKS, PROBABILITY, estimate
from pytest_mnode.evidence.row import Row
from pytest_mnode.measurement import (
    Bound,
    HeadlineMark,
    Measurement,
    all_of,
    at_least,
    at_most,
    equals,
    listed,
    with_suspects,
)
from pytest_mnode.spec.storage import (
    BesidePromise,
    CheckpointPromise,
    RandomReadsPromise,
    SmallFilesPromise,
)

GB = 1e9
MOST_NAMED = 16
_SLOW = 0.7
"""[choice] A node below this share of the median is named where the rate of all is too low."""
_APART = 0.9
"""[choice] So is one below this share, if the promise is kept with the median in its place."""
_BROKEN = ("ENOSPC ", "EDQUOT ", "EIO ", "EROFS ", "EFBIG ")
JUDGEMENTS = 8
"""Rates that a path has, which share the chance of a false alarm of one judgement."""
_LOOKS = len(LOOKS) * JUDGEMENTS
_FALSE_ALARM = (1 - PROBABILITY) / JUDGEMENTS


@dataclass(frozen=True, slots=True)
class Rates:
    """The rows of one path, by what its rules ask. nodes: of the run, in order."""

    path: str
    nodes: tuple[str, ...]
    rows: Sequence[Row]

    @property
    def key(self) -> str:
        return f"storage.paths.{self.path}"

    def missing(self, *metrics: str) -> str:
        """Why these metrics are not known on all nodes; "" if they are."""
        unusable = [
            f"{one.node}: {one.why}" if one.node else one.why
            for one in self.rows
            if one.metric == UNUSABLE
        ]
        unread = [
            f"{one.node}: {one.why or 'not read'}"
            for one in self.rows
            if one.metric in metrics and one.value is None
        ]
        known = {one.metric for one in self.rows if one.value is not None}
        absent = [f"{metric} was not measured" for metric in metrics if metric not in known]
        return listed(unusable or unread or absent)

    def repeats(self, metric: str) -> list[dict[str, float]]:
        """Values by node, of each repeat that all nodes (or the one that acts alone) have."""
        found: dict[int, dict[str, float]] = {}
        for one in self.rows:
            if one.metric == metric and isinstance(one.value, int | float) and one.value > 0:
                found.setdefault(one.repeat or 0, {})[one.node] = one.value
        wanted = 1 if metric.endswith(" alone") else len(self.nodes)
        return [found[number] for number in sorted(found) if len(found[number]) >= wanted]

    def asked(  # noqa: PLR0917  of a bound
        self,
        name: str,
        key: str,
        promised: float | None,
        bounded: Callable[[float], Bound],
        unit: str = "",
        per: float = 1.0,
    ) -> Subject:
        """What a key of the path bounds, if it is promised."""
        if promised is None:
            return Subject(self, name, None, "", unit)
        bound = bounded(promised / per).of(f"{self.key}.{key}", promised)
        return Subject(self, name, bound, f"criteria.{self.key}.{key}", unit)

    def blamed(self, node: str, why: str) -> Culprit:
        return Culprit(
            f"{node} {self.path} ({why})", node, parts=Parts(devices=((node, self.path),))
        )

    def anybody(self, why: str) -> Culprit:
        """The path, where nothing tells which node is at fault."""
        parts = Parts(settings=(self.path,))
        return Culprit(f"{self.path} ({why})", either=[self.nodes], parts=parts)

    def unread(self, *metrics: str) -> list[Culprit]:
        """Who has no value of these metrics: all nodes where one of them cannot use the path."""
        return [
            Culprit("", either=[self.nodes if one.metric == UNUSABLE else [one.node]])
            for one in self.rows
            if one.value is None and one.metric in (UNUSABLE, *metrics)
        ]

    def star(self, bad: Mapping[str, str]) -> Culprit | None:
        """Nodes that do not see what the first node did, each with the reason; if none does, the
        first node may be at fault as well."""
        if bad and len(bad) == len(self.nodes) - 1:
            return self.anybody(f"{next(iter(bad.values()))}, on all nodes but {self.nodes[0]}")
        blamed = [self.blamed(node, why) for node, why in bad.items()]
        return all_of(blamed, MOST_NAMED)

    def how(self, metric: str) -> str:
        """How it was measured, in words, with the nodes that differ."""
        by_how: dict[str, list[str]] = {}
        for one in self.rows:
            if one.metric == f"{metric} how":
                by_how.setdefault(str(one.value), []).append(one.node)
        if len(by_how) < 2:
            return next(iter(by_how), "")
        return listed(f"{how} on {', '.join(dict.fromkeys(on))}" for how, on in by_how.items())


Whole = Callable[[Mapping[str, float]], float]


def slowest_times_nodes(by_node: Mapping[str, float]) -> float:
    """Rate of all nodes that move the same, each: until the slowest has ended."""
    return len(by_node) * min(by_node.values())


def summed(by_node: Mapping[str, float]) -> float:
    """Rate of all nodes that work for the same time."""
    return sum(by_node.values())


@dataclass(frozen=True, slots=True)
class Subject:
    """A measurement of a path without its value. bound: None if it is only recorded."""

    rates: Rates
    name: str
    bound: Bound | None
    source: str
    unit: str = ""

    def unknown(self, why: str) -> Measurement:
        """Inconclusive, with the nodes that say why they have no value: no other has passed."""
        lost = [one for one in self.rates.rows if one.value is None and one.node]
        blamed = all_of((self.rates.blamed(one.node, one.why) for one in lost), MOST_NAMED)
        return Measurement.unknown(
            f"{self.rates.path}: {self.name}",
            why,
            unit=self.unit,
            expected=self.bound,
            source=self.source,
            culprit=blamed and with_suspects(blamed, [Culprit("", either=[self.rates.nodes])]),
        )

    def judged(
        self,
        values: Sequence[float],
        note: str,
        culprit: Culprit,
        mark: HeadlineMark | None = None,
        looks: int = _LOOKS,
    ) -> Measurement:
        """The mean of repeats, with its interval. A single repeat has none, and judges nothing."""
        bound, found = self.bound, estimate([[value] for value in values], looks)
        if found is None and bound is not None:
            shown = listed(f"{one:.4g}" for one in values)
            return self.unknown(f"{len(values)} repeat ({shown} {self.unit})")
        return Measurement(
            f"{self.rates.path}: {self.name}",
            found.value if found else statistics.fmean(values),
            self.unit,
            bound,
            self.source,
            culprit if bound else None,
            ", ".join(filter(None, [f"{len(values)} repeats", note])),
            detection=found.detection(bound.accepted) if found and bound else None,
            headline=mark,
            interval=found.interval if found else None,
            false_alarm=_FALSE_ALARM if bound else None,
        )


def rate(  # noqa: PLR0917  of a metric
    rates: Rates,
    metric: str,
    name: str,
    key: str,
    promised: float | None,
    unit: str = "GB/s",
    whole: Whole = slowest_times_nodes,
    mark: HeadlineMark | None = None,
    per: float = 1.0,
) -> Measurement:
    """The rate of all nodes, or what `whole` makes of theirs; recorded if nothing is promised.

    per: what a unit of the value is worth in that of the rows, such as 1e9 of GB/s in B/s.
    """
    asked = rates.asked(name, key, promised, at_least, unit, per)
    values = [whole(one) / per for one in rates.repeats(metric)]
    if (why := rates.missing(metric)) or not values:
        return asked.unknown(why or f"no repeat has {metric} of all nodes")

    def kept(found: Sequence[Mapping[str, float]]) -> bool:
        mean = statistics.fmean(whole(one) / per for one in found)
        return asked.bound is not None and asked.bound.holds(mean)

    return asked.judged(values, rates.how(metric), _slow(rates, metric, kept), mark)


def _shares(rates: Rates, metric: str) -> dict[str, list[float]]:
    """What each node had of the median of all nodes, in each repeat."""
    found = rates.repeats(metric)
    middles = [statistics.median_high(one.values()) for one in found]
    return {
        node: [one[node] / middle for one, middle in zip(found, middles, strict=True)]
        for node in rates.nodes
    }


def _keeps(values: Sequence[float], bound: Bound, looks: int) -> bool | None:
    """Whether a node's shares keep a bound with their whole interval; None if it contains it."""
    found = estimate([[value] for value in values], looks)
    return bound.decides(*found.interval) if found else None


def _slow(
    rates: Rates, metric: str, kept: Callable[[list[dict[str, float]]], bool] | None = None
) -> Culprit:
    """Who is to blame for a low rate of all: slow nodes, else the path itself.

    kept: whether repeats with these values would keep the promise.
    """
    shares, slow = _shares(rates, metric), dict[str, float]()
    for share in (_SLOW, _APART) if len(rates.nodes) > 2 else ():
        slow = {
            node: statistics.median(values)
            for node, values in shares.items()
            if _keeps(values, at_least(share), len(LOOKS)) is False
        }
        mended = [
            one | dict.fromkeys(slow, statistics.median_high(one.values()))
            for one in rates.repeats(metric)
        ]
        if slow and (share == _SLOW or (kept is not None and kept(mended))):
            break
        slow = {}
    blamed = [
        rates.blamed(node, f"{share:.2g} of the median {metric}") for node, share in slow.items()
    ]
    return all_of(blamed, MOST_NAMED) or rates.anybody("on all nodes alike")


def peers(rates: Rates, metric: str, name: str, fraction: float, key: str) -> Measurement:
    """The share of the median of all nodes that the slowest node has, at the same time."""
    asked = rates.asked(name, key, fraction, at_least)
    asked = replace(asked, source=f"{asked.source}, of the median of {len(rates.nodes)} nodes")
    if (why := rates.missing(metric)) or not rates.repeats(metric):
        return asked.unknown(why or "no repeat")
    shares = _shares(rates, metric)
    looks = _LOOKS * len(rates.nodes)
    medians = {node: statistics.median(values) for node, values in shares.items()}
    slowest = min(medians, key=lambda node: medians[node])
    bound = at_least(fraction)
    kept = {node: _keeps(values, bound, looks) for node, values in shares.items()}
    slow = [node for node, keeps in kept.items() if keeps is False]
    blamed = [
        rates.blamed(node, f"{medians[node]:.2g} of the median {metric}")
        for node in slow or [slowest]
    ]
    unsure = (rates.blamed(node, "undecided") for node, keeps in kept.items() if keeps is None)
    named = with_suspects(all_of(blamed, MOST_NAMED), unsure) or blamed[0]
    return asked.judged(shares[slowest], f"{slowest} is the slowest", named, looks=looks)


def judge_checkpoint(
    rates: Rates, promise: CheckpointPromise, whole_bytes: int, node_bytes: int
) -> Iterator[Measurement]:
    """Rates of all nodes, of the slowest one, and wrong content."""
    part = "" if node_bytes >= whole_bytes else f", {node_bytes / whole_bytes:.2g} of its size"
    for kind in ("write", "read"):
        promised = getattr(promise, f"{kind}_at_least_bytes_s")
        after = f"on {len(rates.nodes)} nodes"
        mark = HeadlineMark(f"{promise.what}, {kind}:", after, order=0 if promised else 1)
        name = f"{promise.what}, {kind} by all nodes together{part}"
        yield rate(rates, kind, name, f"checkpoint.{kind}_at_least", promised, mark=mark, per=GB)
        least = getattr(promise, f"node_{kind}_at_least_bytes_s")
        if least is not None:
            name = f"{promise.what}, {kind} by the slowest node"
            of = partial(rate, rates, kind, name, f"checkpoint.node_{kind}_at_least", least)
            yield of(whole=lambda by_node: min(by_node.values()), per=GB)
        if len(rates.nodes) > 2:
            name = f"{kind} by the slowest node, of the median"
            key = "checkpoint.peers_at_least_fraction"
            yield peers(rates, kind, name, promise.peers_at_least_fraction, key)
    failed = [
        rates.blamed(one.node, f"{one.metric}: {one.why}")
        for one in rates.rows
        if one.metric in ("write", "read") and one.value is None and one.why.startswith(_BROKEN)
    ]
    if failed:  # not what never began, nor what took too long
        name, source = "transfers that ended in an error", "a checkpoint that fits is written"
        yield Measurement.none_allowed(f"{rates.path}: {name}", failed, source)
    yield wrong_pages(rates)


def wrong_pages(rates: Rates) -> Measurement:
    """Pages read that had other content than another node wrote."""
    name, source = "pages with other content than was written", "each page has its own stamp"
    unwritten = {
        (one.node, one.repeat): one.why
        for one in rates.rows
        if one.metric in ("write", "write alone") and one.value is None
    }
    why, unread = rates.missing("wrong pages"), rates.unread("wrong pages")
    bad, culprits, unsure = [], [], [why] if why else []
    for one in (one for one in rates.rows if one.metric == "wrong pages" and one.value):
        following = rates.nodes[(rates.nodes.index(one.node) + 1) % len(rates.nodes)]
        writer = one.peer or following  # evidence of earlier versions does not say
        if (lost := unwritten.get((writer, one.repeat))) is not None:
            unsure.append(f"{writer} did not write all: {lost}")
            unread.append(Culprit("", either=[[one.node]]))
            continue
        bad.append(one)
        words = f"{one.node} {rates.path} ({one.value} pages that {writer} wrote)"
        devices = Parts(devices=((one.node, rates.path),))
        culprits.append(Culprit(words, either=[{one.node, writer}], parts=devices))
    if why and not bad:
        return Subject(rates, name, equals(0), source).unknown(why)
    total = sum(int(one.value or 0) for one in bad)
    read = sum(one.size_bytes or 0 for one in rates.rows if one.metric == "wrong pages")
    note = f"{read / 2**20:.4g} MiB compared"
    return Measurement.none_allowed(
        *(f"{rates.path}: {name}", culprits, source),
        count=total,
        unsure=listed(unsure),
        unread=unread,
        note=note,
    )


def judge_together(rates: Rates, promise: CheckpointPromise) -> Iterator[Measurement]:
    """All nodes at once, of their number times one alone."""
    count, fraction = len(rates.nodes), promise.together_at_least_fraction
    key = "checkpoint.together_at_least_fraction"
    assert fraction is not None
    for kind in ("write", "read"):
        name = f"{kind} by all nodes at once, of {count} × one alone"
        asked = rates.asked(name, key, fraction, at_least)
        asked = replace(asked, source=f"{asked.source}, of {count} × one node alone")
        why = rates.missing(kind, f"{kind} alone")
        pairs = zip(rates.repeats(kind), rates.repeats(f"{kind} alone"), strict=False)
        values = [
            slowest_times_nodes(every) / (count * next(iter(one.values()))) for every, one in pairs
        ]
        if why or not values:
            yield asked.unknown(why or "no repeat")
            continue
        alone = statistics.median(next(iter(o.values())) for o in rates.repeats(f"{kind} alone"))
        mark = HeadlineMark(after=f"of {count} × one ({kind})")
        note = f"one alone {alone / GB:.3g} GB/s"
        yield asked.judged(values, note, _slow(rates, kind), mark)


def judge_small_files(rates: Rates, promise: SmallFilesPromise) -> Iterator[Measurement]:
    """Files a second, over all nodes."""
    for step in ("create", "stat", "delete"):
        promised = getattr(promise, f"{step}_at_least_per_s")
        mark = HeadlineMark(f"small files, {step}:", f"on {len(rates.nodes)} nodes", order=1)
        name, key = f"small files, {step}", f"small_files.{step}_at_least"
        yield rate(rates, step, name, key, promised, "/s", mark=mark)


def judge_random_reads(rates: Rates, promise: RandomReadsPromise) -> Iterator[Measurement]:
    """Bytes and reads a second, over all nodes."""
    block = promise.block_bytes
    what = f"random reads of {block // 1024} KiB"
    mark = HeadlineMark(f"{what}:", f"on {len(rates.nodes)} nodes", order=1)
    of = partial(rate, rates, "random read", whole=summed)
    yield of(what, "random_reads.at_least", promise.at_least_bytes_s, mark=mark, per=GB)
    if promise.reads_at_least_per_s is not None:
        key, name = "random_reads.reads_at_least", f"{what}, number"

        def number(by_node: Mapping[str, float]) -> float:
            return summed(by_node) / block

        yield rate(
            rates, "random read", name, key, promise.reads_at_least_per_s, "/s", whole=number
        )
    if any(one.metric == "wrong pages" for one in rates.rows):
        yield wrong_pages(rates)


def judge_beside(rates: Rates, promise: BesidePromise) -> Iterator[Measurement]:
    """What storage and collectives lose to each other."""
    for what, alone, beside, limit, key in (
        (
            "checkpoint's rate beside collectives",
            *("write without collectives", "write beside collectives"),
            *(promise.storage_loss_at_most, "storage_loss_at_most"),
        ),
        (
            "all-reduces' rate beside a checkpoint",
            *("all-reduces without storage", "all-reduces beside storage"),
            *(promise.collective_loss_at_most, "collective_loss_at_most"),
        ),
    ):
        name = f"loss of the {what}"
        asked = rates.asked(name, f"beside_collectives.{key}", limit, at_most)
        why = rates.missing(alone, beside)
        pairs = zip(rates.repeats(alone), rates.repeats(beside), strict=True)
        kept = [min(both.values()) / min(one.values()) for one, both in pairs]
        found = estimate([[value] for value in kept], _LOOKS) if kept and not why else None
        if found is None:
            yield asked.unknown(why or "too few repeats")
            continue
        yield Measurement(
            *(f"{rates.path}: {name}", 1 - found.value, "", asked.bound, asked.source),
            _slow(rates, beside) if asked.bound else None,
            f"{len(kept)} repeats",
            interval=(1 - found.high, 1 - found.low),
            false_alarm=_FALSE_ALARM if asked.bound else None,
        )
