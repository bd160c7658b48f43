"""The search that decides, from the rates so far, which round to measure next. Pure.

Up to 16 nodes every pair is measured, in rounds of disjoint pairs. More nodes are split into groups
of √n, each measured as a ring, all at the same time; in slow groups, the members that no reading
clears are halved repeatedly, all groups at the same time. Each suspect is then tried alone on the
fabric with two healthy partners, because disjoint pairs may still share a link. Finally the pairs
that were not tried are measured, which is the only way to find a slow path that is in no ring: all
pairs, or with more than 64 nodes a sample that differs from day to day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

import numpy as np

from pytest_mnode.measuring.limits import EVERY_PAIR_UP_TO, SAMPLE_TURNS
from pytest_mnode.measuring.locating import rounds
from pytest_mnode.measuring.locating.diagnosis import (
    CONFIRMED_BY,
    REPEATS,
    SlowNode,
    contrast_mbits_s,
    groups_apart,
    is_confirmed,
    slow_nodes,
    slowest_rail,
    suspected,
)
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Flow, Pair, Reading, Round

_PAIRED_UP_TO = 4
_MOST_PATHS = 64
"""More slow paths than this point to another fault, so further ones stay suspected."""
_FEW_PATHS = 8
"""Up to this number, slow paths are tried alone; more are first measured again together."""
_SAMPLED = 16
"""Number of slow links tried alone before the others are taken to share links."""
_ALONE_PAIRS = 4
"""Number of pairs tried alone before the whole fabric is named."""
_CONTROLS = 3
"""Number of times that suspected flows are tried again, each time followed by a fast link."""
_MOST_CONTROLLED = 4

Steps = Generator[Round, Sequence[Reading] | None, None]
Search = Generator[Round, Sequence[Reading] | None, bool]


class _TimeIsUp(Exception):
    """The caller has no time for another round."""


def search(rates: Rates, *, every_path: bool, day: int) -> Search:
    """Yield rounds to measure; send back their readings, or None when the budget is spent.

    `rates` collects the readings; `diagnose(rates)` judges them at any time. The same readings
    always lead to the same rounds. every_path: whether to measure every pair of more than 16 nodes
    too, and not a sample that changes with `day`. Returns whether the search was completed.
    """
    try:
        yield from _Search(rates).steps(every_path, day)
    except _TimeIsUp:
        return False
    return True


class _Search:
    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._rails = tuple(rates.each_rail)
        self._times_tried: Counter[Pair] = Counter()

    def steps(self, every_path: bool, day: int) -> Steps:
        nodes = range(self._rates.nodes)
        if len(nodes) <= EVERY_PAIR_UP_TO:
            yield from self._pairs(nodes, rounds.circle(len(nodes)))
            yield from self._confirm()
            return
        yield from self._groups(nodes)
        yield from self._confirm()
        rest = sorted(set(nodes) - set(self._rates.slow_nodes))
        turns: Sequence[Sequence[Pair]] = rounds.circle(len(rest))
        yield from self._pairs(
            rest, turns if every_path else rounds.of_day(turns, day, SAMPLE_TURNS)
        )
        yield from self._confirm()

    def _measure(self, steps: Iterable[Round]) -> Steps:
        for step in steps:
            flows = tuple(f for flow in step.flows if (f := self._rates.on_its_rails(flow)).rails)
            if not flows:
                continue
            readings = yield replace(step, flows=flows)
            if readings is None:
                raise _TimeIsUp
            self._rates.add(readings)

    def _pairs(self, nodes: Sequence[int], turns: Iterable[Sequence[Pair]]) -> Steps:
        """Measure the pairs not measured yet. turns: pairs of indices into `nodes`."""
        known = np.isfinite(self._rates.best).any(axis=0)
        for turn in turns:
            pairs = [(nodes[a], nodes[b]) for a, b in turn]
            new = [pair for pair in pairs if not (known[pair] and known[pair[::-1]])]
            yield from self._measure(rounds.both_ways(new, self._rails, len(new), "all pairs"))

    def _groups(self, nodes: range) -> Steps:
        """Measure the ring of all nodes, which collectives use, as adjacent groups; then halves."""
        sizes = rounds.group_sizes(len(nodes))
        ends = np.cumsum(sizes)
        groups = [list(nodes[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        for i, pairs in enumerate(rounds.ring(nodes)):
            count = 0 if i else len(groups)
            yield from self._measure(rounds.both_ways(pairs, self._rails, count, "groups"))
        while large := [g for g in self._doubted(groups) if len(g) > _PAIRED_UP_TO]:
            small = [g for g in self._doubted(groups) if len(g) <= _PAIRED_UP_TO]
            first = [group[: len(group) // 2] for group in large]
            second = [group[len(group) // 2 :] for group in large]
            # One half after the other: while a slow node sends, nodes near it may be slow too.
            for halves in (first, second):
                yield from self._measure(rounds.at_once(halves, self._rails, "halves"))
            groups = small + first + second
        yield from self._paired(groups)

    def _doubted(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """The members of each group that no reading has cleared."""
        if self._rates.too_slow_rails:  # no node is known to be healthy
            return [list(group) for group in groups]
        doubted = {node for node in self._rates.slow_nodes if not self._is_sure(node)}
        found = [[node for node in group if node in doubted] for group in groups]
        return [group for group in found if group]

    def _is_sure(self, node: int) -> bool:
        """Whether it was slow with enough healthy partners, so that only a trial alone is left."""
        return all(
            len(self._rates.partners(node, [rail], sends=sends, times_alone=0)) >= CONFIRMED_BY
            for sends, slow in ((True, self._rates.slow_tx), (False, self._rates.slow_rx))
            for rail in self._rails
            if slow[rail, node]
        )

    def _paired(self, groups: Sequence[Sequence[int]]) -> Steps:
        """Measure every doubted node with a healthy node, or with all of its group if none is."""
        slow = set(self._rates.slow_nodes)
        healthy = [node for node in range(self._rates.nodes) if node not in slow]
        if self._rates.too_slow_rails or not healthy:
            for group in groups:
                for turn in rounds.circle(len(group)):
                    some = [(group[a], group[b]) for a, b in turn]
                    both = rounds.both_ways(some, self._rails, len(some), "pairs")
                    yield from self._measure(both)
            return
        for place in range(_PAIRED_UP_TO):  # one of each group at a time
            doubted = [group[place] for group in self._doubted(groups) if place < len(group)]
            for start in range(0, len(doubted), len(healthy)):
                some = list(zip(doubted[start:], healthy, strict=False))
                both = rounds.both_ways(some, self._rails, len(some), "pairs")
                yield from self._measure(both)

    def _confirm(self) -> Steps:
        yield from self._any_alone()
        if self._rates.nodes == 2:
            for flow in suspected(self._rates) * CONFIRMED_BY:
                yield from self._alone(flow, 0)
        yield from self._confirm_nodes()
        for _ in range(REPEATS):
            pairs = self._doubted_pairs()
            if len(pairs) <= _FEW_PATHS:
                break
            again = [Flow(*way, rails) for ways, rails in pairs.values() for way in ways]
            for flows in rounds.packed(again):
                yield from self._measure([Round(tuple(flows), len(flows), "again")])
        yield from self._crowded()
        for _ in range(REPEATS):
            for pair, (ways, rails) in list(self._doubted_pairs().items())[:_MOST_PATHS]:
                self._times_tried[pair] += 1
                yield from self._try_path(ways, rails)
            yield from self._confirm_nodes()  # another partner may be known to be healthy now
        yield from self._control()

    def _crowded(self) -> Steps:
        """If many pairs are slow beside others, try the slowest alone: do they share a link?

        If all of these are fast, the rest are as well, but for a slow path that hides among them.
        """
        if len(self._doubted_pairs()) <= _FEW_PATHS:
            return
        links = sorted(self._rates.slow_links, key=lambda link: self._rates.best[link])
        tried = list(dict.fromkeys((sender, receiver) for _, sender, receiver in links))
        for way in tried[:_SAMPLED]:
            yield from self._alone(Flow(*way, self._rails), 1)
        left = self._rates.slow_links
        if not {(a, b) for _, a, b in left} & set(tried[:_SAMPLED]):
            for link in left:
                self._rates.crowded[link] = True

    def _control(self) -> Steps:
        """Measure suspects and a fast link in turn, to see whether both keep their rates."""
        suspects = suspected(self._rates)[:_MOST_CONTROLLED]
        if not suspects:
            return
        fastest = int(np.argmax(slowest_rail(self._rates.best[list(suspects[0].rails)])))
        control = Flow(*divmod(fastest, self._rates.nodes), self._rails)
        for _ in range(_CONTROLS):
            for flow in (*suspects, control):
                yield from self._measure([Round((flow,), 0, "control", alone=True)])

    def _confirm_nodes(self) -> Steps:
        while flows := self._next_trial():
            one_pair = len({frozenset((flow.sender, flow.receiver)) for flow in flows}) == 1
            for i, flow in enumerate(flows):
                yield from self._alone(flow, 0 if i and one_pair else 1)

    def _alone(self, flow: Flow, tests: int) -> Steps:
        """Measure a flow alone; again only if the first reading is slow."""
        rails = list(self._rates.on_its_rails(flow).rails)
        for i in range(REPEATS):
            yield from self._measure([Round((flow,), 0 if i else tests, "alone", alone=True)])
            rate = self._rates.best_alone[rails, flow.sender, flow.receiver]
            if (rate >= self._rates.threshold[rails]).all():
                break

    def _any_alone(self) -> Steps:
        """If every pair is slow, try the fastest ones alone: one may be fast if no other sends."""
        if not (rails := self._rates.too_slow_rails):
            return
        best = np.nan_to_num(np.fmax.reduce(self._rates.best[list(rails)], axis=0))
        tried: set[int] = set()
        for index in np.argsort(-np.maximum(best, best.T), axis=None):
            pair = divmod(int(index), self._rates.nodes)
            rails = self._rates.too_slow_rails
            if not rails or self._rates.nodes == 2 or len(tried) >= 2 * _ALONE_PAIRS:
                return
            if pair[0] == pair[1] or tried & {*pair}:
                continue
            tried |= {*pair}
            yield from self._alone(Flow(*pair, rails), 1)
            yield from self._alone(Flow(*pair[::-1], rails), 0)

    def _next_trial(self) -> list[Flow]:
        """Flows of a suspect with a healthy partner not yet tried alone; empty if none is left."""
        for suspect in slow_nodes(self._rates):
            if suspect.confirmed:
                continue
            partners = {sends: self._new_partner(suspect, sends) for sends in suspect.directions}
            flows = [
                Flow(suspect.node, partner, suspect.rails)
                if sends
                else Flow(partner, suspect.node, suspect.rails)
                for sends, partner in partners.items()
                if partner is not None
            ]
            if flows:
                return flows
        return []

    def _new_partner(self, suspect: SlowNode, sends: bool) -> int | None:
        """A partner not yet tried alone; None if enough were tried, or none is left."""
        rates, rails = self._rates, suspect.rails
        known = rates.partners(suspect.node, rails, sends=sends, times_alone=REPEATS)
        if len(known) >= CONFIRMED_BY:
            return None
        times = rates.times_alone[list(rails)]
        tried = (times[:, suspect.node, :] if sends else times[:, :, suspect.node]).min(axis=0)
        return next(
            (i for i in self._healthy_for(suspect.node, rails, sends) if tried[i] < REPEATS), None
        )

    def _healthy_for(self, node: int, rails: Sequence[int], sends: bool) -> list[int]:
        """Nodes fast enough to receive from `node`, or send to it; those without a fault first."""
        slow = set(self._rates.slow_nodes)
        others = [(node + step) % self._rates.nodes for step in range(1, self._rates.nodes)]
        fast = self._rates.fast(rails, sends=not sends) & self._rates.has[rails[0], node]
        return sorted((i for i in others if fast[i]), key=lambda i: i in slow)

    def _doubted_pairs(self) -> dict[Pair, tuple[list[Pair], tuple[int, ...]]]:
        """By pair of nodes, the directions and rails on which the path may be slow."""
        found: dict[Pair, tuple[list[Pair], tuple[int, ...]]] = {}
        links = self._rates.slow_links
        for rail, *way in links[:1] if groups_apart(self._rates) else links:
            sender, receiver = way
            pair = min(way), max(way)
            tried = self._times_tried[pair] >= REPEATS
            if not (tried or is_confirmed(self._rates, rail, sender, receiver)):
                ways, rails = found.get(pair, ([], ()))
                if (sender, receiver) not in ways:
                    ways = [*ways, (sender, receiver)]
                found[pair] = ways, tuple(sorted({*rails, rail}))
        return found

    def _try_path(self, ways: Sequence[Pair], rails: tuple[int, ...]) -> Steps:
        """Try a pair alone; if it stays slow, try each of its ends alone with another node."""
        for _ in range(CONFIRMED_BY):
            for i, way in enumerate(ways):
                yield from self._alone(Flow(*way, rails), 0 if i else 1)
            slow = {(sender, receiver) for _, sender, receiver in self._rates.slow_links}
            ways = [way for way in ways if way in slow]
        tried: set[int] = set()
        for sender, receiver in ways:
            for end, other_end, sends in ((sender, receiver, True), (receiver, sender, False)):
                for other in self._known_fast(end, rails, sends, other_end):
                    flow = Flow(end, other, rails) if sends else Flow(other, end, rails)
                    yield from self._alone(flow, 0 if end in tried else 1)
                    tried.add(end)
                    alone = self._rates.best_alone[:, flow.sender, flow.receiver]
                    contrasts = [contrast_mbits_s(self._rates, r, sender, receiver) for r in rails]
                    if (alone[list(rails)] >= contrasts).all():
                        break

    def _known_fast(self, end: int, rails: Sequence[int], sends: bool, besides: int) -> list[int]:
        """A few partners: first those that `end` was fast with, then others that should be."""
        table = self._rates.best[list(rails)]
        known = np.nan_to_num(table[:, end, :] if sends else table[:, :, end]).min(axis=0)
        healthy = self._healthy_for(end, rails, sends)
        tried = sorted((i for i in healthy if known[i]), key=lambda i: -known[i])
        others = [int(i) for i in np.argsort(-known) if i != end]
        order = dict.fromkeys([*tried, *healthy, *others])
        return [i for i in order if i != besides][:CONFIRMED_BY]
