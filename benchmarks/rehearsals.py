"""Nights of virtual clusters: healthy ones refused, faults found, and who was blamed.

`python -m benchmarks.rehearsals` writes them to the last section of their page.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks import table
from pytest_mnode.certificate import Certificate, CertificateVerdict
from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.path_rates import State
from pytest_mnode.spec import Spec, load_spec
from pytest_mnode.spec.profiles import profile_names
from pytest_mnode.virtual.faults import FAULTS, Fault, form_of, odd_readings
from pytest_mnode.virtual.machines import links_of
from pytest_mnode.virtual.night import rehearse

CLUSTERS = Path(__file__).parents[1] / "fixtures" / "clusters"
PAGE = Path(__file__).parents[1] / "docs" / "rehearse.md"
HEADING = "## Limits of detection"
SIZES = (2, 3, 4, 8, 16, 32, 64, 128, 256, 512)
LARGEST = 64
"""Nodes of nights of a profile that is not one of `LARGE`."""
LARGE = frozenset(
    {
        *("a100-ib", "h100-ib", "h100-roce", "h100-efa", "hgx-h200", "hgx-b200"),
        *("a3-mega", "gb200-nvl72", "mi300x", "p5en"),
    }
)
"""Ten platforms that have nights of all sizes: those of 512 nodes take half a minute each."""
OF_FAULTS = Path(__file__).with_name("faults.yaml")
"""Page of the cluster that has faults: h100-ib with promises that no profile has."""
OF_ROCE = frozenset({"same_address"})
"""Faults that an InfiniBand fabric without IP does not have."""
FAULTY_NODES, OF_LEAVES = 8, 40
QUICK = ("slow_nic", "slow_gpu", "driver", "stale_results")
SEARCHED, VERIFIED = 20, 100
"""Nights that are all red at each step of a search for a limit, and those of which 99 % must be at
its end. Seeds from 0, and from 1,000; the tables have seeds from 10,000."""


@dataclass(frozen=True, slots=True)
class Found:
    """Nights with one fault.

    red: not certified. named: red, with its node failed, or an end of its path suspect.
    accused: a healthy node failed. hidden: not red, its node passed, and the criterion states that
    it would have shown less.
    """

    nights: int = 0
    red: int = 0
    named: int = 0
    accused: int = 0
    hidden: int = 0

    @classmethod
    def of(cls, all_: Sequence[Found]) -> Found:
        """All nights together."""
        return cls(*map(sum, zip(*map(astuple, all_), strict=True))) if all_ else cls()

    @property
    def cells(self) -> tuple[str, ...]:
        """Red, named, accused and hidden."""
        return tuple(map(str, astuple(self)[1:]))


def night(
    path: Path, nodes: int, seed: int, *faults: str, only: Sequence[str] | None = None
) -> Certificate:
    """The certificate of a night. path: of the page. only: criteria; left out, all."""
    return rehearse(spec_of(path), path, nodes, faults=faults, seed=seed, only=only)


@cache
def spec_of(path: Path) -> Spec:
    """A page, which is read once."""
    return load_spec(path)


def refused(profile: str, nodes: int, seeds: Iterable[int]) -> list[tuple[int, str]]:
    """Seeds of healthy nights that broke a promise, each with the first reason."""
    found = []
    for seed in seeds:
        one = night(CLUSTERS / f"{profile}.yaml", nodes, seed)
        if one.verdict is not CertificateVerdict.REHEARSAL:
            found.append((seed, one.reasons[0]))
    return found


def place(
    fault: Fault, spec: Spec, nodes: int, chance: np.random.Generator
) -> tuple[str, set[str]]:
    """Where a fault is, as text, and its nodes; no nodes if it has none."""
    one, other = (f"node{i}" for i in chance.choice(nodes, 2, replace=False))
    nic = str(chance.choice(links_of(spec.fabric)))
    gpu = int(chance.integers(spec.accelerators.per_node or 1))
    check = str(chance.choice(odd_readings(spec)))
    return {
        "check": (f":{one}:{check}", {one}),
        "node": (f":{one}", {one}),
        "nic": (f":{one}:{nic}", {one}),
        "gpu": (f":{one}:{gpu}", {one}),
        "path": (f":{one}+{other}", {one, other}),
        "leaf": (f":{one}", set[str]()),
        "rail": (f":{nic}", set[str]()),
        "cluster": ("", set[str]()),
    }[fault.place]


def _night_of(
    name: str, strength: float | None, seed: int, only: Sequence[str] | None = None
) -> tuple[Certificate, set[str]]:
    """A night with a fault somewhere, and the nodes that have it; none if no node has."""
    fault = FAULTS[name]
    page = CLUSTERS / "h100-roce.yaml" if name in OF_ROCE else OF_FAULTS
    nodes = OF_LEAVES if fault.place in ("leaf", "cluster") else FAULTY_NODES
    where, at = place(fault, spec_of(page), nodes, np.random.default_rng([seed, len(name)]))
    text = f"{name}{where}" + ("" if strength is None else f"={strength:g}")
    return night(page, nodes, seed, text, only=only), at


def grid(fault: Fault) -> list[float]:
    """Strengths of which a limit is one, from weak to strong: losses of 1 % to 99 % of a rate, or
    ten numbers a decade, of two digits."""
    assert fault.strength is not None
    if fault.healthy == 1:
        return [round(1 - loss / 100, 2) for loss in range(1, 100)]
    most = 1.0 if "share of calls" in fault.text else 1000 * fault.strength
    numbers = [float(f"{most * 10 ** (-i / 10):.2g}") for i in range(60, -1, -1)]
    counts = not fault.text.endswith((", s", "share of calls"))
    return sorted({max(1.0, round(n)) for n in numbers}) if counts else numbers


def limit(name: str) -> float:
    """The least strength of `grid` that is red in 99 % of nights, by the criteria that can show it.

    By bisection, then stronger until nights with other seeds agree.
    """
    fault = FAULTS[name]
    steps = grid(fault)

    def red(step: int, seeds: Iterable[int], missed: int) -> bool:
        for seed in seeds:
            one, _ = _night_of(name, steps[step], seed, fault.shows)
            missed -= one.verdict is not CertificateVerdict.NOT_CERTIFIED
            if missed < 0:
                return False
        return True

    weak, strong = -1, len(steps) - 1
    while strong - weak > 1:
        middle = (weak + strong) // 2
        if red(middle, range(SEARCHED), 0):
            strong = middle
        else:
            weak = middle
    others = range(1000, 1000 + VERIFIED)
    while strong < len(steps) - 1 and not red(strong, others, VERIFIED // 100):
        strong += 1
    return steps[strong]


def found(name: str, seeds: Iterable[int], strength: float | None = None) -> Found:
    """Nights with a fault of this strength; left out, its default."""
    fault = FAULTS[name]
    strength = fault.strength if strength is None else strength
    nights = red = named = accused = hidden = 0
    for seed in seeds:
        one, at = _night_of(name, strength, seed)
        failed, suspect = (_of_state(one, state) for state in (State.FAILED, State.SUSPECT))
        is_red = one.verdict is CertificateVerdict.NOT_CERTIFIED
        sure = fault.place in ("node", "nic", "gpu", "check")
        nights, red = nights + 1, red + is_red
        named += is_red and (at <= failed if sure else not at or bool(at & (failed | suspect)))
        accused += bool(failed - at)
        passed = not at or bool(at & _of_state(one, State.PASSED))
        hidden += (
            one.verdict is CertificateVerdict.REHEARSAL
            and passed
            and would_have_shown(one, fault, strength)
        )
    return Found(nights, red, named, accused, hidden)


def _of_state(one: Certificate, state: State) -> set[str]:
    return {node.name for node in one.coverage.nodes if node.state is state}


def would_have_shown(one: Certificate, fault: Fault, strength: float | None) -> bool:
    """Whether a criterion that can show the fault states a limit of detection below it."""
    if strength is None:
        return False
    limits = [
        m.detection
        for criterion in one.criteria
        if criterion.name in fault.shows
        for case in criterion.cases
        for m in case.measurements
        if m.detection is not None
    ]
    if fault.healthy == 1:
        shares = [found.share for found in limits if found.kind == "less"]
        return bool(shares) and max(shares) < 1 - strength
    calls = smallest_share_wrong(sum(x.repeats for x in limits if x.kind == "wrong"))
    return "share of calls" in fault.text and calls is not None and calls.share < strength


def half(fault: Fault, strength: float) -> float:
    """The strength half way to healthy."""
    return (strength + fault.healthy) / 2


def measure(
    nights: int,
    faulty: int,
    sizes: Sequence[int] = SIZES,
    names: Sequence[str] = tuple(FAULTS),
    jobs: int = 1,
) -> str:
    """Both tables. nights: of each profile and size; faulty: of each fault; jobs: processes."""
    with ProcessPoolExecutor(jobs) as pool:
        at_limits = pool.map(partial(at_limit, nights=faulty, search=True), names)
        healthy = pool.map(partial(refused_of, nights=nights, sizes=sizes), profile_names())
        return f"{of_faults(list(at_limits))}\n\n{of_healthy(list(healthy), sizes)}"


Refused = tuple[str, list[tuple[int, list[tuple[int, str]]]]]
"""A profile with, by size, the number of nights, and the seeds of those that were refused."""


def refused_of(profile: str, nights: int, sizes: Sequence[int] = SIZES) -> Refused:
    """A night takes as long as its nodes are many: fewer seeds of large ones."""
    counts = [
        max(1, nights * 16 // max(16, nodes)) if nodes <= LARGEST or profile in LARGE else 0
        for nodes in sizes
    ]
    pairs = zip(sizes, counts, strict=True)
    return profile, [(count, refused(profile, nodes, range(count))) for nodes, count in pairs]


def of_healthy(every: Sequence[Refused], sizes: Sequence[int] = SIZES) -> str:
    """Healthy nights that were refused, by profile and nodes, in Markdown."""
    count = sum(nights for _, found in every for nights, _ in found)
    bad = [
        f"- {profile}, {nodes} nodes, seed {seed}: {why}"
        for profile, found in every
        for nodes, (_, red) in zip(sizes, found, strict=True)
        for seed, why in red
    ]
    # 95 % upper bound of a share without any in n nights (Hanley and Lippman-Hand, JAMA 249, 1983).
    least = f"95 % upper bound {1 - 0.05 ** (1 / count):.2%}" if not bad else f"{len(bad)} refused"
    title = f"Healthy nights refused, by nodes; seeds from 0; {count} nights, {least}:"
    rows = [
        (profile, *(f"{len(red)} of {nights}" if nights else "-" for nights, red in found))
        for profile, found in every
    ]
    parts = (title, table.markdown(("profile", *map(str, sizes)), rows), "\n".join(bad))
    return "\n\n".join(filter(None, parts))


AtLimit = tuple[str, float | None, Found, Found | None]
"""A fault's name, its limit, and nights at it and at half of it; None without a strength."""


def at_limit(name: str, nights: int, *, search: bool) -> AtLimit:
    """search: for the limit; else the default strength is taken for it."""
    fault, seeds = FAULTS[name], range(10_000, 10_000 + nights)
    strength = fault.strength
    if strength is None:
        return name, None, found(name, seeds), None
    strength = limit(name) if search else strength
    return name, strength, found(name, seeds, strength), found(name, seeds, half(fault, strength))


def of_faults(every: Sequence[AtLimit]) -> str:
    """Faults at their limits and at half of them, in Markdown."""
    all_, weak = (Found.of([one[i] for one in every if one[i] is not None]) for i in (2, 3))  # type: ignore[misc]
    title = (
        f"{len(every)} faults on {FAULTY_NODES} nodes of h100-ib (uplinks: "
        f"{OF_LEAVES}), {every[0][2].nights} nights each. At the limit: "
        f"{all_.red / all_.nights:.1%} red, culprit right in {all_.named / all_.nights:.1%}, a "
        f"healthy node named surely in {all_.accused} of {all_.nights}. Half way to healthy: a "
        f"healthy node named surely in {weak.accused}, hidden in {weak.hidden} of {weak.nights}:"
    )
    head = ("fault", "what it is", "red", "named", "healthy accused")
    head_of_half = ("at half", "red", "healthy accused", "hidden")
    rows = []
    for name, strength, strong, half_way in every:
        fault = FAULTS[name]
        cells = (f"`{form_of(name, strength)}`", fault.text, *strong.cells[:3])
        weaker: tuple[str, ...] = ("-",) * 4
        if strength is not None and half_way is not None:
            weaker = (f"{half(fault, strength):.3g}", *(half_way.cells[i] for i in (0, 2, 3)))
        rows.append((*cells, *weaker))
    return f"{title}\n\n{table.markdown((*head, *head_of_half), rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsals", description=__doc__)
    parser.add_argument("--nights", type=int, default=7, help="healthy, of each profile and size")
    parser.add_argument("--faulty", type=int, default=20, help="of each fault")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    options = parser.parse_args()
    text, _, _ = PAGE.read_text().partition(HEADING)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    tables = measure(options.nights, options.faulty, jobs=options.jobs)
    PAGE.write_text(
        f"{text}{HEADING}\n\nWritten by `python -m benchmarks.rehearsals` on {date}.\n\n{tables}\n"
    )
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
