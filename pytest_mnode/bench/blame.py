"""Which node or path is slow, from the rates of pairs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_mnode.bench.pairs import PairRate

_STANDS_OUT = 0.8
"""A node is told from the others where it is slower than this part of the fastest pair."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that no partner can send to, or receive from, at the rate expected."""

    node: str
    sends_slowly: bool
    receives_slowly: bool
    best_mbits_s: float
    """Of the slow direction, or of the faster one where both are slow."""
    partners: tuple[str, ...]

    @property
    def direction(self) -> str:
        """tx, rx, or nothing where both are slow."""
        if self.sends_slowly and self.receives_slowly:
            return ""
        return " tx" if self.sends_slowly else " rx"


def fastest_mbits_s(rates: Iterable[PairRate]) -> float:
    """Of all pairs; 0 where there are none."""
    return max((rate.mbits_s for rate in rates), default=0.0)


def suspects(
    nodes: Sequence[str], rates: Sequence[PairRate], slow_below_mbits_s: float
) -> list[Suspect]:
    """Nodes whose best pair, in one direction or both, is slow and slower than those of others.

    A node is judged by its best pair: one slow partner does not make it a suspect.
    """
    slow_below = min(slow_below_mbits_s, _STANDS_OUT * fastest_mbits_s(rates))
    found = []
    for node in nodes:
        sent = [r.mbits_s for r in rates if r.sender == node]
        received = [r.mbits_s for r in rates if r.receiver == node]
        if not sent or not received:
            continue
        slow = [max(both) for both in (sent, received) if max(both) < slow_below]
        if slow:
            partners = [r.receiver for r in rates if r.sender == node]
            found.append(
                Suspect(
                    node,
                    max(sent) < slow_below,
                    max(received) < slow_below,
                    max(slow),
                    tuple(dict.fromkeys(partners)),
                )
            )
    return found


def slow_paths(rates: Sequence[PairRate], slow_below_mbits_s: float) -> list[PairRate]:
    """Pairs that are slow and slower than others."""
    slow_below = min(slow_below_mbits_s, _STANDS_OUT * fastest_mbits_s(rates))
    return [rate for rate in rates if rate.mbits_s < slow_below]


def culprit(
    nodes: Sequence[str],
    rates: Sequence[PairRate],
    slow_below_mbits_s: float,
    interface: str,
    management_mbits_s: float | None = None,
) -> str | None:
    """Who to blame, in words; None where every pair, alone, is as fast as expected.

    interface: the fabric's, as the nodes call it. management_mbits_s: line rate of the network that
    traffic may have fallen back to.
    """

    def shown(mbits_s: float) -> str:
        fallen_back = management_mbits_s and 0.75 <= mbits_s / management_mbits_s <= 1.0
        rate = ", the rate of the management network" if fallen_back else ""
        return f"{mbits_s:.0f} Mbit/s{rate}"

    fastest = fastest_mbits_s(rates)
    if found := suspects(nodes, rates, slow_below_mbits_s):
        return "; ".join(
            f"{s.node} {interface}{s.direction} ({shown(s.best_mbits_s)}, alone with "
            f"{' or '.join(s.partners)}; other nodes {fastest:.0f})"
            for s in found
        )
    if rates and fastest < slow_below_mbits_s:
        if len(nodes) == 2:
            return f"{interface} between {nodes[0]} and {nodes[1]} ({shown(fastest)}, both ways)"
        return f"the fabric as a whole: every pair is slow, e.g. {shown(fastest)}"
    if paths := slow_paths(rates, slow_below_mbits_s):
        told = (f"{p.sender}→{p.receiver} ({shown(p.mbits_s)})" for p in paths)
        return f"the path {', '.join(told)}: both nodes are fast with others"
    return None
