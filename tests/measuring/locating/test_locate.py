"""The search as ranks run it: its report, when it stops, and the message at its time limit."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import permutations

import pytest
import torch

from pytest_mnode.criteria.fabric import judge_slow_links
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.locating import locate as module
from pytest_mnode.measuring.locating.pairs import MeasuredRound
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Reading, Round
from pytest_mnode.measuring.locating.search import search
from pytest_mnode.measuring.locating.wording import Names
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec, profile_spec

SPEC = profile_spec("rack")


def with_fabric(**changed: object) -> Spec:
    return SPEC.model_copy(update={"fabric": SPEC.fabric.model_copy(update=changed)})


class Nodes:
    """Ranks on simulated nodes: `rate` gives the rate of a pair; records the tried pairs.

    slow_rails: those with these rates; 190 on the others; None for all.
    """

    def __init__(
        self,
        rate: Callable[[set[int]], float],
        seconds_each: float = 0.0,
        slow_rails: set[int] | None = None,
    ) -> None:
        self.rate = rate
        self.seconds_each = seconds_each
        self.slow_rails = slow_rails
        self.tried: list[tuple[int, int]] = []
        self.rounds = 0

    def __call__(self, *_: object) -> Nodes:
        return self

    def day(self) -> int:
        return 20_000

    def measure(self, step: Round) -> MeasuredRound:
        self.rounds += 1
        self.tried += [(flow.sender, flow.receiver) for flow in step.flows]
        readings = tuple(
            Reading(f.sender, f.receiver, rail, rate, step.alone)
            for f in step.flows
            for rail in f.rails
            for slow in [self.slow_rails is None or rail in self.slow_rails]
            for rate in [self.rate({f.sender, f.receiver}) if slow else 190]
        )
        return MeasuredRound(readings, self.rounds * self.seconds_each)


def _searched(
    monkeypatch: pytest.MonkeyPatch,
    measured: Nodes,
    nodes: int = 4,
    carrier: str = "fab0",
    *,
    outliers_only: bool = False,
    every_path: bool = True,
    spec: Spec = SPEC,
    ranks: int = 1,
    slow_below_mbits_s: float = 170.0,
) -> module.SlowLinks:
    monkeypatch.setattr(module, "Pairs", measured)
    names = tuple(f"node{i}" for i in range(nodes))
    traffic = tuple(SentByNode(name, {carrier: 100}, 100) for name in names)
    world = World(0, nodes * ranks, 0, ranks, "node0", names)
    return module.find_slow_links(
        world,
        spec,
        traffic if carrier != "fab0" else (),
        slow_below_mbits_s,
        torch.device("cpu"),
        outliers_only=outliers_only,
        every_path=every_path,
    )


def test_one_slow_node(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _searched(monkeypatch, Nodes(lambda pair: 48 if 2 in pair else 190))
    assert str(found) == found.culprit
    assert found.culprit == "node2 fab0 (48 Mbit/s, alone with node0 or node3; other nodes 190)"
    assert str(found.effort) == "8 tests in 23 rounds, 0.0 s"


def test_two_slow_nodes_and_a_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(pair: set[int]) -> float:
        return 48 if 2 in pair else 60 if 3 in pair else 30 if pair == {0, 1} else 190

    found = str(_searched(monkeypatch, Nodes(rate), nodes=7))
    culprits = re.findall(r"node2 fab0 \(|node3 fab0 \(|the path node0↔node1 \(|path|fab0", found)
    assert culprits == ["node2 fab0 (", "node3 fab0 (", "the path node0↔node1 ("]


def test_a_slow_uplink_is_confirmed_by_one_of_its_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Nodes(lambda pair: 48 if len({node < 8 for node in pair}) > 1 else 190)
    found = _searched(monkeypatch, ranks, nodes=32)
    assert str(found).startswith("the link between parts of the fabric")
    assert (found.faults, found.effort.complete) == (8 * 24, True)
    assert ranks.rounds < 130


def test_traffic_elsewhere_is_named_after_one_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Nodes(lambda pair: 19)
    assert str(_searched(monkeypatch, ranks, carrier="mgmt0")) == (
        "all nodes sent over mgmt0 instead of fab0; the fabric as a whole: every pair is slow, "
        "e.g. 19 Mbit/s, the rate of the management network"
    )
    assert ranks.tried == [(0, 1), (1, 0)]


def test_fast_pairs_blame_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _searched(monkeypatch, Nodes(lambda pair: 180 if pair == {1, 2} else 190))
    assert found.culprit is None
    assert str(found) == (
        "no culprit: every measured pair keeps the rate (slowest node1→node2 180 Mbit/s)"
    )


@pytest.mark.parametrize("nodes", [2, 4])
def test_equally_slow_pairs_are_no_fault_if_the_promise_was_kept(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    found = _searched(monkeypatch, Nodes(lambda pair: 120), nodes, outliers_only=True)
    assert (found.culprit, found.faults) == (None, 0)
    assert "no culprit: no outlier, all pairs are equally slow (slowest node" in str(found)
    assert _searched(monkeypatch, Nodes(lambda pair: 120), nodes).faults == 1
    found = _searched(monkeypatch, Nodes(lambda pair: 60 if 2 in pair else 120), outliers_only=True)
    assert found.culprit == "node2 fab0 (60 Mbit/s, alone with node0 or node3; other nodes 120)"


def test_one_node_alone_has_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _searched(monkeypatch, Nodes(lambda pair: 190), nodes=1)
    assert (found.culprit, str(found)) == (None, "no pair of nodes could be tried")


def test_at_its_time_limit_the_search_stops_and_accuses_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Nodes(lambda pair: 48 if 2 in pair else 190, seconds_each=module.BUDGET_S / 5)
    found = str(_searched(monkeypatch, ranks))
    assert ranks.rounds == 6
    assert found.startswith("suspected, not confirmed: node2 fab0 (48 Mbit/s with node0 or node1")
    assert found.endswith("; not all suspects were confirmed within 20 s")


@pytest.mark.parametrize(
    ("rate", "seconds_each", "value", "verdict", "end"),
    [
        (190, 0.0, 0, Verdict.PASS, "keeps the rate (slowest node0→node1 190 Mbit/s)"),
        (48, 0.0, 1, Verdict.FAIL, "other nodes 190)"),
        (48, module.BUDGET_S / 5, None, Verdict.INCONCLUSIVE, "confirmed within 20 s"),
        (190, module.BUDGET_S / 3, None, Verdict.INCONCLUSIVE, "measured within 20 s: 8 of 12"),
    ],
)
def test_verdict_of_a_search(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch,
    rate: float,
    seconds_each: float,
    value: float | None,
    verdict: Verdict,
    end: str,
) -> None:
    found = _searched(monkeypatch, Nodes(lambda pair: rate if 2 in pair else 190, seconds_each))
    assert str(found).endswith(end)
    kept = judge_slow_links(found)
    assert (kept[0].value, kept[0].verdict) == (value, verdict)
    assert kept[0].note == f"{found}; {found.effort}"


@pytest.mark.parametrize(
    ("nodes", "every_path", "seconds_each", "value", "verdict", "note"),
    [
        (16, False, 0.0, 240, Verdict.PASS, "240 of 240 ordered paths measured"),
        (
            *(16, False, 1.0, None, Verdict.INCONCLUSIVE),
            "168 of 240 ordered paths measured (70.0%); not measured: "
            "72, the 20 s of --mnode-locate-budget were spent",
        ),
        (
            *(66, False, 0.0, 644, None),
            "644 of 4290 ordered paths measured (15.0%); not measured: "
            "3646, sampled, more than 64 nodes (--mnode-locate measures every path)",
        ),
        (64, False, 0.0, 4032, Verdict.PASS, "4032 of 4032 ordered paths measured"),
        (66, True, 0.0, 4290, Verdict.PASS, "4290 of 4290 ordered paths measured"),
    ],
)
def test_unmeasured_paths_are_counted_with_the_reason(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    every_path: bool,
    seconds_each: float,
    value: float | None,
    verdict: Verdict | None,
    note: str,
) -> None:
    ranks = Nodes(lambda pair: 190, seconds_each)
    kept = judge_slow_links(_searched(monkeypatch, ranks, nodes, every_path=every_path))
    assert (kept[1].name, kept[1].value, kept[1].verdict, kept[1].note) == (
        *("ordered paths measured", value, verdict),
        note,
    )


def test_a_path_without_a_reading_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Nodes(lambda pair: 0.0 if pair == {0, 2} else 190)
    kept = judge_slow_links(_searched(monkeypatch, ranks))
    assert (kept[1].verdict, kept[1].note) == (
        Verdict.INCONCLUSIVE,
        "10 of 12 ordered paths measured (83.3%); not measured: 2, no reading",
    )


@pytest.mark.parametrize(
    ("nics", "ranks", "left_out"), [(3, 8, 2), (10, 8, 2), (4, 6, 3), (8, 16, 0), (32, 8, 0)]
)
def test_nics_that_ranks_cannot_cover_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, nics: int, ranks: int, left_out: int
) -> None:
    spec = with_fabric(nics_per_node=nics, interfaces=tuple(f"eth{i}" for i in range(nics)))
    for nodes, every_path in ((3, False), (65, False), (65, True)):
        found = _searched(
            *(monkeypatch, Nodes(lambda pair: 190_000), nodes),
            every_path=every_path,
            spec=spec,
            ranks=ranks,
        )
        kept = judge_slow_links(found)
        missing = f"{left_out} of {nics} NICs of each node: {ranks} ranks per node cannot be spread"
        assert (missing in kept[1].note) is bool(left_out), nodes
        required = every_path or nodes <= 64
        verdict = Verdict.INCONCLUSIVE if left_out else Verdict.PASS
        assert kept[1].verdict is (verdict if required else None), nodes


@pytest.mark.parametrize("nodes", [2, 3, 4, 16, 40])
def test_pairs_with_unsteady_rates_accuse_no_node(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """Other programs use the cores at times: pairs then carry 45 Mbit/s up to the line rate."""
    for busy in (0.2, 0.5, 0.8, 1.0):
        chance = random.Random(busy)

        def rate(_: object, busy: float = busy, chance: random.Random = chance) -> float:
            return chance.uniform(45, 200) if chance.random() < busy else 190

        found = _searched(monkeypatch, Nodes(rate), nodes)
        assert found.culprit is None, (found, busy)
        assert not found.faults, (found, busy)
        if found.faults is None:
            assert re.search(r"do not keep a rate: .* \d+ and \d+ Mbit/s", str(found))
            assert "node0" not in str(found).partition(";")[0]


@pytest.mark.parametrize(("nics", "ranks"), [(1, 8), (2, 4), (8, 1), (8, 8), (16, 4)])
@pytest.mark.parametrize("rate_of_line", [0.5, 0.95])
def test_a_rail_carries_the_sum_of_its_nics(
    monkeypatch: pytest.MonkeyPatch, nics: int, ranks: int, rate_of_line: float
) -> None:
    """NICs × ranks per node at a share of 100 Gbit/s per NIC; one node at half is named."""
    nics_of_a_rank = max(1, nics // ranks)
    line_mbits_s = 100_000.0 * nics_of_a_rank
    names = tuple(f"eth{i}" for i in range(nics))
    spec = with_fabric(nics_per_node=nics, line_rate_bits_s=100e9, interfaces=names)
    nodes = Nodes(lambda pair: line_mbits_s * (rate_of_line if 2 in pair else 0.95))
    found = _searched(monkeypatch, nodes, spec=spec, ranks=ranks, slow_below_mbits_s=85_000.0)
    assert found.bound_mbits_s == 0.85 * line_mbits_s
    assert found.faults == (rate_of_line < 0.85)
    assert (found.culprit or "node2").startswith("node2")
    # If all are at half of the sum, the whole fabric is slow, whatever the number of NICs.
    slow = Nodes(lambda pair: line_mbits_s * rate_of_line)
    found = _searched(monkeypatch, slow, spec=spec, ranks=ranks, slow_below_mbits_s=85_000.0)
    assert found.faults == (0 if rate_of_line > 0.85 else min(nics, ranks))


@pytest.mark.parametrize(
    ("used", "culprit"),
    [
        ([("mlx5_1:1",), ("mlx5_0:1",)] * 4, "node2 mlx5_0"),
        ([("mlx5_0:1",), ("mlx5_1:1",)] * 4, "node2 mlx5_1"),
        ([None, None] * 4, "node2 mlx5_1"),
        ([("mlx5_0:1",), ("mlx5_1:1",), *[("mlx5_1:1",), ("mlx5_0:1",)] * 3], "node2 mlx5_0+mlx5"),
    ],
)
def test_a_slow_rail_is_the_nic_that_its_ranks_use(
    monkeypatch: pytest.MonkeyPatch, used: list[tuple[str, ...] | None], culprit: str
) -> None:
    """A rank uses the NIC nearest to its accelerator, whatever the order in the spec."""
    names = ("mlx5_0", "mlx5_1")
    spec = with_fabric(nics_per_node=2, interfaces=names, line_rate_bits_s=200e6)
    monkeypatch.setattr(module, "nics_by_rank", lambda *_: used)
    nodes = Nodes(lambda pair: 48 if 2 in pair else 190, slow_rails={1})
    found = _searched(monkeypatch, nodes, spec=spec, ranks=2)
    assert str(found.culprit).startswith(culprit)


@pytest.mark.parametrize(
    ("changed", "culprit"),
    [
        ([], None),
        ([(0, 2), (2, 1), (3, 2)], "node2 fab0"),
        ([(0, 2)], "the path node0→node2"),
        ([(0, 2), (2, 0)], "the paths node0→node2, node2→node0"),
        ([(0, 2), (1, 3)], "the paths node0→node2, node1→node3"),
    ],
)
def test_nodes_that_change_payloads_are_named(
    changed: list[tuple[int, int]], culprit: str | None
) -> None:
    rates = Rates(4, 1, 85.0)
    rates.add(
        Reading(a, b, 0, 95.0, False, (a, b) in changed) for a, b in permutations(range(4), 2)
    )
    names = Names(("node0", "node1", "node2", "node3"), "fab0", ("fab0",), None)
    links = module.conclude(rates, names, None, module.Effort(), None)
    found = next(m for m in judge_slow_links(links) if m.name == "paths that corrupt the data sent")
    assert (found.value, found.culprit) == (len(changed), culprit)
    assert found.verdict is (Verdict.FAIL if changed else Verdict.PASS)


def test_progress_is_one_line_per_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = Nodes(lambda pair: 48 if 2 in pair else 190)
    _searched(monkeypatch, ranks)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == ranks.rounds
    assert lines[0] == (
        "locate: round 1 (all pairs), 2 pairs at once, slowest node1→node2 48 Mbit/s"
    )


@pytest.mark.parametrize(
    ("nodes", "dead", "silent"),
    [
        (4, lambda a, _: a == 1, "no reading of node1 tx"),
        (4, lambda _, b: b == 1, "no reading of node1 rx"),
        (4, lambda a, b: 1 in (a, b), "no reading of node1"),
        (4, lambda a, b: (a, b) == (0, 2), "no reading of node0→node2"),
        (3, lambda *_: True, "no reading of any node"),
        (2, lambda a, _: a == 1, "no reading of node0 rx, node1 tx"),
        (18, lambda a, b: 7 in (a, b), "no reading of node7"),
    ],
)
def test_links_without_a_reading_never_pass(
    nodes: int, dead: Callable[[int, int], bool], silent: str
) -> None:
    names = tuple(f"node{i}" for i in range(nodes))
    rates = Rates(nodes, 1, 85.0)

    def measure(step: Round) -> MeasuredRound:
        readings = tuple(
            Reading(f.sender, f.receiver, 0, 0.0 if dead(f.sender, f.receiver) else 95.0, False)
            for f in step.flows
        )
        return MeasuredRound(readings, 0.0)

    effort = module.run(search(rates, every_path=True, day=0), measure, 20.0)
    found = module.conclude(rates, Names(names, "fab0", ("fab0",), None), None, effort, None)
    assert found.faults is None
    assert found.silent == silent
    kept = judge_slow_links(found)
    assert (kept[0].verdict, kept[0].culprit) == (Verdict.INCONCLUSIVE, silent)
    if not found.slowest:
        assert kept[2].verdict is Verdict.INCONCLUSIVE, "no data arrived that could be right"
    assert str(found).startswith(silent)
