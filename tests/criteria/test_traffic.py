"""Traffic of today's jobs, judged from its times: experts, groups at once, two jobs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.checks.groups import Layout
from pytest_mnode.criteria.nics_used import judge_nics, partly
from pytest_mnode.criteria.port_counters.reading import PortReading
from pytest_mnode.criteria.traffic import (
    SLOW_PATH,
    _groups,
    _hot,
    _late,
    _tail,
    chart,
    judge_bisection,
    judge_congestion,
    judge_experts,
    judge_incast,
    judge_jobs,
    judge_parallel,
    slow_paths,
)
from pytest_mnode.machine.counters import frames_in
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.at_once import (
    Beside,
    Bisection,
    Incast,
    halves_of,
    sides_of,
    targets_of,
)
from pytest_mnode.measuring.lanes import (
    Experts,
    Lane,
    LaneTimes,
    Together,
    Tokens,
    busiest_bytes,
    experts_wire_s,
    job_lanes,
    lanes_of,
    model_s,
    split,
    spread,
)
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.rank.world import World
from pytest_mnode.spec import default_spec_path, load_spec, profile_spec
from pytest_mnode.spec.traffic import (
    BisectionPromise,
    CongestionPromise,
    ExpertsPromise,
    IncastPromise,
    JobsPromise,
    ParallelPromise,
)

NODES = ("node0", "node1", "node2", "node3")
WORLD = World(0, 4, 0, 1, "node0", NODES)
ALL = ((0, 1, 2, 3),)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("kind", "groups", "busiest", "steps"),
    [
        ("all_reduce", ALL, 1.5 * MIB, 6),
        ("all_gather", ALL, 0.75 * MIB, 3),
        ("all_to_all", ALL, 0.75 * MIB, 1),
        ("send_recv", ALL, 2 * MIB, 1),
        ("send_recv", ((0, 2), (1, 3)), MIB, 1),
        ("all_reduce", ((0,), (1,)), 0, 0),
    ],
)
def test_bytes_of_the_busiest_node(
    kind: Any, groups: tuple[tuple[int, ...], ...], busiest: float, steps: int
) -> None:
    lane = Lane("x", kind, groups, MIB)
    assert busiest_bytes(lane.flows(), 1) == busiest
    assert lane.steps == steps
    assert busiest_bytes(lane.flows(), 4) == 0, "inside one node nothing crosses"


def test_the_model_is_steps_and_the_line() -> None:
    spec = load_spec(default_spec_path())  # 200 Mbit/s: 25 MB/s, and 50 µs by TCP
    lane = Lane("dp", "all_reduce", ALL, MIB)
    expected = 6 * 50e-6 + 1.5 * MIB / 25e6
    assert model_s(lane.steps, lane.flows(), spec, WORLD) == pytest.approx(expected)
    assert model_s(1, {}, spec, WORLD) is None


def test_lanes_of_a_mesh_and_of_jobs() -> None:
    lanes = lanes_of(Layout.of(pp=2, dp=2, tp=1, ep=2), MIB)
    assert [(one.name, one.kind) for one in lanes] == [
        ("pp", "send_recv"),
        ("dp", "all_reduce"),
        ("ep", "all_to_all"),
    ]
    assert lanes[0].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [one.groups for one in job_lanes(WORLD, JobsPromise.model_validate({}), MIB)] == [
        ((0, 2),),
        ((1, 3),),
    ]
    shared = JobsPromise.model_validate({"nodes": ("node[0-3]", "node[1-2]")})
    assert [one.groups for one in job_lanes(WORLD, shared, MIB)] == [((0, 1, 2, 3),), ((1, 2),)]
    assert (
        job_lanes(WORLD, JobsPromise.model_validate({"nodes": ("node[0-3]", "node9")}), MIB) == []
    )


@pytest.mark.parametrize(("skew", "hot"), [(1, 256), (3, 768), (99, 1024)])
def test_the_hot_expert_has_its_share_and_the_sum_stays(skew: float, hot: int) -> None:
    sizes = split(1024, skew, 4, 2)
    assert sizes[2] == hot
    assert sum(sizes) == pytest.approx(1024, abs=4)


LINE = 0.2
SLOW_TX = {(2, n): 0.05 for n in (0, 1, 3)}


def paths(slow: Mapping[tuple[int, int], float]) -> dict[tuple[str, str], tuple[float, float]]:
    every = {(a, b): 0.19 for a in range(4) for b in range(4) if a != b} | dict(slow)
    return {(NODES[a], NODES[b]): (rate, LINE) for (a, b), rate in every.items()}


@pytest.mark.parametrize(
    ("slow", "nodes", "of_paths"),
    [
        ({}, None, ()),
        (SLOW_TX, {"node2"}, ()),
        ({(b, a): rate for (a, b), rate in SLOW_TX.items()}, {"node2"}, ()),
        ({(0, 1): 0.05}, set(), (("node0", "node1"),)),
        ({(0, 1): 0.05, (2, 3): 0.1}, set(), (("node0", "node1"), ("node2", "node3"))),
        ({(a, b): 0.05 for a in range(4) for b in range(4) if a != b}, None, ()),
    ],
)
def test_what_slow_paths_have_in_common_is_named(
    slow: Mapping[tuple[int, int], float], nodes: set[str] | None, of_paths: tuple[Any, ...]
) -> None:
    found = slow_paths(paths(slow))
    assert (found and set(found.nodes)) == nodes
    assert (found.parts.paths if found else ()) == of_paths


def test_a_path_is_compared_with_its_own_line() -> None:
    """Inside an NVLink domain a quarter of NVLink's line is slow, although NICs are slower yet."""
    rates = paths({}) | {("node0", "node1"): (1.0, 4.0), ("node1", "node0"): (3.9, 4.0)}
    found = slow_paths(rates)
    assert found is not None
    assert found.parts.paths == (("node0", "node1"),)


def together(
    alone_s: Sequence[Sequence[float]],
    beside_s: Sequence[float],
    *,
    slow: Mapping[tuple[int, int], float] | None = None,
    groups: tuple[float, ...] = (0.1, 0.1),
) -> Together:
    """Two lanes, pp and dp, of 0.1 s by the model each; six rounds."""
    lanes = []
    for name, alone, beside in zip(("pp", "dp"), alone_s, beside_s, strict=True):
        lane = Lane(name, "all_reduce", ((0, 2), (1, 3)), MIB)
        rounds = tuple(beside * (1 + 0.01 * (n % 3)) for n in range(len(alone)))
        lanes.append(LaneTimes(lane, 2, tuple(alone), rounds, groups, MIB, 0.1))
    whole = tuple(2 * max(beside_s) * (1 + 0.01 * (n % 2)) for n in range(len(alone_s[0])))
    return Together("pp 2 × dp 2", tuple(lanes), whole, paths(slow or {}))


def by_name(found: Any) -> dict[str, Measurement]:
    return {one.name.rpartition(": ")[2]: one for one in found}


STEADY = [0.11, 0.111, 0.112, 0.11, 0.111, 0.112]


def test_dimensions_are_judged_alone_and_against_their_sum() -> None:
    promise = ParallelPromise.model_validate(
        {"at_least_fraction": 0.7, "together_at_least_fraction": 0.8}
    )
    found = together([STEADY, [3 * one for one in STEADY]], (0.3, 0.4), slow=SLOW_TX)
    judged = by_name(judge_parallel(found, promise, WORLD))
    assert judged["pp, rate alone over the model's"].verdict == "pass"
    slow = judged["dp, rate alone over the model's"]
    assert slow.verdict == "fail"
    assert slow.value == pytest.approx(0.3, abs=0.01)
    assert slow.culprit is not None
    assert slow.culprit.nodes == {"node2"}
    at_once = judged["one after the other over all at once"]
    assert at_once.verdict == "pass"
    assert at_once.value == pytest.approx(1.1, abs=0.02)
    assert judged["dp, rate beside the others over alone"].verdict is None
    assert chart(found).parts[0].values[0] == pytest.approx(0.028, abs=1e-3)
    slower = together([STEADY, STEADY], (0.3, 0.4))
    judged = by_name(judge_parallel(slower, promise, WORLD))
    assert judged["one after the other over all at once"].verdict == "fail"


def test_a_slow_group_is_named_where_no_path_is() -> None:
    promise = ParallelPromise.model_validate({"at_least_fraction": 0.95})
    found = together([STEADY, STEADY], (0.1, 0.1), groups=(0.1, 0.3))
    [first, *_] = judge_parallel(found, promise, WORLD)
    assert first.verdict == "fail"
    assert first.culprit is not None
    assert first.culprit.startswith("pp group of ranks 1, 3 (300 ms, others")
    assert first.culprit.either == {frozenset(("node1", "node3"))}


def test_all_groups_and_nodes_that_stand_apart_are_named() -> None:
    world = World(0, 6, 0, 1, "n0", tuple(f"n{i}" for i in range(6)))
    lane = Lane("dp", "all_reduce", tuple((n,) for n in range(6)), 1 << 20)
    took_s = (0.1, 0.5, 0.4, 0.1, 0.12, 0.1)
    times = LaneTimes(lane, 1, (0.5,) * 6, (0.5,) * 6, took_s, 1 << 20, 0.1)
    found = Together("t", (times,), (0.5,) * 6, {})
    promise = ParallelPromise.model_validate({"at_least_fraction": 0.95})
    [one, *_] = judge_parallel(found, promise, world)
    assert one.culprit is not None
    assert one.culprit.either == {frozenset({"n1"}), frozenset({"n2"})}
    calls = [0.03 if n % 6 in (2, 5) else 0.01 + 1e-5 * (n % 3) for n in range(480)]
    tokens = Tokens(1 << 16, tuple(calls), tuple(n % 6 for n in range(480)), 0.005)
    promised = ExpertsPromise.model_validate({"p50_at_most_times": 1.5})
    *_, slow, _ = judge_experts(Experts((tokens,), 3.0, {}), promised, world)
    assert slow.culprit is not None
    assert slow.culprit.nodes == {"n2", "n5"}


def test_paths_to_bad_receivers_accuse_no_sender() -> None:
    rates = {("a", "b"): 0.05, ("a", "c"): 0.05, ("d", "e"): 0.19}
    found = slow_paths({path: (rate, LINE) for path, rate in rates.items()})
    assert found is not None
    assert not found.nodes


@pytest.mark.parametrize(
    ("most", "verdicts"),
    [(None, [None, None]), (0.6, ["pass", "pass"]), (0.2, ["fail", "pass"])],
)
def test_what_jobs_lose_is_judged(most: float | None, verdicts: list[str | None]) -> None:
    found = together([STEADY, STEADY], (0.222, 0.112))
    promise = (
        JobsPromise.model_validate({})
        if most is None
        else JobsPromise.model_validate({"loss_at_most": most})
    )
    judged = [*judge_jobs(found, promise, WORLD)]
    assert [one.verdict for one in judged] == verdicts
    if verdicts[0] == "fail":
        assert judged[0].culprit is not None
        assert judged[0].culprit.either == {frozenset(("node0", "node2"))}


def experts(hot_s: float, last_s: float = 0.01, many: int = 1, slow: Any = None) -> Experts:
    """480 calls of 10 ms, those in which node1's expert is hot take hot_s, and of those in which
    node3's is the last `many` last_s."""
    calls = [hot_s if n % 4 == 1 else 0.01 + 1e-5 * (n % 3) for n in range(480)]
    calls[480 - 4 * many + 3 :: 4] = [last_s] * many
    tokens = Tokens(1 << 16, tuple(calls), tuple(n % 4 for n in range(480)), 0.005)
    return Experts((tokens,), 3.0, paths(slow or {}))


def test_tokens_are_judged_by_median_and_by_the_slowest() -> None:
    promise = ExpertsPromise.model_validate({"p50_at_most_times": 3, "p99_at_most_times": 4})
    judged = [one.verdict for one in judge_experts(experts(0.01), promise, WORLD)]
    assert judged == [None, None, "pass", "pass"]
    promise = ExpertsPromise.model_validate({"p50_at_most_times": 1.5})
    *_, slow, _ = judge_experts(experts(0.02), promise, WORLD)
    assert slow.verdict == "fail"
    assert slow.culprit is not None
    assert slow.culprit.nodes == {"node1"}
    *_, slow, _ = judge_experts(experts(0.02, slow=SLOW_TX), promise, WORLD)
    assert slow.culprit is not None
    assert slow.culprit.nodes == {"node2"}, "a slow path says more"


@pytest.mark.parametrize(
    ("many", "slow", "verdict", "suspects"),
    [
        (0, {}, "pass", None),
        (1, {}, "inconclusive", set()),  # one of 480 may be in a hundred
        (3, {}, "inconclusive", {"node3"}),
        (20, {}, "fail", {"node3"}),
        (20, SLOW_TX, "fail", set()),
    ],
)
def test_a_99th_percentile_is_as_sure_as_its_calls(
    many: int, slow: Any, verdict: str, suspects: set[str] | None
) -> None:
    promise = ExpertsPromise.model_validate({"p99_at_most_times": 4})
    *_, late = judge_experts(experts(0.01, 0.1, many, slow), promise, WORLD)
    assert late.verdict == verdict
    found = late.culprit and {name for group in late.culprit.either for name in group}
    assert found == suspects or (suspects == set() and late.culprit is None)
    if slow:
        assert late.culprit is not None
        assert late.culprit.nodes == {"node2"}
    few = Tokens(1 << 16, (0.01,) * 99 + (0.9,), tuple(n % 4 for n in range(100)), 0.005)
    *_, late = judge_experts(Experts((few,), 3.0, {}), promise, WORLD)
    assert late.verdict == "inconclusive"
    assert "459 are needed" in late.note


@pytest.mark.parametrize(("given", "ranks", "calls"), [({}, 8, 100), ({}, 256, 256)])
def test_each_rank_is_hot(given: dict[str, Any], ranks: int, calls: int) -> None:
    assert ExpertsPromise.model_validate(given).calls_over(ranks) == calls
    given = given | {"p99_at_most_times": 3}
    assert ExpertsPromise.model_validate(given).calls_over(ranks) == 459


@pytest.mark.parametrize(("nics", "busiest"), [(8, 3 * 8), (1, 8 * 3 + 8 * 7 * 5 / 7)])
def test_a_hot_rank_receives_over_its_own_nic(nics: int, busiest: float) -> None:
    """Of two nodes of 8 ranks: 8 of the other node send it 3 units each, and 5 / 7 to others."""
    spec = load_spec(default_spec_path())
    fabric = spec.fabric.model_copy(update={"nics_per_node": nics})
    spec = spec.model_copy(update={"fabric": fabric})
    world = World(0, 16, 0, 8, "node0", NODES[:2])
    every = {(a, b) for a in range(16) for b in range(16) if a != b}
    flows = {(a, b): 21 * MIB if b == 0 else 5 * MIB for a, b in every}
    unit_s = 7 * MIB / 25e6
    assert experts_wire_s(flows, spec, world) == pytest.approx(busiest * unit_s)


def test_paths_are_spread_over_all_nodes() -> None:
    for count in (5, 65, 128, 300):
        every = {(a, b) for a in range(count) for b in range(count) if a != b}
        found = spread(every, count, 64)
        assert len(found) == min(64, count * (count - 1))
        senders = [sender for sender, _ in found]
        assert max(senders) >= count - math.ceil(count / 64) - 1
        assert max(map(senders.count, senders)) <= math.ceil(64 / count)


HALVES = (("a0", "a1"), ("b0", "b1"))
ALONE = {("a0", "b0"): 790.0, ("a1", "b1"): 780.0}


@pytest.mark.parametrize(
    ("sums", "alone", "blocking", "verdict", "words", "either"),
    [
        (1500.0, {}, 1.0, "pass", "", set()),
        (750.0, ALONE, 1.0, "fail", "uplinks between a[0-1] and b[0-1]", {"a0", "a1", "b0", "b1"}),
        (750.0, {}, 2.0, "pass", "", set()),
        (1200.0, ALONE | {("a1", "b1"): 300.0}, 1.0, "fail", "a1 and b1 alone 300", {"a1", "b1"}),
    ],
)
def test_what_halves_share_is_told_from_a_slow_pair(  # noqa: PLR0917
    sums: float,
    alone: dict[tuple[str, str], float],
    blocking: float,
    verdict: str,
    words: str,
    either: set[str],
) -> None:
    promise = BisectionPromise(at_least_fraction=0.9, oversubscription=blocking)
    rates = tuple((sums * scale, sums, sums) for scale in (0.999, 1.0, 1.001))
    [found] = judge_bisection(Bisection(HALVES, rates, 1600.0, alone), promise)
    assert found.verdict == verdict
    assert words in str(found.culprit or "")
    assert (set().union(*found.culprit.either) if found.culprit else set()) == either
    assert found.expected is not None
    assert found.expected.limit == pytest.approx(0.9 * 1600 / blocking)


def incast(**counters: int) -> Incast:
    """Three nodes; node c is slow, and its port counts these rises."""
    rates = {"a": 380.0, "b": 385.0, "c": 385.0}
    start: dict[str, int | None] = {
        "port_xmit_packets": 0,
        "out_of_sequence": 0,
        "np_cnp_sent": 0,
        "link_downed": 0,
    }
    before = {name: PortReading("boot", {"mlx5_0:1": start}, None, 0.0) for name in rates}
    end = start | {"port_xmit_packets": 10**6}
    of_c = end | dict[str, int | None](counters)
    after = {
        name: PortReading("boot", {"mlx5_0:1": of_c if name == "c" else end}, None, 1.0)
        for name in rates
    }
    return Incast(2, 400.0, rates, before, after, {"a": 0, "b": 0, "c": 7})


def judged(found: Incast, **promise: Any) -> dict[str, Measurement]:
    spec = profile_spec("rack")
    fabric = spec.fabric.model_copy(update={"kind": "roce", "interfaces": ("mlx5_*",)})
    given = IncastPromise.model_validate({"at_least_fraction": 0.9, **promise})
    return {one.name: one for one in judge_incast(found, given, fabric)}


def test_losses_of_an_incast_are_bounded() -> None:
    name = "packets lost, worst fabric port, in an incast"
    lost = judged(incast(out_of_sequence=50_000))[name]
    assert lost.value == pytest.approx(5.0)
    assert lost.verdict == "fail"
    assert lost.culprit is not None and lost.culprit.nodes == {"c"}  # noqa: PT018
    allowed = judged(incast(out_of_sequence=50_000), lost_at_most_fraction=0.1)[name]
    assert allowed.verdict == "pass"
    assert "fabric.incast.lost_at_most_fraction 0.1" in allowed.source
    assert allowed.expected is not None
    assert [t.key for t in allowed.expected.terms] == [
        "criteria.fabric.incast.lost_at_most_fraction"
    ]


def test_those_that_received_least_are_named_if_they_stand_apart() -> None:
    name = "incast, node that received least"
    found = judged(incast(), at_least_fraction=0.96)[name]
    assert (found.verdict, found.value) == ("fail", 380.0)
    assert found.culprit is not None and found.culprit.nodes == set()  # noqa: PT018
    one = judged(replace(incast(), gbits_s={"a": 100.0, "b": 385.0, "c": 385.0}))[name]
    assert one.culprit is not None and one.culprit.nodes == {"a"}  # noqa: PT018


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_slow_sender_accuses_no_receiver_in_an_incast(nodes: int) -> None:
    """Each of any nodes sends, or receives, at a fifth of the rate: it is to blame, or may be."""
    ends = [(name, way) for name in "abcd"[:nodes] for way in ("tx", "rx")]
    for count in range(1, len(ends) + 1):
        for bad in itertools.combinations(ends, count):

            def rate(name: str, way: str, bad: Sequence[tuple[str, str]] = bad) -> float:
                return 80.0 if (name, way) in bad else 400.0

            rates = {
                target: min(
                    rate(target, "rx"),
                    *((nodes - 1) * rate(n, "tx") for n in "abcd"[:nodes] if n != target),
                )
                for target in "abcd"[:nodes]
            }
            read = dict.fromkeys(rates, PortReading("boot", {"mlx5_0:1": {"link_downed": 0}}))
            found = Incast(nodes - 1, 400.0, rates, read, read, dict.fromkeys(rates, 0))
            one = judged(found)["incast, node that received least"]
            assert one.culprit is not None
            assert one.culprit.nodes <= {name for name, _ in bad}
            assert {name for name, _ in bad} <= one.culprit.nodes.union(*one.culprit.either)


@pytest.mark.parametrize(
    ("wanted", "verdict"), [("may", None), ("must", "pass"), ("never", "fail")]
)
def test_pauses_may_must_or_must_not_be(wanted: str, verdict: str | None) -> None:
    found = judged(incast(), pause=wanted)["pause frames in an incast"]
    assert (found.value, found.verdict) == (7, verdict)
    marks = judged(incast(np_cnp_sent=4), ecn=wanted)["congestion marks in an incast"]
    assert (marks.value, marks.verdict) == (4, verdict)


def test_pauses_that_nobody_counts_are_inconclusive_where_promised() -> None:
    found = incast()
    unknown: dict[str, int | str] = dict.fromkeys(
        "abc", "ethtool is not installed: install ethtool"
    )
    mute = Incast(2, 400.0, found.gbits_s, found.before, found.after, unknown)
    assert "pause frames in an incast" not in judged(mute)
    one = judged(mute, pause="never")["pause frames in an incast"]
    assert (one.verdict, "install ethtool" in str(one)) == ("inconclusive", True)


@pytest.mark.parametrize(
    ("beside", "most", "verdict"),
    [
        *((1.0, 0.1, "pass"), (1.05, 0.1, "pass"), (2.0, 0.1, "fail")),
        *((1.111, 0.1, "inconclusive"), (2.0, None, None)),
    ],
)
def test_the_loss_has_an_interval(beside: float, most: float | None, verdict: str | None) -> None:
    alone = (1.0, 1.01, 0.99, 1.0, 1.01, 0.99)
    both = tuple(beside * one for one in (1.01, 1.0, 1.0, 0.99, 1.0, 1.01))
    lasted = (0.5, *[9.0] * 5)
    found = Beside(("a", "c"), ("b", "d"), alone, both, lasted)
    promise = CongestionPromise() if most is None else CongestionPromise(loss_at_most=most)
    [one] = judge_congestion(found, promise)
    assert one.verdict == verdict
    assert one.interval is not None and one.interval[0] < 100 * (1 - 1 / beside) < one.interval[1]  # noqa: PT018
    assert "in 1 of them the other traffic ended first" in one.note
    if verdict == "fail":
        assert one.culprit is not None and one.culprit.either == {frozenset("abcd")}  # noqa: PT018


def test_nodes_of_each_side() -> None:
    nodes = [f"n{i}" for i in range(5)]
    assert halves_of(nodes, BisectionPromise(at_least_fraction=0.9)) == (("n0", "n1"), ("n2", "n3"))
    given = BisectionPromise(at_least_fraction=0.9, halves=("n[3-9]", "n0,n2"))
    assert halves_of(nodes, given) == (("n3", "n4"), ("n0", "n2"))
    assert halves_of(["x"], given) == ((), ())
    assert sides_of(nodes, CongestionPromise()) == (("n0", "n2", "n4"), ("n1", "n3"))
    one = CongestionPromise(victims="n[0-1]", aggressors="n[1-3]")
    assert sides_of(nodes, one) == (("n0", "n1"), ("n2", "n3"))
    assert targets_of(nodes) == nodes
    assert len(targets_of([f"n{i}" for i in range(100)])) == 15


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        (
            "NIC statistics:\n rx_prio3_pause: 12\n tx_prio3_pause: 3\n rx_prio3_bytes: 9",
            15,
        ),
        ("     rx_pfc_ena_frames_pri3: 4\n     rx_pause_frames: 1\n", 5),  # bnxt
        ("     frames_rx_pause: 4\n     frames_tx_pripause: 1\n", 5),  # ionic
        ("     mac_tx_mac_pause_num: 2\n     mac_rx_pfc_pri3_pkt_num: 3\n", 5),  # hns3
        ("     rx_packets: 7\n", None),
        ("no stats available", None),
    ],
)
def test_pause_frames_of_ethtool(text: str, frames: int | None) -> None:
    assert frames_in(text) == frames


@pytest.mark.parametrize(
    ("profile", "some", "verdict", "source"),
    [
        ("hgx-h100", "", "fail", "an even share each"),
        ("hgx-h100", "groups of pp send over NICs of some ranks only", None, "some ranks only"),
        ("gb200-nvl72", "", None, "NVLink carries what stays in a domain"),
        ("p5", "", None, "a rank of several NICs may send a small message over one"),
    ],
)
def test_a_nic_that_carried_nothing_is_named_where_loads_use_each(
    profile: str, some: str, verdict: str | None, source: str
) -> None:
    spec = profile_spec(profile)
    name = {"p5": "rdmap{}s0"}.get(profile, "mlx5_{}")
    counts = {name.format(nic): 10**9 * bool(nic) for nic in range(spec.fabric.nics_per_node)}
    even = dict.fromkeys(counts, 10**9)
    sent = [SentByNode("n0", even, 10**9), SentByNode("n1", counts, 10**9)]
    each = spec.accelerators.per_node
    [found] = judge_nics(sent, spec, each, "two jobs", some or partly(spec))
    assert (found.value, found.verdict) == (spec.fabric.nics_per_node - 1, verdict)
    assert found.source.endswith(source)
    assert found.culprit is not None
    assert found.culprit.parts.devices == (("n1", name.format(0)),)


EDGE = SLOW_PATH * 100


@pytest.mark.parametrize(
    ("rates", "nodes", "paths"),
    [
        ({"ab": EDGE, "ba": 100}, set(), set()),
        ({"ab": 1, "ba": 1}, set(), set()),  # all are slow
        ({"ab": 1, "cb": 100}, set(), {"ab"}),
        ({"ab": 1, "ac": 1, "cb": 100, "bc": 100}, {"a"}, set()),
        ({"ba": 1, "ca": 1, "bc": 100, "cb": 100}, {"a"}, set()),
        ({"ab": 1, "ac": 1, "ad": 100, "cb": 100, "bc": 100}, set(), {"ab", "ac"}),
    ],
)
def test_a_node_is_slow_if_all_its_partners_are_fast_with_others(
    rates: dict[str, float], nodes: set[str], paths: set[str]
) -> None:
    found = slow_paths({(path[0], path[1]): (rate, 100.0) for path, rate in rates.items()})
    assert (found.nodes if found else set()) == nodes
    assert {"".join(path) for path in found.parts.paths} == paths if found else not paths


def test_what_takes_just_so_long_stands_apart() -> None:
    """1.3 times what is usual, and the time that is the 99th percentile."""
    lane = Lane("dp", "all_reduce", ((0,), (1,), (2,)), MIB)
    found = _groups(LaneTimes(lane, 1, (1.0,), (1.0,), (1.0, 1.3, 1.0), MIB, 0.1), ranks_of(3))
    assert found is not None
    assert found.either == {frozenset({"n1"})}
    hot = [0, 1, 2] * 3
    found = _hot(tuple(1.3 if rank == 1 else 1.0 for rank in hot), tuple(hot), ranks_of(3))
    assert found is not None
    assert found.nodes == {"n1"}
    calls_s, ranks = (*[1.0] * 197, 2.0, 3.0, 4.0), (*[0] * 197, 1, 1, 2)
    tokens = Tokens(1 << 16, calls_s, ranks, 0.005)
    late = _tail("p99", tokens, None, None, ranks_of(3)).culprit
    assert late is not None
    assert late.either == {frozenset({"n1"})}


def ranks_of(nodes: int) -> World:
    return World(0, nodes, 0, 1, "n0", tuple(f"n{i}" for i in range(nodes)))


@pytest.mark.parametrize(
    ("nodes", "hot", "suspect"),
    [(3, [0, 0, 1], "n0"), (3, [0, 0, 1, 2], ""), (2, [0, 0, 0], ""), (3, [0, 0], "")],
)
def test_the_node_that_is_hot_in_most_slow_calls_is_suspected(
    nodes: int, hot: list[int], suspect: str
) -> None:
    found = _late(hot, ranks_of(nodes))
    assert (found.either if found else set()) == ({frozenset([suspect])} if suspect else set())


@pytest.mark.parametrize(
    ("nodes", "calls", "sure", "suspects"),
    [(3, 3, {"n2"}, set()), (3, 2, set(), {frozenset(["n2"])}), (2, 3, set(), set())],
)
def test_the_node_whose_experts_take_longest_is_named_after_some_calls(
    nodes: int, calls: int, sure: set[str], suspects: set[frozenset[str]]
) -> None:
    hot = [*range(nodes)] * calls
    times = [9.0 if rank == nodes - 1 else 1.0 for rank in hot]
    found = _hot(tuple(times), tuple(hot), ranks_of(nodes))
    assert ({*found.nodes}, {*found.either}) == (sure, suspects) if found else not sure | suspects
