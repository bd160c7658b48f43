"""Rates measured between nodes so far, and the slow ones among them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.detection import PROBABILITY
from pytest_mnode.measuring.limits import EVERY_PATH_UP_TO
from pytest_mnode.measuring.locating.rounds import Flow, Reading

STANDS_OUT, ALIKE = 0.8, 0.95
"""A link or node is slow below both the bound and a fraction of the rate of healthy links that
follows from their noise, between these two. [choice] Above the second, equal NICs may differ by
their slots; the first is for noise that is not known, or a rail that misses the bound anyway."""
_FALSE_ALARM = 1e-3
"""Chance that noise makes any link, or any node, of a healthy cluster look slow before it is
confirmed alone. [choice]"""
_POLISHED_UP_TO = EVERY_PATH_UP_TO
"""Nodes up to which the noise is what senders and receivers leave; of more, few pairs of a node are
measured, and few nodes of many are slow."""
_FURTHER = 0.6
"""A path of a slow node is slow by itself below this fraction of the node's rate with others. A
reading of a slow link may be up to a third too high, if data queued up while a receiver waited for
a core."""
_ENOUGH_FOR_SECOND, _SOME = 4, 0.25
_DIP = 0.6
"""A link did not keep its rate below this fraction of its best reading alone on the fabric."""
_FEW_DIPS = 0.1
"""Tolerated dips, as a fraction of all readings alone; one dip is always tolerated."""
_POLISHES, _FEWEST_RESTS = 2, 4
_QUANTILE = NormalDist().inv_cdf(PROBABILITY)
_MAD_OF_NORMAL = NormalDist().inv_cdf(0.75)


def _nanmedian(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """As np.nanmedian with keepdims, in a fifth of its time for few values, without warnings."""
    ordered, known = np.sort(values, axis), (~np.isnan(values)).sum(axis, keepdims=True)
    middle = [np.take_along_axis(ordered, at // 2, axis) for at in (known - 1, known)]
    return (middle[0] + middle[1]) / 2


class Rates:
    """The best rate of every link (one direction of a pair on one rail), in Mbit/s.

    The best reading counts, because other work on a machine can only make a link look slower.
    Arrays are indexed by rail, then by sender and receiver, or by node; nan means not measured.
    Paths inside an NVLink domain are many times as fast as those that NICs carry, and are compared
    only with their like: further rails, one of NVLink for each of the NICs', have these paths.
    """

    def __init__(
        self,
        nodes: int,
        nics: int,
        slow_below_mbits_s: float,
        domains: Sequence[int] = (),
        nvlink_below_mbits_s: float = 0.0,
    ) -> None:
        """nics: number of rails that NICs carry. slow_below_mbits_s: the spec's bound for all NICs
        of one rail together, nvlink_below_mbits_s that for NVLink. domains: by node, the NVLink
        domain that it is in; left out, each in its own."""
        self.nodes = nodes
        self.nics = nics
        apart, domain = ~np.eye(nodes, dtype=np.bool_), np.array(domains or range(nodes))
        inside = apart & (domain[:, None] == domain)
        self.rails = rails = nics * (1 + bool(inside.any()))
        self.each_rail = range(rails)
        of_nics = np.arange(rails) < nics
        self.bounds_mbits_s = np.where(of_nics, slow_below_mbits_s, nvlink_below_mbits_s)
        self.has = np.where(of_nics[:, None, None], apart & ~inside, inside)
        """Whether a rail has a path, by sender and receiver."""
        self.best = np.full((rails, nodes, nodes), np.nan)
        self.best_alone = np.full((rails, nodes, nodes), np.nan)
        self.times_alone = np.zeros((rails, nodes, nodes), dtype=np.int32)
        self._alone: dict[tuple[int, int, int], list[float]] = {}
        self.failed_tries = np.zeros((rails, nodes, nodes), dtype=np.bool_)
        """Links that at least once gave no rate when they were tried."""
        self.wrong = np.zeros((nodes, nodes), dtype=np.bool_)
        """Paths that changed data at least once, by sender and receiver."""
        self.crowded = np.zeros((rails, nodes, nodes), dtype=np.bool_)
        """Links that were slow beside others, and whose like are fast alone: they share a link."""
        self.tx = np.full((rails, nodes), np.nan)
        """Rate at which each node sends to its best partner."""
        self.rx = np.full((rails, nodes), np.nan)
        self._reference: NDArray[np.float64] | None = None
        self._noise: float | None = None
        self._thresholds: tuple[NDArray[np.float64], ...] | None = None

    def on_its_rails(self, flow: Flow) -> Flow:
        """The flow on those of its rails that have its path."""
        if self.rails == self.nics:
            return flow
        has = self.has[:, flow.sender, flow.receiver]
        return replace(flow, rails=tuple(rail for rail in flow.rails if has[rail]))

    def add(self, readings: Iterable[Reading]) -> None:
        """Add readings. One that is not a finite number above 0 counts as not measured."""
        self._reference = self._noise = self._thresholds = None
        for reading in readings:
            rate, rail = reading.mbits_s, reading.rail
            link = rail, reading.sender, reading.receiver
            self.wrong[link[1:]] |= reading.wrong
            if not 0 < rate < np.inf:
                self.failed_tries[link] = True
                continue
            _raise(self.best, link, rate)
            _raise(self.tx, (rail, reading.sender), rate)
            _raise(self.rx, (rail, reading.receiver), rate)
            if reading.alone:
                _raise(self.best_alone, link, rate)
                self.times_alone[link] += 1
                self._alone.setdefault(link, []).append(rate)

    @property
    def unsteady(self) -> tuple[float, float] | None:
        """Lowest and highest reading, alone, of the most unsteady link; None if links are steady.

        Slow hardware has a steady low rate. Links whose rate drops from time to time with nothing
        else on the fabric are slowed by something else, such as programs that take their cores.
        """
        dips = [
            (min(all_), max(all_))
            for all_ in self._alone.values()
            for one in all_
            if one < _DIP * max(all_)
        ]
        if len(dips) <= max(1.0, _FEW_DIPS * self.times_alone.sum()):
            return None
        return min(dips, key=lambda dip: dip[0] / dip[1])

    @property
    def silent(self) -> NDArray[np.bool_]:
        """Links that were tried and never gave a reading."""
        silent: NDArray[np.bool_] = self.failed_tries & ~np.isfinite(self.best)
        return silent

    @property
    def reference(self) -> NDArray[np.float64]:
        """By rail, the median rate of the links that are about as fast as the fastest.

        The median of all links would be wrong if most are slow, and the fastest link alone if its
        reading is wrong. Of these links, those that reach the bound count if they are a quarter or
        more: a slow one of three nodes is on four of six links. nan if nothing was measured.
        """
        if self._reference is None:
            each = zip(self.best, self.bounds_mbits_s, strict=True)
            self._reference = np.array([_typical_of_the_fast(best, bound) for best, bound in each])
        return self._reference

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a healthy link's rate; inf if it is not known.

        The logarithm of a rate is that of its sender, its receiver and a rest, by medians of rows
        and columns, so that slow nodes and paths do not count as noise (median polish: Tukey,
        Exploratory Data Analysis, 1977, chapter 11). Of the rests the MAD is taken, without as many
        of the smallest as there are medians, which made these 0; and as few rests know it badly,
        the upper end of its interval of 99 %: its relative deviation is 1.17 / √n (Hampel, JASA 69,
        1974).
        """
        if self._noise is None:
            rest = np.log(self.best / self.reference[:, None, None])
            if self.nodes <= _POLISHED_UP_TO:
                for _ in range(_POLISHES):
                    for axis in (2, 1):
                        rest -= _nanmedian(rest, axis)
            sizes = np.sort(np.abs(rest[np.isfinite(rest)]))
            known = np.isfinite(self.best)
            senders, receivers = known.any(axis=2), known.any(axis=1)
            sizes = sizes[senders.sum() + receivers.sum() - senders.any(axis=1).sum() :]
            self._noise = math.inf
            if sizes.size >= _FEWEST_RESTS:
                unsure = 1 + _QUANTILE * 1.17 / math.sqrt(sizes.size)
                self._noise = float(np.median(sizes)) / _MAD_OF_NORMAL * unsure
        return self._noise

    @property
    def threshold(self) -> NDArray[np.float64]:
        """By rail, the rate below which a link is slow."""
        return self._limits[0]

    @property
    def slow_tx(self) -> NDArray[np.bool_]:
        """By rail and node: whether it sends slowly to every partner it was tried with."""
        return self.tx < self._limits[1]

    @property
    def slow_rx(self) -> NDArray[np.bool_]:
        """By rail and node: whether it receives slowly from every partner it was tried with."""
        return self.rx < self._limits[2]

    @property
    def _limits(self) -> tuple[NDArray[np.float64], ...]:
        """Rates below which a link (by rail), a sender and a receiver (by rail and node) is slow.

        The best of k readings of a healthy node is below a level with p^k, if one is with p: the
        more partners it was tried with, the less noise excuses it.
        """
        if self._thresholds is None:
            measured = np.isfinite(self.best)
            reference, bounds = self.reference[:, None], self.bounds_mbits_s[:, None]
            known = reference >= bounds
            links = np.ones((self.rails, 1), dtype=np.intp), int(measured.sum())
            nodes = 2 * self.rails * self.nodes
            found = []
            for tries, count in (links, *((measured.sum(axis=a), nodes) for a in (2, 1))):
                share = np.where(known, self._share(tries, max(1, count)), STANDS_OUT)
                found.append(np.fmin(bounds, share * reference))
            self._thresholds = (found[0][:, 0], *found[1:])
        return self._thresholds

    def _share(self, tries: NDArray[np.intp], count: int) -> NDArray[np.float64]:
        """The share of the reference that the best of so many tries reaches, for all of `count`."""
        if not math.isfinite(self.noise):
            return np.full(tries.shape, STANDS_OUT)
        each, chance = np.unique(tries, return_inverse=True), _FALSE_ALARM / count
        quantiles = [NormalDist().inv_cdf(chance ** (1 / max(1, k))) for k in each[0]]
        shares = np.exp(np.minimum(0.0, quantiles) * self.noise)[each[1].reshape(tries.shape)]
        return np.asarray(np.clip(shares, STANDS_OUT, ALIKE))

    @property
    def detectable_loss(self) -> float | None:
        """Smallest share that one link could lack of the usual rate and be found, with 99 %.

        None unless every link was measured, and none only beside others.
        """
        if self.nodes < 2 or (self.has & ~np.isfinite(self.best)).any() or self.crowded.any():
            return None
        least = float(np.nanmin(self.threshold / self.reference))
        noise = self.noise
        if not math.isfinite(noise):  # too few nodes to tell it from differences of nodes
            ratios = np.log(self.best / self.reference[:, None, None])
            ratios = ratios[np.isfinite(ratios)]
            noise = float(np.median(np.abs(ratios - np.median(ratios)))) / _MAD_OF_NORMAL
        return 1 - least * math.exp(-_QUANTILE * noise)

    @property
    def slow_nodes(self) -> list[int]:
        """Nodes that are slow in at least one direction on at least one rail."""
        return [int(i) for i in np.flatnonzero((self.slow_tx | self.slow_rx).any(axis=0))]

    @property
    def slow_links(self) -> list[tuple[int, int, int]]:
        """(rail, sender, receiver) of slow links whose ends are fast or much faster with others."""
        rail, a, b = np.nonzero((self.best < self.threshold[:, None, None]) & ~self.crowded)
        ends = np.fmin(self.tx[rail, a], self.rx[rail, b])
        fast = ~(self.slow_tx[rail, a] | self.slow_rx[rail, b])
        slower = fast | (self.best[rail, a, b] < _FURTHER * ends)
        links = zip(rail[slower], a[slower], b[slower], strict=True)
        return [(int(rail), int(a), int(b)) for rail, a, b in links]

    @property
    def too_slow_rails(self) -> tuple[int, ...]:
        """Rails on which even the fast links are below the bound."""
        return tuple(np.flatnonzero(self.reference < self.bounds_mbits_s).tolist())

    @property
    def measured(self) -> NDArray[np.bool_]:
        """By sender and receiver, whether the path was measured on each of its rails."""
        left = self.has & ~np.isfinite(self.best)
        measured: NDArray[np.bool_] = self.has.any(axis=0) & ~left.any(axis=0)
        return measured

    @property
    def paths_measured(self) -> int:
        """Number of ordered pairs of nodes that were measured on each of their rails."""
        return int(self.measured.sum())

    def partners(self, node: int, rails: Sequence[int], sends: bool, times_alone: int) -> list[int]:
        """Fast partners that a node was tried with in one direction on all of `rails`.

        sends: whether the node was the sender. times_alone: least number of readings of such a
        pair with nothing else on the fabric.
        """
        chosen = list(rails)
        tried = np.isfinite(self.best[chosen]) & (self.times_alone[chosen] >= times_alone)
        with_whom = (tried[:, node, :] if sends else tried[:, :, node]).all(axis=0)
        return np.flatnonzero(with_whom & self.fast(rails, sends=not sends)).tolist()

    def fast(self, rails: Sequence[int], *, sends: bool) -> NDArray[np.bool_]:
        """By node: whether it was measured, and is fast in that direction on all of `rails`."""
        chosen = list(rails)
        score, slow = (self.tx, self.slow_tx) if sends else (self.rx, self.slow_rx)
        enough: NDArray[np.bool_] = (np.isfinite(score) & ~slow)[chosen].all(axis=0)
        return enough


def _raise(table: NDArray[np.float64], index: tuple[int, ...], rate: float) -> None:
    if not table[index] >= rate:  # true also for nan
        table[index] = rate


def _typical_of_the_fast(rates: NDArray[np.float64], bound: float) -> float:
    measured = rates[np.isfinite(rates)]
    if not measured.size:
        return float("nan")
    # A single reading that is too fast must not make all others look slow.
    fastest = (
        measured.max() if measured.size < _ENOUGH_FOR_SECOND else np.partition(measured, -2)[-2]
    )
    fast = measured[measured >= STANDS_OUT * fastest]
    kept = fast[fast >= bound]
    return float(np.median(kept if kept.size >= max(2, _SOME * fast.size) else fast))
