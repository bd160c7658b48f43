"""A diagnosis in words: culprits with place and rate, confirmed or suspected. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import all_of, listed
from pytest_mnode.measuring.limits import EVERY_PATH_UP_TO
from pytest_mnode.measuring.locating.diagnosis import Diagnosis, SlowNode, SlowPath
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.spec import Spec

_MOST_NAMED = 16
_MOST_SILENT = 8
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the nodes, by index, and by rail of the NICs, or of the GPU whose NVLink it is.

    interfaces: all NICs of a node in one string. management_mbits_s: line rate of the management
    network, to which traffic may have fallen back; None if the spec names none. nics: number of
    rails that NICs carry; None if they carry all.
    """

    nodes: tuple[str, ...]
    interfaces: str
    rails: tuple[str, ...]
    management_mbits_s: float | None
    nics: int | None = None

    @classmethod
    def of(cls, nodes: Sequence[str], spec: Spec, rails: int, *, nvlink: bool) -> Self:
        """Names from the spec: a rail has the names of its NICs if listed there, else a number.

        The list's order need not be that of the accelerators: see `as_used`. nvlink: whether as
        many rails of NVLink follow.
        """
        gpus = range(0, spec.accelerators.per_node, max(1, spec.accelerators.per_node // rails))
        nics = spec.fabric.interfaces
        each = len(nics) // rails
        listed = 0 < len(nics) == rails * each and not any(_WILD & set(name) for name in nics)
        together = "+".join(nics)
        management = spec.management
        return cls(
            tuple(nodes),
            together,
            tuple(
                "+".join(nics[rail * each : (rail + 1) * each])
                if listed
                else f"{together} rail {rail}"
                for rail in range(rails)
            )
            + tuple(f"NVLink of GPU {gpu}" for gpu in gpus[:rails] if nvlink),
            management.line_rate_mbits_s if management else None,
            rails,
        )

    def as_used(self, nics: Sequence[Sequence[tuple[str, ...] | None]]) -> Names:
        """These names, with the NICs that the ranks of each rail use.

        nics: by rail, interfaces or RDMA ports of its rank on each node; None if not known. A rail
        has a number if its ranks use different NICs, and keeps its name if none is known.
        """
        rails = []
        for rail, used in enumerate(nics):
            names = {tuple(nic.partition(":")[0] for nic in one) for one in used if one is not None}
            found = names.pop() if len(names) == 1 else None
            number = f"{self.interfaces} rail {rail}"
            rails.append("+".join(found) if found else number if names else self.rails[rail])
        return replace(self, rails=(*rails, *self.rails[len(rails) :]))

    def kinds(self, rails: Sequence[int]) -> list[list[int]]:
        """Those of `rails` that NICs carry, and those of NVLink; each if there are any."""
        nics = len(self.rails) if self.nics is None else self.nics
        both = [rail for rail in rails if rail < nics], [rail for rail in rails if rail >= nics]
        return [*filter(None, both)]

    def on(self, rails: Sequence[int]) -> str:
        """Names of the NICs, or of the NVLink, of `rails`."""
        words = []
        for some in self.kinds(rails):
            whole = some in self.kinds(range(len(self.rails)))
            together = self.interfaces if some[0] < (self.nics or len(self.rails)) else "NVLink"
            words += [together] if whole else [self.rails[rail] for rail in some]
        return "+".join(words)

    def rate(self, mbits_s: float) -> str:
        """A rate in words; says so if it is the rate of the management network."""
        line = self.management_mbits_s
        # A short transfer may be above the line rate, because of a shaper's burst.
        fallen_back = line and 0.75 <= mbits_s / line <= 1.2
        return f"{mbits_s:.0f} Mbit/s" + (
            ", the rate of the management network" if fallen_back else ""
        )


def culprits(found: Diagnosis, names: Names) -> Culprit | None:
    """All culprits, confirmed ones first; None without one."""
    paths = found.paths
    parts = list[Culprit]()
    if len(names.nodes) == 2:
        parts += [_between(path, names) for path in paths if path.confirmed]
        parts += _suspected(found, names)
    else:
        parts += _too_slow(found, names)
        usual = found.usual_mbits_s
        parts += [_node(n, names, usual(n.rails)) for n in found.nodes if n.confirmed]
        parts += [_apart(found, names)] if found.groups else []
        parts += _paths([p for p in paths if p.confirmed and not found.groups], names)
        parts += _suspected(found, names)
    return all_of(parts, _MOST_NAMED)


def corrupters(wrong: NDArray[np.bool_], names: Names) -> Culprit | None:
    """The node that is on all paths that changed data, or those paths; None without one.

    wrong: by sender and receiver, whether the path changed data.
    """
    paths = [(int(a), int(b)) for a, b in np.argwhere(wrong)]
    if not paths:
        return None
    common = set(paths[0]).intersection(*paths)
    if len(common) == 1 and len(paths) > 1:
        node = names.nodes[common.pop()]
        return Culprit.device(f"{node} {names.interfaces}", node, *names.rails)
    ends = [(names.nodes[a], names.nodes[b]) for a, b in paths]
    shown = listed(map("→".join, ends), _MOST_NAMED, ", ")
    return Culprit.path(f"the path{'s' * (len(paths) > 1)} {shown}", *ends)


def _too_slow(found: Diagnosis, names: Names) -> list[Culprit]:
    slow = []
    for rails in names.kinds(found.too_slow_rails):
        on = names.on(rails)
        what = "the fabric as a whole" if on == names.interfaces else f"{on} of all nodes"
        rate = names.rate(min(found.reference_mbits_s[rail] for rail in rails))
        slow.append(Culprit(f"{what}: every pair is slow, e.g. {rate}"))
    return slow


def _where(node: SlowNode, names: Names) -> str:
    direction = ""
    if node.sends_slowly != node.receives_slowly:
        direction = " tx" if node.sends_slowly else " rx"
    return f"{names.nodes[node.node]} {names.on(node.rails)}{direction}"


def _node(node: SlowNode, names: Names, reference_mbits_s: float) -> Culprit:
    words = (
        f"{_where(node, names)} ({names.rate(node.mbits_s)}, "
        f"alone with {_any(node.partners, names)}; other nodes {reference_mbits_s:.0f})"
    )
    rails = (names.rails[rail] for rail in node.rails)
    return Culprit.device(words, names.nodes[node.node], *rails)


def _any(nodes: Iterable[int], names: Names) -> str:
    return " or ".join(names.nodes[node] for node in nodes)


def _between(path: SlowPath, names: Names) -> Culprit:
    one, other = names.nodes[path.sender], names.nodes[path.receiver]
    if path.both_ways:
        between, way = f"between {one} and {other}", "both ways"
    else:
        between, way = f"from {one} to {other}", "one way"
    words = f"{names.on(path.rails)} {between} ({names.rate(path.mbits_s)}, {way})"
    return Culprit.path(words, *_ends(path, names))


def _path(path: SlowPath, names: Names) -> Culprit:
    arrow = "↔" if path.both_ways else "→"
    on = names.on(path.rails)
    rail = "" if on == names.interfaces else f" {on}"
    ends = names.nodes[path.sender], names.nodes[path.receiver]
    words = f"{arrow.join(ends)}{rail} ({names.rate(path.mbits_s)})"
    return Culprit.path(words, *_ends(path, names))


def _ends(path: SlowPath, names: Names) -> list[tuple[str, str]]:
    there = names.nodes[path.sender], names.nodes[path.receiver]
    return [there, there[::-1]] if path.both_ways else [there]


def _paths(paths: Sequence[SlowPath], names: Names) -> list[Culprit]:
    every = all_of((_path(path, names) for path in paths), _MOST_NAMED, ", ")
    if every is None:
        return []
    ends = "both nodes are" if len(paths) == 1 else "their nodes are"
    words = f"the path{'s' * (len(paths) > 1)} {every}: {ends} fast with others"
    return [Culprit.merged(words, [every])]


def _apart(found: Diagnosis, names: Names) -> Culprit:
    """What joins the groups of nodes that are slow with each other."""
    group_of = {node: i for i, group in enumerate(found.groups) for node in group}
    ways = {(group_of[p.sender], group_of[p.receiver], p.both_ways) for p in found.paths}
    shown = [listed((names.nodes[i] for i in group), _MOST_NAMED, ", ") for group in found.groups]
    between = f"between {' and '.join(shown)}"
    if len(ways) == 1:
        [(sender, receiver, both_ways)] = ways
        between = between if both_ways else f"from {shown[sender]} to {shown[receiver]}"
    sure = "" if any(path.confirmed for path in found.paths) else "suspected, not confirmed: "
    rate = names.rate(max(path.mbits_s for path in found.paths))
    on = names.on(sorted({rail for path in found.paths for rail in path.rails}))
    words = (
        f"{sure}the link between parts of the fabric, such as an uplink of a switch: {on} {between}"
        f" ({rate}, {len(found.paths)} paths), which are fast among themselves"
    )
    return Culprit(words, either=[[names.nodes[node] for node in group_of]])


def _suspected(found: Diagnosis, names: Names) -> list[Culprit]:
    """Unconfirmed suspects, in one entry of their own."""
    suspects = list[Culprit]()
    for node in found.nodes:
        if not node.confirmed:
            with_whom = _any(node.partners[:4], names) or "no partner known to be healthy"
            rate = names.rate(node.mbits_s)
            words = f"{_where(node, names)} ({rate} with {with_whom})"
            suspects.append(Culprit(words, either=[[names.nodes[node.node]]]))
    paths = () if found.groups else found.paths
    for slow in (_path(path, names) for path in paths if not path.confirmed):
        suspects.append(Culprit.merged(f"the path {slow}", [slow]))
    every = all_of(suspects, _MOST_NAMED, ", ")
    return [Culprit.merged(f"suspected, not confirmed: {every}", [every])] if every else []


def links_without_reading(rates: Rates, names: Names) -> Culprit | None:
    """Links without a reading: nodes none of whose links gave one, then other paths; or None."""
    silent, spoke = rates.silent, np.isfinite(rates.best)
    missing: list[Culprit] = []
    for rail in rates.each_rail:
        on = f" {names.rails[rail]}" if rates.rails > 1 else ""
        mute = silent[rail].any(axis=1) & ~spoke[rail].any(axis=1)
        deaf = silent[rail].any(axis=0) & ~spoke[rail].any(axis=0)
        if not spoke[rail].any() and silent[rail].any():
            missing.append(Culprit(f"any node{on}"))
            continue
        for i, node in enumerate(names.nodes):
            if mute[i] or deaf[i]:
                way = "" if mute[i] and deaf[i] else " tx" if mute[i] else " rx"
                missing.append(Culprit(f"{node}{on}{way}", either=[[node]]))
        rest = silent[rail] & ~mute[:, None] & ~deaf[None, :]
        ends = [(names.nodes[a], names.nodes[b]) for a, b in np.argwhere(rest)]
        missing += [Culprit(f"{'→'.join(pair)}{on}", either=[pair]) for pair in ends]
    every = all_of(missing, _MOST_SILENT, ", ")
    return every and Culprit.merged(f"no reading of {every}", [every])


def cut_off(rates: Rates, budget_s: float) -> str:
    """What did not fit into the budget, in words."""
    total, measured = rates.nodes * (rates.nodes - 1), rates.paths_measured
    if measured < total:
        return f"not all paths were measured within {budget_s:g} s: {measured} of {total}"
    return f"not all suspects were confirmed within {budget_s:g} s"


def unmeasured_paths(
    rates: Rates, spent_budget_s: float | None, off_fabric: str, *, every_path: bool
) -> str:
    """Number of ordered paths not measured, and why; empty if all were measured."""
    silent = int(rates.silent.any(axis=0).sum())
    rest = rates.nodes * (rates.nodes - 1) - rates.paths_measured - silent
    if spent_budget_s is not None:
        why = f"the {spent_budget_s:g} s of --mnode-locate-budget were spent"
    elif off_fabric:
        why = "traffic was not on the fabric"
    elif not every_path:
        why = f"sampled, more than {EVERY_PATH_UP_TO} nodes (--mnode-locate measures every path)"
    else:
        why = "an end was slow with every partner"
    parts = [f"{silent}, no reading"] * bool(silent) + [f"{rest}, {why}"] * bool(rest)
    return "; ".join(parts)


def slowest_link(rates: Rates, names: Names) -> str:
    """The slowest link with its rate; "" if nothing was measured."""
    if not np.isfinite(rates.best).any():
        return ""
    rail, a, b = np.unravel_index(np.nanargmin(rates.best), rates.best.shape)
    on = f" on {names.rails[rail]}" if rates.rails > 1 else ""
    return f"{names.nodes[a]}→{names.nodes[b]}{on} {rates.best[rail, a, b]:.0f} Mbit/s"
