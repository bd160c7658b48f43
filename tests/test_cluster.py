"""`cluster` in the controller: commands, worlds, jobs, power, links; one run on the rack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.cluster import Cluster
from pytest_mnode.errors import ClusterError
from pytest_mnode.protocol.launcher_requests import LinkRates, PowerOn, SetLinkRate
from pytest_mnode.protocol.messages import Lease
from tests.inner import InnerRun, need_rack, run_pytest, write_files
from tests.jobs.ranks import QUICK

TESTS = """
    import os, pathlib, signal, sys, threading, time
    import pytest
    from pytest_mnode import Job
    from pytest_mnode.errors import ClusterError, MnodeError, RankError, TimeLimitError, UsageError

    def rank_and_node(*, world): return world.rank, world.node, os.getpid()
    def total(x):
        import torch, torch.distributed as dist
        t = torch.tensor([float(x)]); dist.all_reduce(t); return t.item()
    def fails_on(bad, *, world):
        if world.rank == bad: raise ValueError(f"bad rank {bad}")
        return world.rank
    def dies_on(bad, *, world):
        if world.rank == bad: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
    def naps(): time.sleep(60)

    def test_run(cluster):
        results = cluster.run(["sh", "-c", "hostname; echo err >&2; exit $0", "3"])
        assert [(r.node, r.returncode, r.stdout.strip(), r.stderr.strip()) for r in results] == [
            (name, 3, name, "err") for name in ("node0", "node1", "node2", "node3")]
        [one] = cluster.run(["sleep", "30"], nodes="node2", timeout=0.5)
        assert one.node == "node2" and one.returncode is None
        with pytest.raises(UsageError, match="no node 'node9' in this test; it has node0, node1"):
            cluster.run(["true"], nodes=["node9"])
        assert all(r.ok for r in cluster.run(["test", "-e", pathlib.Path("/dev/null")]))
        for argv in ("hostname", [], ["sleep", 5], ["echo", "a\\0b"]):
            with pytest.raises(UsageError, match="argv=.*: accepted: a list of texts"):
                cluster.run(argv)
        for env in ({"A": 1}, {"A=B": "x"}, {"": "x"}, {"A": "\\0"}):
            with pytest.raises(UsageError, match="accepted: a name without =, and a text"):
                cluster.run(["true"], env=env)

    @pytest.mark.mnode(nodes=2)
    def test_nodes_of_the_mark(cluster):
        assert cluster.nodes == ("node0", "node1")

    def test_world(cluster):
        with cluster.world(nodes=2, procs_per_node=2) as world:
            answers = world.run(rank_and_node)
            assert [t[0] for t in answers] == [0, 1, 2, 3]
            assert [t[1] for t in answers] == ["node0", "node0", "node1", "node1"]
            assert world.run(total, 2, group=True) == [8.0] * 4
            assert world.run(lambda a, b=0: a + b, 1, b=2) == [3] * 4
        for given, why in (
            ({"nodes": ["node1", "node1"]}, "nodes: node1 is named twice; give each node once"),
            ({"nodes": []}, "nodes: none; give one or more, or leave it out for all"),
            ({"nodes": 5}, "nodes=5: this test has 4 nodes"),
            ({"procs_per_node": 0}, "procs_per_node=0: give 1 or more"),
        ):
            with pytest.raises(UsageError, match=why):
                cluster.world(**given)
        with cluster.world(nodes=2) as world:
            lock = threading.Lock()
            with pytest.raises(UsageError, match="<lambda> cannot be sent to ranks with its arg"):
                world.run(lambda: lock)
            with pytest.raises(UsageError, match="timeout=0: give more than 0 seconds"):
                world.run(rank_and_node, timeout=0)
            with pytest.raises(RankError, match="its result, a lock, cannot be sent to the contr"):
                world.run(threading.Lock)
        with cluster.world(nodes=["node3", "node1"]) as world:
            assert [t[1] for t in world.run(rank_and_node)] == ["node3", "node1"]

    def test_world_that_fails(cluster):
        world = cluster.world()
        with pytest.raises(RankError, match=r"(?s)\\[rank 2 of 4 on node2\\].*Error: bad rank 2"):
            world.run(fails_on, 2)
        with pytest.raises(RankError, match="this world has ended"):
            world.run(total, 1)
        with pytest.raises(RankError, match=r"rank 1 of 4 on node1\\] killed by SIGKILL"):
            cluster.world().run(dies_on, 1)
        with pytest.raises(RankError, match=r"within 0.5 s: they are at test_it.py:\\d+ in naps"):
            cluster.world().run(naps, timeout=0.5)
        assert len(cluster.world().run(rank_and_node)) == 4

    def test_two_worlds_at_once(cluster):
        first, second = cluster.world(nodes=["node0"]), cluster.world(nodes=["node1"])
        [(_, _, pid)] = first.run(rank_and_node)
        assert cluster.run(["sh", "-c", f"kill -9 {pid}"], nodes="node0")[0].ok
        assert second.run(rank_and_node)[0][1] == "node1"
        with pytest.raises(RankError, match="rank 0 of 1 on node0. killed by SIGKILL") as error:
            first.run(rank_and_node)
        assert "no end within" not in str(error.value), "the death was forgotten"

    def test_power(cluster):
        world = cluster.world()
        cluster.power_off("node2")
        with pytest.raises(RankError, match="node node2 is gone|node2"):
            world.run(total, 1, group=True)
        with pytest.raises(MnodeError, match="node2"):
            cluster.run(["true"], nodes="node2")
        assert cluster.run(["hostname"], nodes="node1")[0].ok
        cluster.power_on("node2")
        assert [t[1] for t in cluster.world().run(rank_and_node)] == list(cluster.nodes)

    def test_power_is_back_on_after_a_test(cluster):
        cluster.power_off("node3")

    def test_all_nodes_again(world):
        assert world.size == 4

    def test_rate(cluster):
        def seconds():
            import torch, torch.distributed as dist
            x = torch.ones(500_000); dist.barrier(); start = time.perf_counter()
            dist.all_reduce(x); return time.perf_counter() - start
        world = cluster.world()
        quick = min(world.run(seconds, group=True)[0] for _ in range(3))
        cluster.set_rate("node1", "fab0", 20)
        slow = world.run(seconds, group=True)[0]
        assert slow > 3 * quick, (quick, slow)

    from pytest_mnode.protocol.launcher_requests import LinkRates, SetLinkRate

    def rates(cluster):
        return cluster._ask(LinkRates("node1", "fab0"))

    def test_rate_is_put_back_as_it_was(cluster):
        assert rates(cluster) == (200, 200)
        cluster._ask(SetLinkRate("node1", "fab0", 60, "rx"))  # as a fault does, to stay
        cluster.set_rate("node1", "fab0", 20)
        cluster.set_rate("node1", "fab0", 30)
        assert rates(cluster) == (30, 30)

    def test_rate_was_put_back(cluster):
        assert rates(cluster) == (200, 60)
        cluster._ask(SetLinkRate("node1", "fab0", 200))

    JOBS = pathlib.Path(__file__).with_name("job with blank")

    def test_job(cluster):
        job = cluster.launch(Job([str(JOBS / "sums.py")], nodes=2, env=QUICK))
        result = job.wait(120)
        assert result.ok and result.returncodes == {"node0": 0, "node1": 0}, result
        assert "sum 3 rank 1 on node1" in result.output["node1"]

    def test_job_killed(cluster):
        job = cluster.launch(Job([str(JOBS / "waits.py")], nodes=["node1", "node3"], env=QUICK))
        with pytest.raises(TimeLimitError, match="still runs on node1, node3 after 0.1 s"):
            job.wait(0.1)
        end = time.monotonic() + 120
        while "rank 1" not in job.output("node3") and time.monotonic() < end: time.sleep(0.1)
        with pytest.raises(UsageError, match="kill needs either node= or rank="):
            job.kill()
        assert len(job.kill(rank=1)) == 1
        end = time.monotonic() + 120
        while job.pids("node3") and time.monotonic() < end: time.sleep(0.1)
        job.kill(node="node1")
        result = job.wait(120)
        assert not result.ok and set(result.returncodes) == {"node1", "node3"}
        assert "exitcode  : -9" in result.output["node3"]

    def test_what_a_launcher_cannot_do_is_said(cluster, spec, measure):
        assert spec.name == "rack"
        measure("a number", 1, "", equals=1)
"""
SUMS = """
    import os, socket
    rank = int(os.environ["RANK"])
    master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    def met():
        if rank == 0:
            with socket.create_server(master) as server: return server.accept()[0]
        while True:
            try: return socket.create_connection(master, 60)
            except ConnectionRefusedError: continue
    with met() as other:
        other.sendall(bytes([rank + 1]))
        total = other.recv(1)[0] + rank + 1
    print("sum", total, "rank", rank, "on", socket.gethostname(), flush=True)
"""
WAITS = """
    import os, time
    print("rank", os.environ["RANK"], flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    need_rack()
    directory = tmp_path_factory.mktemp("cluster")
    jobs = directory / "job with blank"
    jobs.mkdir()
    write_files(jobs, sums=SUMS, waits=WAITS)
    write_files(directory, test_it=f"{TESTS}\n    QUICK = {QUICK!r}")
    return run_pytest(directory, "--mnode-nodes=4", "--mnode-launcher=rack", "--durations=5")


NAMES = [line.split("(")[0].split()[1] for line in TESTS.splitlines() if "    def test_" in line]


@pytest.mark.parametrize("name", NAMES)
def test_inner(run: InnerRun, name: str) -> None:
    outcomes = run.outcomes()
    assert outcomes.get(name) == "passed", run.output


def test_every_inner_test_ran(run: InnerRun) -> None:
    assert sorted(run.outcomes()) == sorted(NAMES)


def test_a_node_that_the_launcher_did_not_switch_off_is_on() -> None:
    def refuse(request: Any) -> None:
        raise ClusterError("no such command")

    run: Any = SimpleNamespace(
        spec=SimpleNamespace(accelerators=SimpleNamespace(per_node=0)),
        switched_off=set(),
        ask_launcher=refuse,
        release=lambda lease: None,
    )
    cluster = Cluster(run, Lease(1, ("node0", "node1")), 1, 1.0)
    with pytest.raises(ClusterError, match="no such command"):
        cluster.power_off("node1")
    assert run.switched_off == set()
    cluster.close()  # boots no node


def test_what_cannot_be_undone_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later tests would meet it, and nobody would know why."""
    ended: list[object] = []

    def ask(request: Any) -> Any:
        match request:
            case LinkRates():
                return (200.0, 100.0)
            case SetLinkRate(rate_mbit_s=200.0) | PowerOn():
                raise ClusterError(f"cannot {request.does}")
        ended.append(request)
        return SimpleNamespace(backend="rack")

    def close() -> None:
        raise ClusterError("job 77 is still RUNNING after scancel")

    run: Any = SimpleNamespace(
        spec=SimpleNamespace(accelerators=SimpleNamespace(per_node=0)),
        switched_off=set(),
        ask_launcher=ask,
        release=lambda lease: ended.append(lease.id),
    )
    cluster = Cluster(run, Lease(1, ("node0",)), 1, 1.0)
    backend = SimpleNamespace(submit=lambda *_: SimpleNamespace(close=close))
    monkeypatch.setattr("pytest_mnode.cluster.named", lambda _: backend)
    cluster.launch(["t.py"])
    cluster.set_rate("node0", "fab0", 50.0)
    cluster.power_off("node0")
    with pytest.warns(UserWarning, match="left behind by this test: ") as caught:
        cluster.close()
    assert [str(one.message).partition(": ")[2] for one in caught] == [
        "job 77 is still RUNNING after scancel",
        "cannot change the rate of a node's link",
        "cannot switch nodes on",
    ]
    assert ended[-2:] == [SetLinkRate("node0", "fab0", 100.0, "rx"), 1]


def test_worlds_and_jobs_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    run: Any = SimpleNamespace(
        spec=SimpleNamespace(accelerators=SimpleNamespace(per_node=0)),
        open_world=lambda *_: SimpleNamespace(new_group=True, id="w1"),
        close_world=lambda info, *_: ended.append(info.id),
        ask_launcher=lambda _: SimpleNamespace(backend="rack"),
        release=lambda lease: ended.append(lease.id),
    )
    cluster = Cluster(run, Lease(1, ("node0",)), 1, 1.0)
    cluster.world()
    job = SimpleNamespace(close=lambda: ended.append("job"))
    backend = SimpleNamespace(submit=lambda *_: job)
    monkeypatch.setattr("pytest_mnode.cluster.named", lambda _: backend)
    cluster.launch(["t.py"])
    cluster.close()
    assert ended == ["job", "w1", 1]
