"""Search for the culprit of a slow fabric, within a budget; run after a failure or on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import all_of
from pytest_mnode.measuring.limits import EVERY_PATH_UP_TO
from pytest_mnode.measuring.locating.diagnosis import Diagnosis, diagnose
from pytest_mnode.measuring.locating.pairs import MeasuredRound, Pairs, Rails, chunk_bytes
from pytest_mnode.measuring.locating.path_table import path_rates
from pytest_mnode.measuring.locating.rates import STANDS_OUT, Rates
from pytest_mnode.measuring.locating.rounds import Flow, Reading, Round, both_ways
from pytest_mnode.measuring.locating.search import Search, search
from pytest_mnode.measuring.locating.wording import (
    Names,
    corrupters,
    culprits,
    cut_off,
    links_without_reading,
    slowest_link,
    unmeasured_paths,
)
from pytest_mnode.measuring.nic_counters import nics_by_rank
from pytest_mnode.measuring.nvlink_domains import domains_of, nvlink_gbits_s
from pytest_mnode.measuring.traffic import SentByNode, off_fabric
from pytest_mnode.path_rates import PathRates
from pytest_mnode.progress import progress
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec

BUDGET_S = 20.0


@dataclass(frozen=True, slots=True)
class Effort:
    """Cost of a search, and whether it was completed. tests: counted as in `Round.tests`."""

    rounds: int = 0
    tests: int = 0
    spent_s: float = 0.0
    complete: bool = True

    def __str__(self) -> str:
        return f"{self.tests} tests in {self.rounds} rounds, {self.spent_s:.1f} s"


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """Culprits of a slow fabric; the same on every rank.

    culprit: all culprits; None without one. slowest: the slowest link with its rate.
    cut_off: what did not fit into the budget; empty if all did. silent: links that gave no
    reading. all_slow: whether all pairs are below the bound, which is no fault if the
    collective reached it. bound_mbits_s: rate that a link must carry. paths: number of ordered
    pairs of nodes. unmeasured: why some paths or NICs were not measured, with counts; empty if all
    were. nvlink_mbits_s: rate that a link inside an NVLink domain must carry; None if each is one
    node. nics_measured: whether NICs carry any path. every_path: whether all paths had to be
    measured. corrupt_paths: number of paths that changed data at least once. corrupter: their
    common node, or these paths, in words. rates: of all paths and rails; none if no two nodes could
    be tried. detectable_loss: as `Rates` has it.
    crowded_paths: number of paths that were slow only beside others. nodes: number of nodes.
    """

    diagnosis: Diagnosis
    culprit: Culprit | None
    slowest: str
    cut_off: str
    effort: Effort
    all_slow: bool = False
    silent: Culprit | None = None
    bound_mbits_s: float = 0.0
    paths: int = 0
    paths_measured: int = 0
    unmeasured: str = ""
    nvlink_mbits_s: float | None = None
    nics_measured: bool = True
    every_path: bool = True
    corrupt_paths: int = 0
    corrupter: Culprit | None = None
    rates: tuple[PathRates, ...] = ()
    detectable_loss: float | None = None
    crowded_paths: int = 0
    nodes: int = 0

    @property
    def summary(self) -> Culprit:
        """What was found, or why nothing was, with the nodes of the culprit and of silent links."""
        return Culprit.merged(str(self), [self.culprit, self.silent])

    def __str__(self) -> str:
        found: str | None = self.unsteady or self.culprit
        if not found and not self.silent:
            found = self._nobody if self.slowest else "no pair of nodes could be tried"
        return "; ".join(filter(None, (found, self.silent, self.cut_off)))

    @property
    def _nobody(self) -> str:
        why = "every measured pair keeps the rate"
        if self.all_slow:
            why = "no outlier, all pairs are equally slow"
        return f"no culprit: {why} (slowest {self.slowest})"

    @property
    def unsteady(self) -> str:
        """Why no culprit can be named although links are slow; empty if links keep their rates."""
        if self.diagnosis.unsteady_mbits_s is None:
            return ""
        low, high = self.diagnosis.unsteady_mbits_s
        return (
            "pairs of nodes do not keep a rate: alone on the fabric, the same pair carried "
            f"{low:.0f} and {high:.0f} Mbit/s; free the nodes of other work and run again"
        )

    @property
    def faults(self) -> int | None:
        """Number of slow nodes, rails and paths; None if it is not certain."""
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
    """Measure pairs until the culprit is found. All ranks call this, with the same arguments.

    traffic: bytes that nodes sent while the fabric was slow; empty if unknown. slow_below_mbits_s:
    rate that one NIC must carry. outliers_only: whether a collective reached that rate; then only
    links slower than others are culprits, because a single pair may not be able to fill the line.
    budget_s: seconds after which no round begins. every_path: whether to measure all pairs of more
    than 64 nodes too, and not a sample that differs from day to day.
    """
    rails = Rails.of(world, spec.fabric.nics_per_node)
    size_bytes = chunk_bytes(spec.fabric.line_rate_mbits_s * rails.nics_each)
    pairs = Pairs(rails, size_bytes, device) if len(world.nodes) > 1 else None
    return search_slow_links(
        world,
        spec,
        traffic,
        slow_below_mbits_s,
        pairs,
        lambda: nics_by_rank(world, device),
        budget_s=budget_s,
        outliers_only=outliers_only,
        domains=domains_of(world, spec, device),
        every_path=every_path,
    )


class MeasuredPairs(Protocol):
    """Measures rounds of pairs: of the ranks of a world, or of a virtual cluster."""

    def measure(self, step: Round) -> MeasuredRound: ...

    def day(self) -> int:
        """Days since 1970, the same on all ranks."""
        ...


def search_slow_links(  # noqa: PLR0917  of `find_slow_links`, and what measures
    world: World,
    spec: Spec,
    traffic: tuple[SentByNode, ...],
    slow_below_mbits_s: float,
    pairs: MeasuredPairs | None,
    nics_of_ranks: Callable[[], Sequence[tuple[str, ...] | None]],
    *,
    domains: Sequence[int],
    budget_s: float = BUDGET_S,
    outliers_only: bool = False,
    every_path: bool = True,
) -> SlowLinks:
    """As `find_slow_links`, by rounds that `pairs` measures; None of one node.

    nics_of_ranks: by rank, the NICs that it uses; None if not known. domains: as `Rates` has them.
    """
    fabric = spec.fabric
    every_path = every_path or len(world.nodes) <= EVERY_PATH_UP_TO
    rails = Rails.of(world, fabric.nics_per_node)
    bound_mbits_s = slow_below_mbits_s * rails.nics_each
    inside_mbits_s = bound_mbits_s
    if (line_gbits_s := nvlink_gbits_s(spec)) is not None:
        inside_mbits_s = slow_below_mbits_s / fabric.line_rate_gbits_s * line_gbits_s
    rates = Rates(len(world.nodes), rails.count, bound_mbits_s, domains, inside_mbits_s)
    names = Names.of(world.nodes, spec, rails.count, nvlink=rates.rails > rates.nics)
    if pairs is None:
        return conclude(rates, names, None, Effort(), None)
    nothing_on_it = bool(traffic) and all(node.off_fabric(fabric) for node in traffic)
    # If no traffic is on the fabric, further pairs show nothing new.
    day = 0 if every_path else pairs.day()
    steps = _one_pair(rates) if nothing_on_it else search(rates, every_path=every_path, day=day)
    report = _printing(names) if world.rank == 0 else lambda *_: None
    effort = run(steps, pairs.measure, budget_s, report)
    if diagnose(rates).of_some_rails(rails.count):
        nics = nics_of_ranks()
        ranks = [[rails.rank(node, r) for node in range(rates.nodes)] for r in range(rates.nics)]
        names = names.as_used([[nics[rank] for rank in of_rail] for of_rail in ranks])
    found = conclude(
        rates,
        names,
        None if effort.complete else budget_s,
        effort,
        off_fabric(traffic, fabric),
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
    """Measure the rounds that a search requests, until it ends or its budget is spent."""
    count = tests = 0
    spent_s = 0.0
    try:
        step = next(steps)
        while True:
            if spent_s > budget_s:  # by the clock of rank 0, the same on all ranks
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
    instead: Culprit | None,
    *,
    outliers_only: bool = False,
    every_path: bool = True,
) -> SlowLinks:
    """The diagnosis of these rates, with its wording.

    spent_budget_s: the budget if it was spent, else None. instead: which interfaces carried the
    traffic instead of the fabric; None if none did.
    """
    found = diagnose(rates)
    all_slow = outliers_only and bool(rates.too_slow_rails)
    if all_slow:
        slower = tuple(
            path
            for path in found.paths
            if rates.nodes > 2 or path.mbits_s < STANDS_OUT * found.usual_mbits_s(path.rails)
        )
        found = replace(found, too_slow_rails=(), paths=slower)
    return SlowLinks(
        diagnosis=found,
        culprit=all_of((instead, culprits(found, names))),
        slowest=slowest_link(rates, names),
        cut_off="" if spent_budget_s is None else cut_off(rates, spent_budget_s),
        effort=effort,
        all_slow=all_slow,
        silent=links_without_reading(rates, names),
        bound_mbits_s=float(rates.bounds_mbits_s[0]),
        paths=rates.nodes * (rates.nodes - 1),
        paths_measured=rates.paths_measured,
        unmeasured=unmeasured_paths(rates, spent_budget_s, instead or "", every_path=every_path),
        nvlink_mbits_s=float(rates.bounds_mbits_s[-1]) if rates.rails > rates.nics else None,
        nics_measured=bool(rates.has[: rates.nics].any()),
        every_path=every_path,
        corrupt_paths=int(rates.wrong.sum()),
        corrupter=corrupters(rates.wrong, names),
        rates=path_rates(rates, found, names) if np.isfinite(rates.best).any() else (),
        detectable_loss=rates.detectable_loss,
        crowded_paths=int(rates.crowded.any(axis=0).sum()),
        nodes=rates.nodes,
    )


def _one_pair(rates: Rates) -> Search:
    rails = rates.on_its_rails(Flow(0, 1, tuple(rates.each_rail))).rails
    for step in both_ways([(0, 1)], rails, 1, "one pair"):
        readings = yield step
        rates.add(readings or ())
    return True


def _printing(names: Names) -> Callable[[int, Round, Sequence[Reading]], None]:
    """A function that prints a line per round; pytest shows it live with -s, else on failure."""

    def report(count: int, step: Round, readings: Sequence[Reading]) -> None:
        progress(f"locating slow nodes, round {count + 1}", 0, 0)
        slowest = min(readings, key=lambda reading: reading.mbits_s)
        print(
            f"locate: round {count} ({step.stage}), {len(step.flows)} pairs at once, slowest "
            f"{names.nodes[slowest.sender]}→{names.nodes[slowest.receiver]} "
            f"{slowest.mbits_s:.0f} Mbit/s",
            flush=True,
        )

    return report
