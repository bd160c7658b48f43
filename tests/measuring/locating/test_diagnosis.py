"""The diagnosis of rates: culprits, certainty, and wording."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from pytest_mnode.measuring.locating.diagnosis import CONFIRMED_BY, REPEATS, diagnose, slowest_rail
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Reading
from pytest_mnode.measuring.locating.wording import Names, culprits
from pytest_mnode.spec import profile_spec

BOUND = 170.0
SURE = CONFIRMED_BY * REPEATS
SPEC = profile_spec("rack")
Rule = Callable[[int, int, int], float]


def _rates(rule: Rule, nodes: int = 4, rails: int = 1, times_alone: int = SURE) -> Rates:
    """Rates of every pair by (sender, receiver, rail), once beside others and then alone."""
    rates = Rates(nodes, rails, BOUND)
    links = [(a, b, r) for a in range(nodes) for b in range(nodes) for r in range(rails) if a != b]
    for a, b, rail in links:
        rates.add(Reading(a, b, rail, rule(a, b, rail), i > 0) for i in range(times_alone + 1))
    return rates


def _words(rates: Rates) -> str | None:
    names = [f"node{i}" for i in range(rates.nodes)]
    return culprits(diagnose(rates), Names.of(names, SPEC, rates.rails, nvlink=False))


def _named(rates: Rates) -> str | None:
    """Culprits with their rates, without partners and reasons."""
    words = _words(rates)
    return words and re.sub(r" Mbit/s[^();]*(; other nodes \d+)?\)(: [^;]*others)?", ")", words)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda a, b, r: 190, None),
        (lambda a, b, r: 48 if 2 in (a, b) else 190, "node2 fab0 (48)"),
        (lambda a, b, r: 48 if a == 2 else 190, "node2 fab0 tx (48)"),
        (lambda a, b, r: 19 if b == 2 else 190, "node2 fab0 rx (19)"),
        (lambda a, b, r: 48 if (a, b) == (1, 2) else 190, "the path node1→node2 (48)"),
        (lambda a, b, r: 48 if {a, b} == {1, 2} else 190, "the path node1↔node2 (48)"),
        (
            lambda a, b, r: 48 if a == 0 and b != 3 else 190,
            "the paths node0→node1 (48), node0→node2 (48)",
        ),
        (
            lambda a, b, r: 40 if {a, b} == {0, 1} else 60 if 3 in (a, b) else 190,
            "node3 fab0 (60); the path node0↔node1 (40)",
        ),
        (  # a path slower than its slow end
            lambda a, b, r: 30 if {a, b} == {2, 3} else 60 if 3 in (a, b) else 190,
            "node3 fab0 (60); the path node2↔node3 (30)",
        ),
        # Readings of a slow node vary: its other paths are not at fault.
        (lambda a, b, r: (52 if a == 2 else 69) if 2 in (a, b) else 190, "node2 fab0 (69)"),
        (lambda a, b, r: 52 if (a, b) == (2, 1) else 69 if 2 in (a, b) else 190, "node2 fab0 (69)"),
        (
            lambda a, b, r: 50 if 0 in (a, b) else 100,
            "the fabric as a whole: every pair is slow, e.g. 100 Mbit/s; node0 fab0 (50)",
        ),
        (lambda a, b, r: 165 if 2 in (a, b) else 190, "node2 fab0 (165)"),
        (lambda a, b, r: 165 if a == 2 else 190, "node2 fab0 tx (165)"),
        (lambda a, b, r: 165 if {a, b} == {0, 2} else 190, "the path node0↔node2 (165)"),
    ],
)
def test_culprits_among_four_nodes(rule: Rule, words: str | None) -> None:
    assert _named(_rates(rule)) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            lambda a, b, r: 19 if b == 2 else 190,
            "node2 fab0 rx (19 Mbit/s, the rate of the management network, alone with node0 or "
            "node1 or node3; other nodes 190)",
        ),
        (
            lambda a, b, r: 48 if (a, b) == (1, 2) else 190,
            "the path node1→node2 (48 Mbit/s): both nodes are fast with others",
        ),
        (
            lambda a, b, r: 48 if a == 0 and b != 3 else 190,
            "the paths node0→node1 (48 Mbit/s), node0→node2 (48 Mbit/s): their nodes are fast "
            "with others",
        ),
        (
            lambda a, b, r: 19,
            "the fabric as a whole: every pair is slow, e.g. 19 Mbit/s, the rate of the management "
            "network",
        ),
    ],
)
def test_a_culprit_in_a_sentence(rule: Rule, words: str) -> None:
    assert _words(_rates(rule)) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            lambda a, b, r: 48 if (a < 2) != (b < 2) else 190,
            "fab0 between node0, node1 and node2, node3, node4 (48 Mbit/s, 6 paths)",
        ),
        (
            lambda a, b, r: 48 if a < 2 <= b else 190,
            "fab0 from node0, node1 to node2, node3, node4 (48 Mbit/s, 6 paths)",
        ),
    ],
)
def test_an_uplink_is_named_and_not_each_of_its_paths(rule: Rule, words: str) -> None:
    link = "the link between parts of the fabric, such as an uplink of a switch: "
    whole = f"{link}{words}, which are fast among themselves"
    assert _words(_rates(rule, nodes=5)) == whole
    assert _words(_rates(rule, nodes=5, times_alone=0)) == f"suspected, not confirmed: {whole}"
    # A slow node besides is named by itself, and one fast path shows that there is no such link.
    besides = _words(_rates(lambda a, b, r: 20 if 5 in (a, b) else rule(a, b, r), nodes=6))
    assert besides is not None
    assert besides.startswith("node5 fab0 (20 Mbit/s")
    assert besides.endswith(whole)
    fast = _words(_rates(lambda a, b, r: 190 if {a, b} == {0, 4} else rule(a, b, r), nodes=5))
    assert fast is not None
    assert fast.startswith("the paths node0")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda a, b, r: 48, "fab0 between node0 and node1 (48 Mbit/s, both ways)"),
        (lambda a, b, r: 48 if a else 190, "fab0 from node1 to node0 (48 Mbit/s, one way)"),
        (lambda a, b, r: 190, None),
    ],
)
def test_two_nodes_cannot_be_distinguished(rule: Rule, words: str | None) -> None:
    assert _words(_rates(rule, nodes=2)) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda a, b, r: 48 if a == 2 and r == 3 else 190, "node2 fab0 rail 3 tx (48)"),
        (lambda a, b, r: 48 if 2 in (a, b) else 190, "node2 fab0 (48)"),
        (
            lambda a, b, r: 48 if (a, b, r) == (0, 1, 1) else 190,
            "the path node0→node1 fab0 rail 1 (48)",
        ),
        (
            lambda a, b, r: 48 if r == 1 else 190,
            "fab0 rail 1 of all nodes: every pair is slow, e.g. 48 Mbit/s",
        ),
    ],
)
def test_culprits_by_rail(rule: Rule, words: str) -> None:
    assert _named(_rates(rule, rails=4)) == words


def test_nics_listed_in_the_spec_are_named() -> None:
    fabric = SPEC.fabric.model_copy(update={"interfaces": ("mlx5_0", "mlx5_3")})
    naming = Names.of(["a", "b"], SPEC.model_copy(update={"fabric": fabric}), 2, nvlink=False)
    assert (naming.on([1]), naming.on([0, 1])) == ("mlx5_3", "mlx5_0+mlx5_3")
    fabric = SPEC.fabric.model_copy(update={"interfaces": ("mlx5_?", "eth0")})
    naming = Names.of(["a", "b"], SPEC.model_copy(update={"fabric": fabric}), 2, nvlink=False)
    assert naming.on([1]) == "mlx5_?+eth0 rail 1"


@pytest.mark.parametrize("times_alone", range(SURE))
def test_unconfirmed_culprits_are_not_named(times_alone: int) -> None:
    path = _words(_rates(lambda a, b, r: 48 if {a, b} == {1, 2} else 190, times_alone=times_alone))
    assert path == "suspected, not confirmed: the path node1↔node2 (48 Mbit/s)"
    if times_alone < REPEATS:
        node = _named(_rates(lambda a, b, r: 48 if 2 in (a, b) else 190, times_alone=times_alone))
        assert node == "suspected, not confirmed: node2 fab0 (48)"


def test_one_healthy_partner_does_not_confirm() -> None:
    rates = _rates(lambda a, b, r: 48 if 2 in (a, b) else 190, nodes=3, times_alone=0)
    rates.add(Reading(a, b, 0, 48, True) for a, b in [(2, 0), (0, 2)] * REPEATS)
    assert diagnose(rates).nodes[0].confirmed is False
    rates.add(Reading(a, b, 0, 48, True) for a, b in [(2, 1), (1, 2)] * REPEATS)
    assert diagnose(rates).nodes[0].confirmed is True


@pytest.mark.parametrize("first", [0, 1])
def test_a_path_is_confirmed_once_both_its_ends_are_fast_alone_with_others(first: int) -> None:
    rates = _rates(lambda a, b, r: 48 if (a, b) == (1, 2) else 190, times_alone=0)
    rates.add([Reading(1, 2, 0, 48, True)] * SURE)
    fast = [Reading(1, 3, 0, 190, True), Reading(3, 2, 0, 190, True)]
    rates.add([fast[first]])
    assert [path.confirmed for path in diagnose(rates).paths] == [False]
    rates.add([fast[1 - first]])
    assert [path.confirmed for path in diagnose(rates).paths] == [True]


def test_a_node_that_is_slow_both_ways_is_confirmed_in_both() -> None:
    rates = _rates(lambda a, b, r: 48 if 2 in (a, b) else 190, times_alone=0)
    for ways, confirmed in (([(2, 0), (2, 1)], False), ([(0, 2), (1, 2)], True)):
        rates.add(Reading(a, b, 0, 48, True) for a, b in ways * REPEATS)
        assert [node.confirmed for node in diagnose(rates).nodes] == [confirmed]


def test_the_rate_of_a_path_is_that_of_its_faster_direction() -> None:
    slow = {(1, 2): 40.0, (2, 1): 48.0}
    [path] = diagnose(_rates(lambda a, b, r: slow.get((a, b), 190.0))).paths
    assert (path.both_ways, path.mbits_s) == (True, 48.0)
    [path] = diagnose(
        _rates(lambda a, b, r: slow.get((a, b), 190.0) if r % 2 else 190.0, rails=4)
    ).paths
    assert path.rails == (1, 3)


def test_two_groups_of_two_nodes_are_apart() -> None:
    found = diagnose(_rates(lambda a, b, r: 48 if (a < 2) != (b < 2) else 190))
    assert found.groups == ((0, 1), (2, 3))


def test_the_slowest_rail_of_each_link_counts() -> None:
    none = float("nan")
    rates = np.array([[[none, 3.0], [5.0, none]], [[none, 2.0], [none, none]]])
    assert slowest_rail(rates).tolist() == [[0.0, 2.0], [5.0, 0.0]]


def test_one_dip_is_tolerated_and_of_more_the_link_with_the_deepest_is_shown() -> None:
    def dips(*lowest: float) -> tuple[float, float] | None:
        rates = Rates(4, 1, BOUND)
        for receiver, low in enumerate(lowest, 1):
            rates.add(Reading(0, receiver, 0, rate, True) for rate in (190.0, low))
        return rates.unsteady

    assert dips(60.0) is None
    assert dips(60.0, 114.0) is None, "a dip is below 0.6 of the best reading"
    assert dips(60.0, 48.0, 70.0) == (48.0, 190.0)
    many = _rates(lambda a, b, r: 190, times_alone=2)
    many.add(Reading(0, b, 0, 50, True) for b in (1, 2))
    assert many.unsteady is None, "2 of 26 readings"
    many.add([Reading(0, 3, 0, 50, True)])
    assert many.unsteady == (50.0, 190.0), "3 of 27 readings"


def test_one_fast_reading_alone_clears_a_suspect() -> None:
    rates = _rates(lambda a, b, r: 48 if 2 in (a, b) else 190)
    rates.add([Reading(2, 0, 0, 189, True), Reading(0, 2, 0, 189, True)])
    assert diagnose(rates).nodes == ()


def test_an_implausibly_fast_reading_accuses_no_node() -> None:
    rates = _rates(lambda a, b, r: 190)
    rates.add([Reading(0, 1, 0, 500, False)])
    assert diagnose(rates).nobody


@pytest.mark.parametrize("nothing", [0.0, -1.0, float("nan"), float("inf")])
def test_unmeasured_paths_accuse_no_node(nothing: float) -> None:
    rates = _rates(lambda a, b, r: nothing if 2 in (a, b) else 190)
    assert diagnose(rates).nobody
    assert rates.paths_measured == 6


def test_a_long_list_of_culprits_is_shortened() -> None:
    diagnosis = _words(_rates(lambda a, b, r: 48 if min(a, b) < 18 else 190, nodes=20))
    assert diagnosis is not None
    assert diagnosis.count("fab0") == 16
    assert diagnosis.endswith("; and 2 more")


def test_a_link_at_the_detectable_loss_is_found_in_99_of_100() -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(300):
        healthy = _rates(lambda a, b, r: 190 * rng.normal(1, 0.02), nodes=6, times_alone=0)
        loss = healthy.detectable_loss
        assert loss is not None
        rate = 190 * (1 - loss) * rng.normal(1, 0.02)
        healthy.best[0, 2, 4] = rate
        found.append((0, 2, 4) in healthy.slow_links)
    assert sum(found) >= 0.97 * len(found)
    assert _rates(lambda a, b, r: 190).detectable_loss == pytest.approx(20 / 190)
    # The bound, where it is below what stands out.
    assert _rates(lambda a, b, r: 340).detectable_loss == pytest.approx(0.5)


@pytest.mark.parametrize(("nodes", "rails"), [(3, 1), (4, 1), (8, 2), (16, 1)])
def test_noise_below_the_bound_accuses_nobody(nodes: int, rails: int) -> None:
    rng = np.random.default_rng(nodes)
    healthy = [
        _rates(lambda a, b, r: 176 * rng.normal(1, 0.05), nodes, rails, times_alone=0)
        for _ in range(200)
    ]
    assert sum(1 for rates in healthy if rates.slow_nodes) <= 1
    assert sum(1 for rates in healthy if rates.slow_links) <= 2


@pytest.mark.parametrize("rate", [48, 145])
def test_the_slow_one_of_three_nodes_is_named_and_not_the_fabric(rate: float) -> None:
    rates = _rates(lambda a, b, r: rate if 1 in (a, b) and r == 0 else 190, nodes=3, rails=2)
    assert str(_words(rates)).startswith("node1 fab0 rail 0 (")


def test_nothing_is_detectable_where_a_link_was_not_measured() -> None:
    rates = _rates(lambda a, b, r: 190)
    rates.best[0, 1, 2] = np.nan
    assert rates.detectable_loss is None
