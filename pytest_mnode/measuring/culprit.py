"""Findings in words: who is to blame, where, by how much, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.measuring.blame import Blamed, SlowNode, SlowPath
from pytest_mnode.spec import Spec

_MOST_NAMED = 16
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Naming:
    """What operators call the nodes, by index, and the NICs, by rail.

    interfaces: all NICs of a node, as one. management_mbits_s: line rate of the network that
    traffic may have fallen back to; None where the spec names none.
    """

    nodes: tuple[str, ...]
    interfaces: str
    rails: tuple[str, ...]
    management_mbits_s: float | None

    @classmethod
    def of(cls, nodes: Sequence[str], spec: Spec, rails: int) -> Self:
        """NICs of a rail by their names where the spec lists them, else by its number."""
        names = spec.fabric.interfaces
        each = len(names) // rails
        listed = 0 < len(names) == rails * each and not any(_WILD & set(name) for name in names)
        together = "+".join(names)
        management = spec.management
        return cls(
            tuple(nodes),
            together,
            tuple(
                "+".join(names[rail * each : (rail + 1) * each])
                if listed
                else f"{together} rail {rail}"
                for rail in range(rails)
            ),
            management.line_rate_mbits_s if management else None,
        )

    def on(self, rails: Sequence[int]) -> str:
        """The NICs of `rails`."""
        if len(rails) == len(self.rails):
            return self.interfaces
        return "+".join(self.rails[rail] for rail in rails)

    def rate(self, mbits_s: float) -> str:
        """With a word where it is what the management network does."""
        line = self.management_mbits_s
        fallen_back = line and 0.75 <= mbits_s / line <= 1.05
        return f"{mbits_s:.0f} Mbit/s" + (
            ", the rate of the management network" if fallen_back else ""
        )


def culprits(found: Blamed, naming: Naming) -> str | None:
    """Everyone to blame, the surest first; None where nobody is."""
    nodes, paths = naming.nodes, found.paths
    parts = []
    if len(nodes) == 2:
        parts += [_between(path, naming) for path in paths if path.confirmed]
        parts += _suspected(found, naming)
    else:
        reference = found.reference_mbits_s or 0.0
        parts += _too_slow(found, naming)
        parts += [_node(n, naming, reference) for n in found.nodes if n.confirmed]
        parts += _paths([p for p in paths if p.confirmed], naming)
        parts += _suspected(found, naming)
    more = [f"and {len(parts) - _MOST_NAMED} more"] if len(parts) > _MOST_NAMED else []
    return "; ".join(parts[:_MOST_NAMED] + more) or None


def corrupters(wrong: NDArray[np.bool_], naming: Naming) -> str | None:
    """The node that all paths that changed what was sent have in common, or those paths.

    wrong: by sender and receiver; None where no path did.
    """
    paths = [(int(a), int(b)) for a, b in np.argwhere(wrong)]
    if not paths:
        return None
    common = set(paths[0]).intersection(*paths)
    if len(common) == 1 and len(paths) > 1:
        return f"{naming.nodes[common.pop()]} {naming.interfaces}"
    told = ", ".join(f"{naming.nodes[a]}→{naming.nodes[b]}" for a, b in paths[:_MOST_NAMED])
    return f"the path{'s' * (len(paths) > 1)} {told}"


def _too_slow(found: Blamed, naming: Naming) -> list[str]:
    rails = found.too_slow_rails
    if not rails or found.reference_mbits_s is None:
        return []
    whole = len(rails) == len(naming.rails)
    what = "the fabric as a whole" if whole else f"{naming.on(rails)} of all nodes"
    rate = naming.rate(found.slowest_rail_mbits_s or found.reference_mbits_s)
    return [f"{what}: every pair is slow, e.g. {rate}"]


def _where(node: SlowNode, naming: Naming) -> str:
    direction = ""
    if node.sends_slowly != node.receives_slowly:
        direction = " tx" if node.sends_slowly else " rx"
    return f"{naming.nodes[node.node]} {naming.on(node.rails)}{direction}"


def _node(node: SlowNode, naming: Naming, reference_mbits_s: float) -> str:
    return (
        f"{_where(node, naming)} ({naming.rate(node.mbits_s)}, "
        f"alone with {_any(node.partners, naming)}; other nodes {reference_mbits_s:.0f})"
    )


def _any(nodes: Iterable[int], naming: Naming) -> str:
    return " or ".join(naming.nodes[node] for node in nodes)


def _between(path: SlowPath, naming: Naming) -> str:
    one, other = naming.nodes[path.sender], naming.nodes[path.receiver]
    if path.both_ways:
        between, way = f"between {one} and {other}", "both ways"
    else:
        between, way = f"from {one} to {other}", "one way"
    return f"{naming.on(path.rails)} {between} ({naming.rate(path.mbits_s)}, {way})"


def _path(path: SlowPath, naming: Naming) -> str:
    arrow = "↔" if path.both_ways else "→"
    rail = "" if len(path.rails) == len(naming.rails) else f" {naming.on(path.rails)}"
    ends = f"{naming.nodes[path.sender]}{arrow}{naming.nodes[path.receiver]}"
    return f"{ends}{rail} ({naming.rate(path.mbits_s)})"


def _paths(paths: Sequence[SlowPath], naming: Naming) -> list[str]:
    if not paths:
        return []
    told = ", ".join(_path(path, naming) for path in paths[:_MOST_NAMED])
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    ends = "both nodes are" if len(paths) == 1 else "their nodes are"
    return [f"the path{'s' * (len(paths) > 1)} {told}{more}: {ends} fast with others"]


def _suspected(found: Blamed, naming: Naming) -> list[str]:
    """Said, so that nothing is kept back, and told apart, so that nobody is accused."""
    told = []
    for node in found.nodes:
        if not node.confirmed:
            with_whom = _any(node.partners[:4], naming) or "no partner known to be healthy"
            rate = naming.rate(node.mbits_s)
            told.append(f"{_where(node, naming)} ({rate} with {with_whom})")
    told += [f"the path {_path(path, naming)}" for path in found.paths if not path.confirmed]
    if not told:
        return []
    more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    return [f"suspected, not confirmed: {', '.join(told[:_MOST_NAMED])}{more}"]
