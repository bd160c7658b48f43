"""Finds who makes the fabric slow; called only when it is, or when asked for, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pytest_mnode.measuring.locating.diagnosis import Diagnosis, diagnose
from pytest_mnode.measuring.locating.pairs import MeasuredRound, Pairs, Rails, chunk_bytes
from pytest_mnode.measuring.locating.path_table import path_rates
from pytest_mnode.measuring.locating.rates import STANDS_OUT, Rates
from pytest_mnode.measuring.locating.rounds import Reading, Round, both_ways
from pytest_mnode.measuring.locating.search import EVERY_PATH_UP_TO, Search, search
from pytest_mnode.measuring.locating.wording import (
    Names,
    corrupters,
    culprits,
    cut_off,
    silent_links,
    slowest_link,
    unmeasured_paths,
)
from pytest_mnode.measuring.traffic import SentByNode, off_fabric
from pytest_mnode.path_rates import PathRates
from pytest_mnode.progress import progress
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec

BUDGET_S = 20.0


@dataclass(frozen=True, slots=True)
class Effort:
    """What a search took, and whether it came to its end. tests: as `Round.tests` counts them."""

    rounds: int = 0
    tests: int = 0
    spent_s: float = 0.0
    complete: bool = True

    def __str__(self) -> str:
        return f"{self.tests} tests in {self.rounds} rounds, {self.spent_s:.1f} s"


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """Who slows the fabric, the same on every rank.

    culprit: everyone to blame, in words; None where nobody was found. cut_off: what there was no
    time for; empty where nothing was left out. silent: links that gave no reading when they were
    tried, in words. all_slow: pairs are all below the bound, which is no fault where the collective
    kept it. bound_mbits_s: what a link must carry. paths:
    ordered pairs of nodes. unmeasured: why not all of them, or not all NICs, were measured, with
    counts; empty where all were. every_path: whether all had to be. corrupt_paths: those that
    changed what was sent, once at least; corrupter: who, in words. rates: of all paths and rails;
    None where no two nodes could be tried.
    """

    diagnosis: Diagnosis
    culprit: str | None
    slowest: str
    cut_off: str
    effort: Effort
    all_slow: bool = False
    silent: str = ""
    bound_mbits_s: float = 0.0
    paths: int = 0
    paths_measured: int = 0
    unmeasured: str = ""
    every_path: bool = True
    corrupt_paths: int = 0
    corrupter: str | None = None
    rates: PathRates | None = None

    def __str__(self) -> str:
        found = self.unsteady or self.culprit
        if not found and not self.silent:
            found = self._nobody if self.slowest else "no pair of nodes could be tried"
        return "; ".join(filter(None, (found, self.silent, self.cut_off)))

    @property
    def _nobody(self) -> str:
        why = "pairs keep the rate by themselves"
        if self.all_slow:
            why = "no outlier, all pairs are equally slow"
        return f"no culprit: {why} (slowest {self.slowest})"

    @property
    def unsteady(self) -> str:
        """Why nobody can be blamed though something is slow; empty where somebody can."""
        if self.diagnosis.unsteady_mbits_s is None:
            return ""
        low, high = self.diagnosis.unsteady_mbits_s
        return (
            "pairs of nodes do not keep a rate: with nothing else on the fabric the same pair "
            f"carried {low:.0f} and {high:.0f} Mbit/s; free the nodes of other work and run again"
        )

    @property
    def faults(self) -> int | None:
        """How many nodes, rails and paths are slow; None where that is not known for sure."""
        sure = [node.confirmed for node in self.diagnosis.nodes]
        sure += [path.confirmed for path in self.diagnosis.paths]
        if named := sum(sure) + len(self.diagnosis.too_slow_rails):
            return named
        doubts = sure or self.cut_off or self.culprit or self.silent or self.unsteady
        return None if doubts or not self.slowest else 0


def find_slow_links(
    world: World,
    spec: Spec,
    traffic: tuple[SentByNode, ...],
    slow_below_mbits_s: float,
    device: torch.device,
    *,
    budget_s: float = BUDGET_S,
    outliers_only: bool = False,
    every_path: bool = True,
) -> SlowLinks:
    """Measure pairs until it is known who is slow. All ranks call this, with the same arguments.

    traffic: what the nodes sent when the fabric was slow; empty where that is not known.
    slow_below_mbits_s: what one NIC must carry. outliers_only: a collective did reach it, so that
    only those are to blame who are slower than others: one pair may not fill the line at all.
    budget_s: no round begins after it. every_path: measure all pairs of more than 64 nodes as well;
    else a sample of them, others on every day.
    """
    fabric = spec.fabric
    every_path = every_path or len(world.nodes) <= EVERY_PATH_UP_TO
    rails = Rails.of(world, fabric.nics_per_node)
    rates = Rates(len(world.nodes), rails.count, slow_below_mbits_s * rails.nics_each)
    names = Names.of(world.nodes, spec, rails.count)
    if len(world.nodes) < 2:
        return conclude(rates, names, None, Effort(), "")
    nothing_on_it = bool(traffic) and all(node.off_fabric(fabric) for node in traffic)
    # Then more pairs show nothing more.
    pairs = Pairs(rails, chunk_bytes(fabric.line_rate_mbits_s * rails.nics_each), device)
    day = 0 if every_path else pairs.day()
    steps = _one_pair(rates) if nothing_on_it else search(rates, every_path=every_path, day=day)
    report = _printing(names) if world.rank == 0 else lambda *_: None
    effort = run(steps, pairs.measure, budget_s, report)
    found = conclude(
        rates,
        names,
        None if effort.complete else budget_s,
        effort,
        off_fabric(traffic, fabric) or "",
        outliers_only=outliers_only,
        every_path=every_path,
    )
    if (used := rails.count * rails.nics_each) < fabric.nics_per_node:
        left_out = f"{fabric.nics_per_node - used} of {fabric.nics_per_node} NICs of each node: "
        left_out += f"{world.local_size} ranks per node cannot be spread evenly over them"
        return replace(found, unmeasured="; ".join(filter(None, (found.unmeasured, left_out))))
    return found


def run(
    steps: Search,
    measure: Callable[[Round], MeasuredRound],
    budget_s: float,
    report: Callable[[int, Round, Sequence[Reading]], None] = lambda *_: None,
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
            report(count, step, measured.readings)
            step = steps.send(measured.readings)
    except StopIteration as end:
        return Effort(count, tests, spent_s, bool(end.value))


def conclude(
    rates: Rates,
    names: Names,
    spent_budget_s: float | None,
    effort: Effort,
    instead: str,
    *,
    outliers_only: bool = False,
    every_path: bool = True,
) -> SlowLinks:
    """What the rates say, in words.

    spent_budget_s: the budget where it was spent, else None. instead: what carried the traffic
    where the fabric did not.
    """
    found = diagnose(rates)
    all_slow = outliers_only and bool(rates.too_slow_rails)
    if all_slow:
        fast = STANDS_OUT * (found.reference_mbits_s or 0.0)
        slower = tuple(p for p in found.paths if rates.nodes > 2 or p.mbits_s < fast)
        found = replace(found, too_slow_rails=(), paths=slower)
    return SlowLinks(
        diagnosis=found,
        culprit="; ".join(filter(None, (instead, culprits(found, names)))) or None,
        slowest=slowest_link(rates, names),
        cut_off="" if spent_budget_s is None else cut_off(rates, spent_budget_s),
        effort=effort,
        all_slow=all_slow,
        silent=silent_links(rates, names),
        bound_mbits_s=rates.slow_below_mbits_s,
        paths=rates.nodes * (rates.nodes - 1),
        paths_measured=rates.paths_measured,
        unmeasured=unmeasured_paths(rates, spent_budget_s, instead, every_path=every_path),
        every_path=every_path,
        corrupt_paths=int(rates.wrong.sum()),
        corrupter=corrupters(rates.wrong, names),
        rates=path_rates(rates, found, names) if np.isfinite(rates.best).any() else None,
    )


def _one_pair(rates: Rates) -> Search:
    for step in both_ways([(0, 1)], tuple(rates.each_rail), 1, "one pair"):
        readings = yield step
        rates.add(readings or ())
    return True


def _printing(names: Names) -> Callable[[int, Round, Sequence[Reading]], None]:
    """Prints a line per round; pytest shows it live with -s, else with a failure."""

    def report(count: int, step: Round, readings: Sequence[Reading]) -> None:
        progress(f"locating who is slow, round {count + 1}", 0, 0)
        slowest = min(readings, key=lambda reading: reading.mbits_s)
        print(
            f"locate: round {count} ({step.stage}), {len(step.flows)} pairs at once, slowest "
            f"{names.nodes[slowest.sender]}→{names.nodes[slowest.receiver]} "
            f"{slowest.mbits_s:.0f} Mbit/s",
            flush=True,
        )

    return report
