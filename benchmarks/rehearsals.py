"""Nights of virtual clusters: healthy ones refused, faults found, and who was blamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import table
from pytest_mnode.certificate import Certificate, CertificateVerdict
from pytest_mnode.errors import UsageError
from pytest_mnode.path_rates import State
from pytest_mnode.spec import Spec, load_spec
from pytest_mnode.virtual.faults import FAULTS, Fault
from pytest_mnode.virtual.machines import links_of
from pytest_mnode.virtual.night import rehearse

CLUSTERS = Path(__file__).parents[1] / "fixtures" / "clusters"
SIZES = (2, 3, 4, 8, 16, 32, 64, 128, 256, 512)
PROFILE_OF_FAULTS = "h100-ib"
OF_ROCE = frozenset({"same_address"})
"""Faults that an InfiniBand fabric without IP does not have."""
FAULTY_NODES, OF_LEAVES = 8, 40
QUICK = ("slow_nic", "slow_gpu", "driver", "stale_results")


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


def profiles() -> list[str]:
    """Names of the profiles that can be loaded as a whole spec."""
    found = []
    for path in sorted(CLUSTERS.glob("*.yaml")):
        try:
            load_spec(path)
        except UsageError:  # a base that others extend
            continue
        found.append(path.stem)
    return found


def night(profile: str, nodes: int, seed: int, *faults: str) -> Certificate:
    """The certificate of a night."""
    path = CLUSTERS / f"{profile}.yaml"
    return rehearse(load_spec(path), path, nodes, faults=faults, seed=seed)


def refused(profile: str, nodes: int, seeds: Iterable[int]) -> list[tuple[int, str]]:
    """Seeds of healthy nights that broke a promise, each with the first reason."""
    found = []
    for seed in seeds:
        one = night(profile, nodes, seed)
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
    return {
        "node": (f":{one}", {one}),
        "nic": (f":{one}:{nic}", {one}),
        "gpu": (f":{one}:{gpu}", {one}),
        "path": (f":{one}+{other}", {one, other}),
        "leaf": (f":{one}", set[str]()),
        "rail": (f":{nic}", set[str]()),
        "cluster": ("", set[str]()),
    }[fault.place]


def found(name: str, seeds: Iterable[int], *, half: bool = False) -> Found:
    """Nights with a fault at its limit, or half way to healthy."""
    fault = FAULTS[name]
    profile = "h100-roce" if name in OF_ROCE else PROFILE_OF_FAULTS
    nodes = OF_LEAVES if fault.place in ("leaf", "cluster") else FAULTY_NODES
    spec = load_spec(CLUSTERS / f"{profile}.yaml")
    nights = red = named = accused = hidden = 0
    for seed in seeds:
        where, at = place(fault, spec, nodes, np.random.default_rng([seed, len(name)]))
        strength = f"={fault.half:g}" if half else ""
        one = night(profile, nodes, seed, f"{name}{where}{strength}")
        failed, suspect = (_of_state(one, state) for state in (State.FAILED, State.SUSPECT))
        is_red = one.verdict is CertificateVerdict.NOT_CERTIFIED
        sure = fault.place in ("node", "nic", "gpu")
        nights, red = nights + 1, red + is_red
        ends = failed | suspect
        named += is_red and (at <= failed if sure else not at or bool(at & ends))
        accused += bool(failed - at)
        hidden += one.verdict is CertificateVerdict.REHEARSAL and _would_have_shown(one, fault)
    return Found(nights, red, named, accused, hidden)


def _of_state(one: Certificate, state: State) -> set[str]:
    return {node.name for node in one.coverage.nodes if node.state is state}


def _would_have_shown(one: Certificate, fault: Fault) -> bool:
    """Whether a criterion that can show the fault states a limit of detection below its half."""
    if fault.half is None or fault.healthy != 1:
        return False
    limits = [
        m.detection.share
        for criterion in one.criteria
        if criterion.name in fault.shows
        for case in criterion.cases
        for m in case.measurements
        if m.detection is not None and m.detection.kind == "less"
    ]
    return bool(limits) and max(limits) < 1 - fault.half


def measure(
    nights: int, faulty: int, sizes: Sequence[int] = SIZES, names: Sequence[str] = tuple(FAULTS)
) -> str:
    """Both tables. nights: of each profile and size; faulty: of each fault."""
    return "\n".join((_healthy(nights, sizes), _faulty(faulty, names)))


def _healthy(nights: int, sizes: Sequence[int]) -> str:
    rows, every, bad = [], 0, list[str]()
    for profile in profiles():
        counts = []
        for nodes in sizes:
            # A night takes as long as its nodes are many: fewer seeds of large ones.
            seeds = range(max(1, nights * 16 // max(16, nodes)))
            red = refused(profile, nodes, seeds)
            every += len(seeds)
            counts.append(f"{len(red)} of {len(seeds)}")
            bad += [f"{profile}, {nodes} nodes, seed {seed}: {why}" for seed, why in red]
        rows.append((profile, *counts))
    # 95 % upper bound of a share without any in n nights (Hanley and Lippman-Hand, JAMA 249, 1983).
    least = f"95 % upper bound {1 - 0.05 ** (1 / every):.2%}" if not bad else f"{len(bad)} refused"
    title = f"healthy nights refused, by nodes; seeds from 0; {every} nights, {least}"
    return "\n".join(
        (table.terminal(title, ("profile", *map(str, sizes)), rows), *(f"  {one}" for one in bad))
    )


def _faulty(nights: int, names: Sequence[str]) -> str:
    rows = list(_rows(nights, names))
    title = (
        f"faults on {FAULTY_NODES} nodes of {PROFILE_OF_FAULTS} (uplinks: {OF_LEAVES}), "
        f"{nights} nights each; seeds from 0"
    )
    head = (
        "fault",
        "limit",
        "red",
        "named",
        "healthy accused",
        "at half",
        "red",
        "accused",
        "hidden",
    )
    return table.terminal(title, head, rows)


def _rows(nights: int, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for name in names:
        fault, seeds = FAULTS[name], range(nights)
        at = found(name, seeds)
        strength = "-" if fault.strength is None else f"{fault.strength:g}"
        cells = (name, strength, str(at.red), str(at.named), str(at.accused))
        if fault.half is None:
            yield (*cells, "-", "-", "-", "-")
            continue
        half = found(name, seeds, half=True)
        yield (*cells, f"{fault.half:g}", str(half.red), str(half.accused), str(half.hidden))
