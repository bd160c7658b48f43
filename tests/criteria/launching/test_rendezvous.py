"""The judgement of rendezvous: how long ranks took, and how many of them made a group."""

from __future__ import annotations

import resource
import threading
import time
from dataclasses import replace
from unittest.mock import MagicMock, Mock

import pytest
from torch._C._distributed_c10d import HashStore

from pytest_mnode.criteria.launching.rendezvous import (
    RankClients,
    RankTimes,
    Start,
    StoreLoad,
    judged_loads,
    judged_ranks,
    judged_times,
    measured_rendezvous,
    ranks_per_node,
    run_clients,
    slow_ranks,
    time_init,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import RankError
from pytest_mnode.measurement import Verdict
from pytest_mnode.rank.world import World
from pytest_mnode.spec.launch import RendezvousPromise, StorePromise


def times(*connect_s: float) -> list[RankTimes]:
    return [RankTimes(rank, f"node{rank}", s, 1.0) for rank, s in enumerate(connect_s)]


@pytest.mark.parametrize(
    ("connect_s", "ranks"),
    [
        ((0.01, 0.01, 2.0, 0.02), [2]),
        ((0.01, 1.5, 2.0, 0.02), [2, 1]),
        ((0.01, 0.05, 0.01, 0.02), []),  # noise
        ((2.0, 2.1, 2.2, 2.0), []),  # all of them are slow
        ((0.01, 2.0), [1]),
        ((0.01,), []),
    ],
)
def test_ranks_that_are_slow_by_themselves_are_named(
    connect_s: tuple[float, ...], ranks: list[int]
) -> None:
    assert [one.rank for one in slow_ranks(times(*connect_s))] == ranks


@pytest.mark.parametrize(
    ("slow", "from_rank", "nodes"),
    [
        ({"connected_s": 3.0}, 2, {"node2", "node3"}),
        ({"look_up_s": 3.0}, 2, {"node2", "node3"}),
        ({"look_up_s": 3.0}, 0, set()),  # the name server is slow
    ],
)
def test_all_nodes_with_slow_clients_or_look_ups_are_named(
    slow: dict[str, float], from_rank: int, nodes: set[str]
) -> None:
    usual = [RankClients(n, f"node{n}", 1, connected_s=0.1, passed_s=3.5) for n in range(4)]
    ranks = tuple(replace(one, **(slow if one.rank >= from_rank else {})) for one in usual)  # type: ignore[arg-type]
    promise = StorePromise.model_validate({"clients": [4], "within": "1 s"})
    found, _ = judged_loads([StoreLoad(4, ranks)], promise)
    assert found.verdict is Verdict.FAIL
    assert isinstance(found.culprit, Culprit)
    assert found.culprit.nodes == nodes


SLOW = "node2 (rank 2: 0.80 s to connect to the store alone)"


@pytest.mark.parametrize(
    ("init_s", "connect_s", "verdict", "culprit"),
    [
        (0.9, 0.01, Verdict.PASS, None),
        (3.1, 0.01, Verdict.FAIL, "no single rank; rank 2 on node2 was the last"),
        (3.1, 0.8, Verdict.FAIL, SLOW),
        (None, 0.8, Verdict.INCONCLUSIVE, SLOW),
    ],
)
def test_a_rendezvous_is_judged_by_its_slowest_rank(
    init_s: float | None, connect_s: float, verdict: Verdict, culprit: str | None
) -> None:
    found = [replace(one, init_s=0.5) for one in times(0.01, 0.01, connect_s, 0.01)]
    found[2] = replace(found[2], init_s=init_s, error="" if init_s else "no peer")
    promise = RendezvousPromise.model_validate({"within": "2 s"})
    slowest, _ = judged_times(found, promise, "init")
    assert (slowest.verdict, slowest.culprit) == (verdict, culprit)
    assert slowest.note == ("" if init_s else "rank 2 on node2: no peer")


def test_ranks_that_do_not_meet_are_inconclusive_and_have_the_culprit_of_their_error() -> None:
    cluster, spec = MagicMock(nodes=["node0", "node1"]), MagicMock()
    spec.accelerators.per_node = 0
    who = Culprit.rank("rank 1 on node1", "node1", 1)
    world = cluster.world.return_value.__enter__.return_value
    world.run.side_effect = RankError("[rank 1 on node1] no end within 44 s", who.record)
    promise = RendezvousPromise.model_validate({"ranks": 4, "within": "3 s"})
    [found] = measured_rendezvous(cluster, promise, spec)
    assert (found.verdict, found.culprit) == (Verdict.INCONCLUSIVE, who)
    assert "no end within 44 s" in found.note


@pytest.mark.parametrize(
    ("wanted", "nodes", "devices", "made", "verdict"),
    [
        (16, 2, 8, 16, Verdict.PASS),
        (16, 2, 0, 16, Verdict.PASS),
        (16, 2, 8, 15, Verdict.FAIL),
        (16, 3, 0, 18, Verdict.PASS),
        (128, 2, 8, 16, Verdict.INCONCLUSIVE),
    ],
)
def test_fewer_ranks_in_a_group_than_promised_fail(
    wanted: int, nodes: int, devices: int, made: int, verdict: Verdict
) -> None:
    size = ranks_per_node(wanted, nodes, devices) * nodes
    found = [RankTimes(r, f"node{r % nodes}", 0.1, 1.0) for r in range(size)]
    found = [r if r.rank < made else replace(r, init_s=None, error="no peer") for r in found]
    promise = RendezvousPromise.model_validate({"ranks": wanted, "within": "2 s"})
    judged = judged_ranks(found, promise, "init", nodes=nodes, devices=devices)
    assert judged.verdict is verdict
    if verdict is Verdict.FAIL:
        assert (judged.value, judged.culprit) == (15, "rank 15 on node1")
    if verdict is Verdict.INCONCLUSIVE:
        note = "2 nodes × 8 accelerators allow 16 ranks; the promised number needs 16 nodes"
        assert judged.note == note


def test_ranks_are_spread_evenly_and_have_an_accelerator_each() -> None:
    assert [ranks_per_node(16, nodes, 0) for nodes in (1, 2, 3, 4, 8, 16, 20)] == [
        *(16, 8, 6, 4, 2, 1, 1)
    ]
    assert ranks_per_node(16, 1, 8) == 8


COUNT = 5


def waiting(start: Start) -> tuple[list[threading.Thread], list[bool]]:
    """Threads that wait for the start, and the result of each."""
    given: list[bool] = []
    return [
        threading.Thread(target=lambda: given.append(start.given())) for _ in range(COUNT)
    ], given


def test_all_threads_start_after_the_agreement() -> None:
    start = Start(20)
    threads, given = waiting(start)
    seen: list[int] = []
    before = time.perf_counter()
    began = start.run(threads, lambda: seen.append(sum(t.is_alive() for t in threads)))
    assert (seen, given) == ([COUNT], [True] * COUNT)
    assert before < began < time.perf_counter()


def test_without_an_agreement_no_thread_starts() -> None:
    start = Start(20)
    threads, given = waiting(start)
    with pytest.raises(RuntimeError, match="nobody agreed"):
        start.run(threads, Mock(side_effect=RuntimeError("nobody agreed")))
    assert given == [False] * COUNT
    assert not any(thread.is_alive() for thread in threads)


def test_if_one_thread_cannot_start_no_thread_starts() -> None:
    start = Start(20)
    threads, given = waiting(start)
    refused = Mock(side_effect=RuntimeError("can't start new thread"))
    threads[3].start = refused  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start.run(threads, Mock())
    assert given == [False] * 3
    assert not any(thread.is_alive() for thread in threads)


def test_a_start_that_is_never_given_has_a_limit() -> None:
    assert not Start(0.1).given()


ALONE = World(0, 1, 0, 1, "n0", ("n0",))


class Shared(HashStore):
    port = 1


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Shared:
    """The store that each client gets."""
    made = Shared()
    monkeypatch.setattr("torch._C._distributed_c10d.TCPStore", lambda *_: made)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    return made


@pytest.mark.usefixtures("store")
def test_clients_connect_meet_and_read_each_other() -> None:
    found = run_clients(3, "r", 20, world=ALONE)
    assert (found.clients, found.wrong, found.errors) == (3, 0, ())
    assert found.connected_s is not None
    assert found.all_came_s is not None
    assert found.passed_s is not None
    assert 0 < found.connected_s <= found.all_came_s <= found.passed_s


def test_a_client_that_reads_what_no_other_wrote_is_wrong(
    store: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = store.get
    monkeypatch.setattr(store, "get", lambda key: b"7" if key == "client/1" else right(key))
    found = run_clients(2, "r", 20, world=ALONE)
    assert (found.wrong, found.errors) == (1, ())


def test_clients_that_do_not_connect_are_named(
    store: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RuntimeError("refused\nC++ stack")
    stores = Mock(side_effect=[store, store, refused, refused])
    monkeypatch.setattr("torch._C._distributed_c10d.TCPStore", stores)
    found = run_clients(2, "r", 20, world=ALONE)
    assert (found.connected_s, found.passed_s) == (None, None)
    assert found.errors == ("client 0: refused", "client 1: refused")


@pytest.mark.usefixtures("store")
def test_too_few_open_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 20))
    found = run_clients(30, "r", 20, world=ALONE)
    assert (found.connected_s, found.passed_s) == (None, None)
    assert "a process may have 20 open files" in found.errors[0]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("error", ["", "no peer"])
def test_a_group_that_is_not_made_has_an_error_and_no_time(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    init = Mock(side_effect=RuntimeError(f"{error}\nC++ stack") if error else None)
    ended = Mock()
    monkeypatch.setattr("torch.distributed.init_process_group", init)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.destroy_process_group", ended)
    found = time_init("gloo", 20, world=ALONE)
    assert (found.error, found.init_s is None) == (error, bool(error))
    assert found.connect_s > 0
    assert ended.called
