"""What settings gain, which of them are advised, and where ring and tree cross."""

from __future__ import annotations

import inspect
import math
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.charts import Advice
from pytest_mnode.criteria.tuning.catalogue import CATALOGUE, LOSS, RATE, TIME, nearest_first
from pytest_mnode.criteria.tuning.experiment import (
    Broken,
    Experiment,
    Found,
    NotHere,
    Place,
    Setting,
)
from pytest_mnode.criteria.tuning.judging import SEVERAL, advice, broke, crossing, judge
from pytest_mnode.criteria.tuning.running import Runner, refusal
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError, NodeLostError, RankError
from pytest_mnode.intervals import Interval
from pytest_mnode.option_texts import EXPERIMENTS
from pytest_mnode.rank.world import World
from pytest_mnode.spec import default_spec_path, load_spec, profile_spec
from pytest_mnode.spec.tuning import AlgorithmPromise, GainPromise, TuningCriterion
from tests.inner import run_pytest, write_files

ROUNDS = 8
OVERLAP = Experiment("overlap", "What?", "train", (TIME, LOSS), lambda _: (), 1.0)
MTU = replace(OVERLAP, name="mtu", metrics=(RATE,))


def found(
    of: Experiment,
    medians: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    noise: float = 0.01,
    noisy: str = "",
    dropped: Mapping[str, str] | None = None,
    failed: Mapping[str, str] | None = None,
) -> Found:
    """medians: by setting and case, a value of each metric. noisy: a setting whose first metric
    has thirty times the noise of the others."""
    values = {
        setting: [
            {
                case: {
                    metric.name: value * (1 + noise * times * ((n * 5 + k * 3) % 7 - 3) / 3)
                    for metric, value in zip(of.metrics, every, strict=True)
                    for times in [30 if setting == noisy and metric is of.metrics[0] else 1]
                }
                for case, every in cases.items()
            }
            for n in range(ROUNDS)
        ]
        for k, (setting, cases) in enumerate(medians.items())
    }
    dropped, failed = dropped or {}, failed or {}
    absent = [*dropped, *failed]
    settings = tuple(Setting(name, lines=(f"use {name}",)) for name in (*medians, *absent))
    return Found(of, settings, values | dict.fromkeys(absent, ()), dropped, 9.0, failed)


def gains(one: Advice) -> dict[str, tuple[float, bool]]:
    return {row.setting: (row.gain[1], row.advised) for row in one.rows if row.gain is not None}


@pytest.mark.parametrize(
    ("of", "a", "b", "noise", "gain", "advised"),
    [
        pytest.param(OVERLAP, 110, 100, 0.01, 10, True, id="less time"),
        pytest.param(MTU, 100, 104, 0.005, 4, True, id="more rate"),
        pytest.param(MTU, 104, 100, 0.005, -3.8, False, id="less rate"),
        pytest.param(MTU, 100, 104, 0.2, 4, False, id="noise"),
        pytest.param(MTU, 100, 100.5, 1e-4, 0.5, False, id="not worth it"),
    ],
)
def test_a_gain_is_advised_outside_noise(  # noqa: PLR0917  a row of the table
    of: Experiment, a: float, b: float, noise: float, gain: float, advised: bool
) -> None:
    values = {"a": {"": [a] * len(of.metrics)}, "b": {"": [b] * len(of.metrics)}}
    one = advice(found(of, values, noise=noise))
    [(measured, is_advised)] = gains(one).values()
    assert measured == pytest.approx(gain, abs=0.1 + 50 * noise)
    assert is_advised is advised
    assert one.lines == ((f"# gains {measured:.3g} %", "use b") if advised else ())
    assert ("leave it as it is" in one.conclusion[0]) is not advised
    assert [len(row) for row in one.table()] == [4] * (1 + 2 * len(of.metrics))


def test_a_gain_that_costs_loss_is_not_advised_and_says_so() -> None:
    values = {"a": {"": [100, 2.0]}, "b": {"": [50, 2.2]}}
    one = advice(found(OVERLAP, values, noise=1e-5))
    assert gains(one)["b"][1] is False
    assert one.lines == ()
    assert one.notes == ("b: loss 10.0% worse",)


def test_what_no_trace_showed_has_no_row() -> None:
    values = {"a": {"": [100, math.nan]}, "b": {"": [100, 2.0]}}
    rows = advice(found(OVERLAP, values)).rows
    assert [(one.setting, one.metric) for one in rows] == [
        ("a", "time"),
        ("b", "time"),
        ("b", "loss"),
    ]


def test_a_setting_that_gains_here_and_loses_there_is_for_some_jobs_only() -> None:
    algorithm = replace(MTU, name="algorithm", metrics=(TIME,))
    values = {"a": {"4 KiB": [100], "1 MiB": [100]}, "b": {"4 KiB": [50], "1 MiB": [200]}}
    [comment, line] = advice(found(algorithm, values)).lines
    assert "at 4 KiB; loses 50.1 % at 1 MiB, only for jobs" in comment
    assert line == "use b"


def test_settings_that_failed_are_named() -> None:
    values = {"a": {"": [100]}, "b": {"": [100]}}
    one = advice(found(MTU, values, dropped={"NVLS": "no switch reduces"}))
    assert one.notes == ("NVLS: not measured: no switch reduces",)
    promise = GainPromise(gain_at_least=0.1)
    [judged] = judge(found(MTU, {"a": {"": [100]}}, dropped={"b": "hangs"}), promise)
    assert judged.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        ({}, None),
        ({"gain_at_least": 0.03}, "pass"),
        ({"gain_at_least": 0.2}, "fail"),
        ({"gain_at_least": 0.1}, "inconclusive"),
        ({"gain_at_most": 0.05}, "fail"),
        ({"gain_at_most": 0.2}, "pass"),
    ],
)
def test_a_gain_is_judged_where_it_is_promised(
    keys: Mapping[str, float], verdict: str | None
) -> None:
    values = {"a": {"": [110, 2]}, "b": {"": [100, 2]}, "c": {"": [120, 2]}}
    [judged] = judge(found(OVERLAP, values), GainPromise(**keys))
    assert judged.verdict == verdict
    assert judged.note == f"b over a, {ROUNDS} rounds"
    low, high = judged.interval or (0, 0)
    assert low < 10 < high
    assert high - low < 6


SMALL, COSTLY = ({"": [105, 2]}, {"": [50, 3]})


@pytest.mark.parametrize(
    ("others", "more", "keys", "verdict", "gain"),
    [
        ({"b": SMALL, "c": SMALL}, {}, {"gain_at_most": 0.1}, "pass", 5),
        ({"b": SMALL, "c": SMALL}, {"noisy": "c"}, {"gain_at_most": 0.1}, "inconclusive", None),
        ({"b": SMALL, "c": {"": [103, 2]}}, {"noisy": "c"}, {"gain_at_least": 0.03}, "pass", None),
        ({"b": COSTLY}, {}, {"gain_at_most": 0.1}, "pass", 0),
        ({"b": COSTLY}, {}, {"gain_at_least": 0.1}, "fail", 0),
        ({"b": COSTLY, "c": SMALL}, {}, {"gain_at_least": 0.1}, "fail", 5),
        ({"b": SMALL}, {"failed": {"c": "hangs"}}, {"gain_at_most": 0.1}, "inconclusive", None),
        ({"b": SMALL}, {"failed": {"c": "hangs"}}, {"gain_at_most": 0.02}, "fail", 5),
        ({"b": SMALL}, {"failed": {"c": "hangs"}}, {"gain_at_least": 0.1}, "inconclusive", None),
        ({"b": SMALL}, {"failed": {"c": "hangs"}}, {"gain_at_least": 0.03}, "pass", 5),
        ({"b": SMALL}, {"dropped": {"c": "not here"}}, {"gain_at_most": 0.1}, "pass", 5),
    ],
)
def test_a_gain_is_between_the_bounds_of_all_settings(
    others: Mapping[str, Any],
    more: Mapping[str, Any],
    keys: Mapping[str, float],
    verdict: str,
    gain: float | None,
) -> None:
    values = {"a": {"": [110, 2]}, **others}
    [judged] = judge(found(OVERLAP, values, noise=0.005, **more), GainPromise(**keys))
    assert judged.verdict == verdict, judged
    assert gain is None or judged.value == pytest.approx(gain, abs=0.7)
    assert ("hangs" in judged.note) is (verdict == "inconclusive" and "failed" in more)
    assert judged.culprit is None or not (judged.culprit.nodes or judged.culprit.either)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([2.0, 1.5, 0.8, 0.5], SEVERAL),
        ([0.5, 2.0, 0.5, 2.0], SEVERAL),
        ([0.5, 0.8, 1.5, 2.0], (4, 5.1, 8)),
        ([0.5, 0.5, 0.99, 2.0], (4, 8.1, 16)),
        ([0.5, 0.5, 0.5, 0.5], "tree"),
        ([2, 2, 2, 2], "ring"),
        ([1, 1, 1, 1], ""),
    ],
)
def test_ring_and_tree_cross_between_the_sure_ones(
    ratios: Sequence[float], expected: tuple[float, ...] | str
) -> None:
    points = [(2.0**n, Interval(one * 0.95, one * 1.05)) for n, one in enumerate(ratios, 1)]
    where = crossing(points)
    assert where == expected or where == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("most", "tree", "verdict"),
    [
        ("64 KiB", (50, 100, 200), "pass"),
        ("4 KiB", (50, 100, 200), "fail"),
        ("16 KiB", (50, 100, 200), "inconclusive"),
        ("1 MiB", (200, 200, 200), "pass"),
        ("1 MiB", (50, 50, 50), "inconclusive"),
        ("64 KiB", (50, 50, 50), "fail"),
        ("64 KiB", (200, 100, 50), "inconclusive"),
    ],
)
def test_a_crossing_is_judged(most: str, tree: Sequence[float], verdict: str) -> None:
    of = CATALOGUE["algorithm"]
    sizes = ("4 KiB", "16 KiB", "64 KiB")
    values = {
        "NCCL's choice": {size: [100.0] for size in sizes},
        "NCCL_ALGO=NVLSTree": {size: [1.0] for size in sizes},
        "NCCL_ALGO=Ring": {size: [100.0] for size in sizes},
        "NCCL_ALGO=Tree": {size: [float(one)] for size, one in zip(sizes, tree, strict=True)},
    }
    promise = AlgorithmPromise.model_validate({"ring_and_tree_cross_at_most": most})
    *_, judged = judge(found(of, values), promise)
    assert judged.verdict == verdict, judged


def test_nodes_follow_their_nearest() -> None:
    far, near = 9.0, 1.0
    times = [[0, far, near, far], [far, 0, far, near], [near, far, 0, far], [far, near, far, 0]]
    assert nearest_first(times) == [0, 2, 1, 3]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_has_settings_or_says_why_not(name: str, backend: str) -> None:
    spec = load_spec(default_spec_path())
    if backend == "nccl":
        spec = load_spec(Path("profile:h100-ib"))
    nodes = tuple(f"node{n}" for n in range(4))
    from pytest_mnode.criteria.tuning import in_ranks  # imports torch

    def call(function: str, **arguments: Any) -> Any:
        inspect.signature(getattr(in_ranks, function)).bind(spec, **arguments, world=None)
        return {
            "pair_times": [[float(a != b) for b in range(4)] for a in range(4)],
            "mtus": [1500],
        }[function]

    place = Place(spec, nodes, 1, backend, call)
    assert name in TuningCriterion.model_fields
    absent = {"gloo": ("channels",), "nccl": ("mtu", "network")}[backend]
    if name in absent:
        with pytest.raises(NotHere):
            CATALOGUE[name].settings(place)
        return
    settings = CATALOGUE[name].settings(place)
    assert len(settings) > 1
    assert len({one.name for one in settings}) == len(settings)
    assert any(one.lines for one in settings) or backend == "gloo"
    for one in settings:
        call_of = inspect.signature(getattr(in_ranks, CATALOGUE[name].function))
        call_of.bind(spec, **one.arguments, world=None)


def test_training_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_mnode.criteria.tuning import in_ranks  # imports torch

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    world = World(0, 1, 0, 1, "node0", ("node0",))
    with pytest.raises(Exception, match="no_such_key"):
        in_ranks.train(profile_spec("rack"), job={"no_such_key": 1}, passes=1, world=world)
    assert not list(tmp_path.iterdir())


def test_the_8_bit_hook_reads_what_gloo_gathers() -> None:
    import torch
    import torch.distributed as dist

    from pytest_mnode.criteria.tuning import in_ranks

    stores: Any = dist  # stubs do not export them
    given = torch.linspace(-1, 1, 512)
    bucket = SimpleNamespace(buffer=given.clone)
    dist.init_process_group("gloo", store=stores.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD  # else its own thread may hold it last, and would wait for itself
    try:
        mean = in_ranks.eight_bit_hook("gloo")(None, bucket).wait()
    finally:
        dist.destroy_process_group()
    assert torch.allclose(mean, given, atol=1 / 255)
    assert len(mean.unique()) <= 256
    del group


def test_other_traffic_flows_until_the_measurement_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pytest_mnode.criteria.tuning import in_ranks  # imports torch

    flowed: list[int] = []

    class Client(socket.socket):
        def sendall(self, data: Any, flags: int = 0) -> None:
            super().sendall(data, flags)
            flowed.append(len(data))

    def connected(address: tuple[str, int]) -> socket.socket:
        client = Client()
        client.connect(address)
        return client

    monkeypatch.setattr(in_ranks, "gathered", lambda mine: (mine,))
    monkeypatch.setattr(socket, "create_connection", connected)
    monkeypatch.setattr(in_ranks, "REPEAT_S", 0.05)
    world = World(0, 1, 0, 1, "node0", ("node0",))
    spec = profile_spec("rack")
    fabric = spec.fabric.model_copy(update={"interfaces": ("lo",)})
    with in_ranks.other_traffic(spec.model_copy(update={"fabric": fabric}), "fabric", world):
        assert flowed
    after = len(flowed)
    time.sleep(0.02)
    assert len(flowed) == after


LOST = RankError("a node is lost", Culprit.rank("rank 1 of 2 on node1", "node1", 1).record)
HANGS = RankError("no end within 60 s")


@pytest.mark.parametrize(
    ("raised", "started", "dropped", "failed"),
    [
        ({"b": NotHere("no switch reduces")}, True, {"b": "no switch reduces"}, {}),
        ({"b": HANGS}, True, {}, {"b": "no end within 60 s"}),
        ({"b": LOST}, False, None, LOST),
        ({"b": Broken("wrong sum")}, True, None, Broken),
        ({"a": HANGS}, True, None, HANGS),
        ({"a": NotHere("no interface")}, True, None, NotHere),
    ],
)
def test_only_what_a_place_lacks_is_not_tried(
    raised: Mapping[str, Exception], started: bool, dropped: Any, failed: Any
) -> None:
    """started: whether ranks can be started after a failure."""

    def run(_: Any, __: str, arguments: Mapping[str, Any], **___: Any) -> list[Any]:
        one = raised.get(arguments["name"])
        if isinstance(one, NotHere | Broken):
            return [one, {"": {"rate": 1.0}}]
        if one:
            raise one
        return [{"": {"rate": 1.0}}] * 2

    worlds = list[int]()

    def world() -> Any:
        worlds.append(1)
        if len(worlds) > 1 and not started:
            raise MnodeError("node1 is gone")
        return SimpleNamespace(run=run, close=lambda: None)

    cluster: Any = SimpleNamespace(nodes=("node0", "node1"), procs_per_node=1, world=world)
    settings = tuple(Setting(name, {"name": name}) for name in ("a", "b", "c"))
    runner = Runner(cluster, load_spec(default_spec_path()), "gloo")
    if dropped is None:
        with pytest.raises(failed if isinstance(failed, type) else type(failed)) as error:
            runner.run(MTU, settings, 3)
        assert isinstance(failed, type) or error.value is failed
        return
    done = runner.run(MTU, settings, 3)
    assert (done.dropped, done.failed) == (dropped, failed)
    assert [len(done.values[name]) for name in "abc"] == [3, 0, 3]


@pytest.mark.parametrize(
    ("error", "nodes", "either"),
    [
        (LOST, {"node1"}, set()),
        (NodeLostError("node2", "it is gone"), {"node2"}, set()),
        (Broken(Culprit("wrong", either=[["node0", "node3"]])), set(), {("node0", "node3")}),
    ],
)
def test_what_breaks_meanwhile_fails_with_its_culprit(
    error: Any, nodes: set[str], either: set[tuple[str, ...]]
) -> None:
    judged = broke(MTU, error)
    assert judged.verdict == "fail"
    assert judged.culprit
    assert judged.culprit.nodes == nodes
    assert {tuple(sorted(group)) for group in judged.culprit.either} == either


SAID = "Last error:\nError : no algorithm/protocol available for function AllReduce"


@pytest.mark.parametrize(
    ("error", "env", "why"),
    [
        (f"ncclInvalidUsage: This usually …\n{SAID}", {"NCCL_ALGO": "NVLS"}, SAID[12:]),
        (f"ncclInternalError: Internal check failed.\n{SAID}\n", {"NCCL_ALGO": "NVLS"}, SAID[12:]),
        (f"ncclInternalError: Internal check failed.\n{SAID}", {}, ""),
        ("ncclInternalError: Internal check failed.\nLast error:\nbusid", {"NCCL_ALGO": "X"}, ""),
        ("ncclRemoteError: A call failed possibly due to a network error", {"NCCL_ALGO": "X"}, ""),
    ],
)
def test_an_algorithm_that_nccl_refuses(error: str, env: Mapping[str, str], why: str) -> None:
    assert refusal(error, env) == why


IN_RANKS = """
    import pytest
    from pytest_mnode.criteria.tuning.experiment import Broken, Setting
    from pytest_mnode.criteria.tuning.running import Runner
    from pytest_mnode.errors import RankError
    from pytest_mnode.spec import default_spec_path, load_spec

    def test_of_variables(cluster):
        runner = Runner(cluster, load_spec(default_spec_path()), "gloo")
        given = {"sizes": (4096,)}
        nowhere = Setting("nowhere", given, {"GLOO_SOCKET_IFNAME": "nowhere0"})
        with pytest.raises(RankError, match="nowhere0"):
            runner.measure("all_reduces", nowhere)
        assert runner.measure("all_reduces", Setting("as it is", given))["4 KiB"]["time"] > 0
        runner.close()

    def test_of_sums(cluster):
        runner = Runner(cluster, load_spec(default_spec_path()), "gloo")

        def spoil():
            from pytest_mnode.criteria.tuning import in_ranks
            in_ranks.ring = lambda values: values.fill_(3 if in_ranks.dist.get_rank() else 2)

        with cluster.world() as world:
            world.run(spoil)
        with pytest.raises(Broken) as error:
            runner.measure("all_reduces", Setting("ring", {"sizes": (4096,), "how": "ring"}))
        assert {frozenset(cluster.nodes[:1])} == error.value.culprit.either
        runner.close()
"""


def test_variables_reach_libraries_in_ranks_and_a_wrong_sum_comes_back(tmp_path: Path) -> None:
    write_files(tmp_path, test_it=IN_RANKS)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    assert run.outcomes() == {"test_of_variables": "passed", "test_of_sums": "passed"}, run.output
