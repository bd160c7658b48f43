"""Finds who makes the fabric slow; called only when it is, or when asked for, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from pytest_mnode.measuring.blame import Blamed, blamed
from pytest_mnode.measuring.culprit import Naming, corrupters, culprits
from pytest_mnode.measuring.pairs import Measured, Pairs, Rails, chunk_bytes
from pytest_mnode.measuring.rates import STANDS_OUT, Rates
from pytest_mnode.measuring.rounds import Reading, Round, both_ways
from pytest_mnode.measuring.search import EVERY_PAIR_UP_TO, Search, search
from pytest_mnode.measuring.traffic import NodeTraffic, astray
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

BUDGET_S = 20.0
_MOST_SILENT = 8


@dataclass(frozen=True, slots=True)
class Located:
    """Who slows the fabric, the same on every rank.

    culprit: everyone to blame, in words; None where nobody was found. cut_off: what there was no
    time for; empty where nothing was left out. silent: links that gave no reading when they were
    tried, in words. alike: pairs are all below the bound, which is no
    fault where the collective kept it. tests: as `Round.tests` counts them.
    bound_mbits_s: what a link must carry. paths: ordered pairs of nodes. unmeasured: why not all
    of them, or not all NICs, were measured, with counts; empty where all were. every_path: whether
    all had to be.
    corrupt_paths: those that changed what was sent, once at least; corrupter: who, in words.
    """

    blamed: Blamed
    culprit: str | None
    slowest: str
    cut_off: str
    rounds: int
    tests: int
    spent_s: float
    alike: bool = False
    silent: str = ""
    bound_mbits_s: float = 0.0
    paths: int = 0
    paths_measured: int = 0
    unmeasured: str = ""
    every_path: bool = True
    corrupt_paths: int = 0
    corrupter: str | None = None

    def __str__(self) -> str:
        if self.unsteady:
            return "; ".join(filter(None, (self.unsteady, self.silent, self.cut_off)))
        fast = "are alike, if slow by themselves" if self.alike else "keep the rate by themselves"
        nobody = f"no culprit: pairs {fast} (slowest {self.slowest})"
        found = self.culprit or (nobody if self.slowest else "no pair of nodes could be tried")
        if self.silent and not self.culprit:
            return "; ".join(filter(None, (self.silent, self.cut_off)))
        return "; ".join(filter(None, (found, self.silent, self.cut_off)))

    @property
    def unsteady(self) -> str:
        """Why nobody can be blamed though something is slow; empty where somebody can."""
        if self.blamed.unsteady_mbits_s is None:
            return ""
        low, high = self.blamed.unsteady_mbits_s
        return (
            "pairs of nodes do not keep a rate: with nothing else on the fabric the same pair "
            f"carried {low:.0f} and {high:.0f} Mbit/s; free the nodes of other work and run again"
        )

    @property
    def faults(self) -> int | None:
        """How many nodes, rails and paths are slow; None where that is not known for sure."""
        sure = [node.confirmed for node in self.blamed.nodes]
        sure += [path.confirmed for path in self.blamed.paths]
        if named := sum(sure) + len(self.blamed.too_slow_rails):
            return named
        doubts = sure or self.cut_off or self.culprit or self.silent or self.unsteady
        return None if doubts or not self.slowest else 0

    def record(self, measure: Measure) -> None:
        """What was found, with how; a search that was cut off, or is unsure, is inconclusive."""
        measure(
            "slow nodes, rails and paths",
            self.faults,
            equals=0,
            source=f"each pair, alone, carries {self.bound_mbits_s:.4g} Mbit/s (at_least_fraction "
            "less tolerance_fraction × fabric.line_rate of the NICs of a rank), or "
            f"{STANDS_OUT:g} of what the fast pairs carry",
            culprit=self.culprit or self.silent or self.cut_off or None,
            note=f"{self}; {self.effort}",
        )
        measure(
            "ordered paths measured",
            None if self.unmeasured and self.every_path else self.paths_measured,
            equals=self.paths if self.every_path else None,
            source="n(n-1) ordered pairs of n nodes" if self.every_path else "",
            note=f"{self.paths_measured} of {self.paths} ordered paths measured"
            + (f"; not measured: {self.unmeasured}" if self.unmeasured else ""),
        )
        measure(
            "paths that change what is sent",
            self.corrupt_paths if self.slowest else None,
            equals=0,
            source="what arrives is what was sent, whatever checksums say",
            culprit=self.corrupter,
        )

    @property
    def effort(self) -> str:
        """What it took, in words."""
        return f"{self.tests} tests in {self.rounds} rounds, {self.spent_s:.1f} s"


def located(
    world: World,
    spec: Spec,
    traffic: tuple[NodeTraffic, ...],
    slow_below_mbits_s: float,
    device: torch.device,
    *,
    budget_s: float = BUDGET_S,
    kept: bool = False,
    every_path: bool = True,
) -> Located:
    """Measure pairs until it is known who is slow. All ranks call this, with the same arguments.

    traffic: what the nodes sent when the fabric was slow; empty where that is not known.
    slow_below_mbits_s: what one NIC must carry. kept: a collective did reach it; then only those
    are to blame who are slower than others: one pair may not fill the line at all. budget_s: no
    round begins after so long. every_path: measure all pairs of more than 16 nodes as well.
    """
    fabric = spec.fabric
    rails = Rails.of(world, fabric.nics_per_node)
    rates = Rates(len(world.nodes), rails.count, slow_below_mbits_s * rails.nics_each)
    gone_astray = bool(traffic) and all(node.astray(fabric) for node in traffic)
    # Then there is nothing more to learn from more pairs.
    steps = _one_pair(rates) if gone_astray else search(rates, every_path=every_path)
    naming = Naming.of(world.nodes, spec, rails.count)
    if len(world.nodes) < 2:
        return conclude(rates, naming, None, Effort(), "")
    pairs = Pairs(rails, chunk_bytes(fabric.line_rate_mbits_s * rails.nics_each), device)
    told = _told_by(naming) if world.rank == 0 else lambda *_: None
    effort = run(steps, pairs.measure, budget_s, told)
    late = None if effort.complete else budget_s
    told_astray = astray(traffic, fabric) or ""
    found = conclude(rates, naming, late, effort, told_astray, kept=kept, every_path=every_path)
    if (used := rails.count * rails.nics_each) < fabric.nics_per_node:
        left_out = f"{fabric.nics_per_node - used} of {fabric.nics_per_node} NICs of each node: "
        left_out += f"{world.local_size} ranks per node cannot be spread evenly over them"
        return replace(found, unmeasured="; ".join(filter(None, (found.unmeasured, left_out))))
    return found


@dataclass(frozen=True, slots=True)
class Effort:
    """What a search took, and whether it came to its end."""

    rounds: int = 0
    tests: int = 0
    spent_s: float = 0.0
    complete: bool = True


def run(
    steps: Search,
    measure: Callable[[Round], Measured],
    budget_s: float,
    told: Callable[[int, Round, Sequence[Reading]], None] = lambda *_: None,
) -> Effort:
    """Measure what a search asks for, until it has no more to ask or its time is up."""
    count = tests = 0
    spent_s = 0.0
    try:
        step = next(steps)
        while True:
            if spent_s > budget_s:  # by the clock of rank 0, so all agree
                step = steps.send(None)
                continue
            measured = measure(step)
            count, tests, spent_s = count + 1, tests + step.tests, measured.spent_s
            told(count, step, measured.readings)
            step = steps.send(measured.readings)
    except StopIteration as end:
        return Effort(count, tests, spent_s, bool(end.value))


def conclude(
    rates: Rates,
    naming: Naming,
    late_s: float | None,
    effort: Effort,
    gone_astray: str,
    *,
    kept: bool = False,
    every_path: bool = True,
) -> Located:
    """What the rates say, in words. late_s: the budget where it was spent."""
    found = blamed(rates)
    alike = kept and bool(rates.too_slow_rails)
    if alike:
        fast = STANDS_OUT * (found.reference_mbits_s or 0.0)
        told_apart = tuple(p for p in found.paths if rates.nodes > 2 or p.mbits_s < fast)
        found = replace(found, too_slow_rails=(), paths=told_apart)
    named = "; ".join(filter(None, (gone_astray, culprits(found, naming)))) or None
    cut_off = "" if late_s is None else _cut_off(rates, late_s)
    slowest = _slowest(rates, naming)
    return Located(
        found,
        named,
        slowest,
        cut_off,
        effort.rounds,
        effort.tests,
        effort.spent_s,
        alike,
        _silent(rates, naming),
        rates.slow_below_mbits_s,
        rates.nodes * (rates.nodes - 1),
        rates.paths_measured,
        _unmeasured(rates, late_s, gone_astray, every_path=every_path),
        every_path or rates.nodes <= EVERY_PAIR_UP_TO,
        int(rates.wrong.sum()),
        corrupters(rates.wrong, naming),
    )


def _silent(rates: Rates, naming: Naming) -> str:
    """Which links gave no reading: of nodes that none did, the nodes; else paths. "" for none."""
    silent = rates.silent
    spoke = np.isfinite(rates.best)
    named: list[str] = []
    for rail in rates.each_rail:
        on = f" {naming.rails[rail]}" if rates.rails > 1 else ""
        dumb = silent[rail].any(axis=1) & ~spoke[rail].any(axis=1)
        deaf = silent[rail].any(axis=0) & ~spoke[rail].any(axis=0)
        if not spoke[rail].any() and silent[rail].any():
            named.append(f"any node{on}")
            continue
        for i, node in enumerate(naming.nodes):
            if dumb[i] or deaf[i]:
                way = "" if dumb[i] and deaf[i] else " tx" if dumb[i] else " rx"
                named.append(f"{node}{on}{way}")
        rest = silent[rail] & ~dumb[:, None] & ~deaf[None, :]
        named += [f"{naming.nodes[a]}→{naming.nodes[b]}{on}" for a, b in np.argwhere(rest)]
    more = f" and {len(named) - _MOST_SILENT} more" if len(named) > _MOST_SILENT else ""
    return f"no reading of {', '.join(named[:_MOST_SILENT])}{more}" if named else ""


def _cut_off(rates: Rates, late_s: float) -> str:
    total, measured = rates.nodes * (rates.nodes - 1), rates.paths_measured
    if measured < total:
        return f"not all paths were measured within {late_s:g} s: {measured} of {total}"
    return f"not all was confirmed within {late_s:g} s"


def _unmeasured(rates: Rates, late_s: float | None, gone_astray: str, *, every_path: bool) -> str:
    """How many ordered paths were not measured, and why; empty where all were."""
    silent = int(rates.silent.any(axis=0).sum())
    rest = rates.nodes * (rates.nodes - 1) - rates.paths_measured - silent
    if late_s is not None:
        why = f"the {late_s:g} s of --mnode-locate-budget were spent"
    elif gone_astray:
        why = "traffic was not on the fabric"
    elif rates.nodes > EVERY_PAIR_UP_TO and not every_path:
        why = f"more than {EVERY_PAIR_UP_TO} nodes (--mnode-locate measures every path)"
    else:
        why = "an end was slow with every partner"
    parts = [f"{silent}, no reading"] * bool(silent) + [f"{rest}, {why}"] * bool(rest)
    return "; ".join(parts)


def _one_pair(rates: Rates) -> Search:
    for step in both_ways([(0, 1)], tuple(rates.each_rail), 1, "one pair"):
        readings = yield step
        rates.add(readings or ())
    return True


def _slowest(rates: Rates, naming: Naming) -> str:
    if not np.isfinite(rates.best).any():
        return ""
    rail, a, b = np.unravel_index(np.nanargmin(rates.best), rates.best.shape)
    on = f" on {naming.rails[rail]}" if rates.rails > 1 else ""
    return f"{naming.nodes[a]}→{naming.nodes[b]}{on} {rates.best[rail, a, b]:.0f} Mbit/s"


def _told_by(naming: Naming) -> Callable[[int, Round, Sequence[Reading]], None]:
    """A line a round, for whoever waits; pytest shows it live with -s, else with a failure."""

    def told(count: int, step: Round, readings: Sequence[Reading]) -> None:
        slowest = min(readings, key=lambda reading: reading.mbits_s)
        print(
            f"locate: round {count} ({step.stage}), {len(step.flows)} pairs at once, slowest "
            f"{naming.nodes[slowest.sender]}→{naming.nodes[slowest.receiver]} "
            f"{slowest.mbits_s:.0f} Mbit/s",
            flush=True,
        )

    return told
