"""Who is blamed for which rates: a node, a direction, a path, all, or nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_mnode.bench.blame import culprit
from pytest_mnode.bench.pairs import PairRate

NODES = ("node0", "node1", "node2", "node3")
BOUND = 170.0
MANAGEMENT = 20.0


def _ring(rate: Callable[[str, str], float], nodes: tuple[str, ...] = NODES) -> list[PairRate]:
    pairs = [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)]
    return [PairRate(a, b, rate(a, b)) for pair in pairs for a, b in (pair, pair[::-1])]


def _blamed(rates: list[PairRate], nodes: tuple[str, ...] = NODES) -> str | None:
    return culprit(nodes, rates, BOUND, "fab0", MANAGEMENT)


@pytest.mark.parametrize(
    ("rate", "blamed"),
    [
        (lambda a, b: 190, None),
        (
            lambda a, b: 48 if "node2" in (a, b) else 190,
            "node2 fab0 (48 Mbit/s, alone with node1 or node3; other nodes 190)",
        ),
        (
            lambda a, b: 48 if a == "node2" else 190,
            "node2 fab0 tx (48 Mbit/s, alone with node1 or node3; other nodes 190)",
        ),
        (
            lambda a, b: 19 if b == "node2" else 190,
            "node2 fab0 rx (19 Mbit/s, the rate of the management network, alone with",
        ),
        (
            lambda a, b: 48 if (a, b) == ("node1", "node2") else 190,
            "the path node1→node2 (48 Mbit/s): both nodes are fast with others",
        ),
        (
            lambda a, b: 19,
            "the fabric as a whole: every pair is slow, e.g. 19 Mbit/s, the rate of the management",
        ),
        (lambda a, b: 100, "the fabric as a whole: every pair is slow, e.g. 100 Mbit/s"),
        (lambda a, b: 165 if "node2" in (a, b) else 190, None),  # noise stands out from nothing
    ],
)
def test_four_nodes(rate: Callable[[str, str], float], blamed: str | None) -> None:
    found = _blamed(_ring(rate))
    assert found == blamed if found is None or blamed is None else found.startswith(blamed)


def test_two_nodes_cannot_be_told_apart() -> None:
    nodes = ("node0", "node1")
    assert _blamed(_ring(lambda a, b: 48, nodes)[:2], nodes) == (
        "fab0 between node0 and node1 (48 Mbit/s, both ways)"
    )


def test_slow_nodes_are_named_each() -> None:
    rates = _ring(lambda a, b: 48 if {"node0", "node2"} & {a, b} else 190)
    rates += [PairRate("node1", "node3", 190), PairRate("node3", "node1", 190)]
    found = _blamed(rates)
    assert found is not None
    assert [part.split()[0] for part in found.split("; ") if part.startswith("node")] == [
        "node0",
        "node2",
    ]
