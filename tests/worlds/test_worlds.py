"""Test bodies in ranks: worlds, reuse, and common uses of pytest, in one run on the rack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inner import InnerRun, need_rack, run_pytest, write_files

CONFTEST = """
    import pytest

    @pytest.fixture(scope="module")
    def counter(tmp_path_factory):
        return {"value": 0, "path": tmp_path_factory.mktemp("module")}

    @pytest.fixture
    def tell(request, world):
        '''Rank 0 leaves facts where the outer test reads them.'''
        import json, pathlib
        def write(**facts):
            name = request.node.name.replace("/", "_")
            path = pathlib.Path(request.config.rootpath) / f"{name}.{world.rank}.json"
            with path.open("x") as file:  # no test runs twice
                json.dump(facts, file)
        return write
"""

TESTS = """
    import logging, os, socket, sys, threading, time, warnings
    import pytest
    if "torch" in sys.modules: import torch, torch.distributed as dist  # not in the controller

    def test_contract(world, rank, world_size, local_rank, device):
        e = os.environ
        assert (int(e["RANK"]), int(e["WORLD_SIZE"])) == (rank, world_size) == (world.rank, 4)
        assert int(e["LOCAL_RANK"]) == local_rank == 0 and int(e["LOCAL_WORLD_SIZE"]) == 1
        assert int(e["GROUP_RANK"]) == rank and e["GLOO_SOCKET_IFNAME"] == "fab0"
        assert socket.gethostname() == world.node == world.nodes[rank] == f"node{rank}"
        assert device == torch.device("cpu")
        assert not dist.is_initialized()

    def test_sum(process_group, world, rank):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=process_group)
        assert x.item() == sum(range(world.size)) and dist.get_world_size() == 4

    @pytest.fixture
    def served(rank):
        if rank == 0:
            address = os.environ["MASTER_ADDR"]
            return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)

    def test_a_fixture_s_value_lives_while_other_ranks_run(served, process_group, rank):
        port = [served.port if served else None]
        dist.broadcast_object_list(port, src=0)
        if rank == 1:
            time.sleep(0.3)
            store = dist.TCPStore(
                os.environ["MASTER_ADDR"], port[0], is_master=False, wait_for_workers=False
            )
            store.set("a", "b")

    def test_only_what_ranks_need_was_imported(world, spec):
        import sys
        assert spec.name == "rack"
        heavy = {f"pytest_mnode.{name}" for name in ("controller.session", "launchers", "jobs")}
        assert not heavy & sys.modules.keys()

    def test_warm_first(process_group, tell):
        tell(pid=os.getpid(), group=id(process_group))

    def test_warm_second(process_group, tell):
        tell(pid=os.getpid(), group=id(process_group))

    @pytest.mark.mnode(reuse="group")
    def test_new_group(process_group, tell):
        x = torch.ones(1); dist.all_reduce(x); assert x.item() == 4
        tell(pid=os.getpid())

    @pytest.mark.mnode(reuse="fresh")
    def test_fresh(process_group, tell):
        x = torch.ones(1); dist.all_reduce(x); assert x.item() == 4
        tell(pid=os.getpid())

    def test_after_fresh(process_group, tell):
        tell(pid=os.getpid())

    @pytest.mark.mnode(nodes=[1, 2, 4])
    def test_sizes(world, process_group):
        x = torch.ones(1); dist.all_reduce(x)
        assert x.item() == world.size == len(world.nodes)

    @pytest.mark.mnode(nodes=2, procs_per_node=2)
    def test_two_by_two(world, local_rank, process_group):
        assert world.size == 4 and world.rank == 2 * world.nodes.index(world.node) + local_rank
        assert os.environ["MASTER_ADDR"] and os.environ["GROUP_WORLD_SIZE"] == "2"
        x = torch.ones(1); dist.all_reduce(x); assert x.item() == 4

    @pytest.mark.mnode(nodes=2)
    def test_own_group_from_environment(world):
        dist.init_process_group("gloo")
        x = torch.ones(1); dist.all_reduce(x); assert x.item() == 2
        dist.destroy_process_group()

    @pytest.mark.mnode(nodes=2)
    def test_own_group_again(world):
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()

    class TestClass:
        state = 0

        @pytest.mark.parametrize("a, b", [(1, 2), (3, 4)], ids=["low", "high"])
        def test_method(self, world, a, b):
            assert b - a == 1

    def test_module_fixture(world, counter):
        counter["value"] += 1
        assert counter["value"] == 1 and counter["path"].is_dir()

    def test_module_fixture_shared(world, counter):
        counter["value"] += 1
        assert counter["value"] == 2

    def test_capture(rank, capsys):
        print("out", rank)
        assert capsys.readouterr().out == f"out {rank}\\n"

    def test_caplog(rank, caplog):
        logging.getLogger("x").warning("rank %s", rank)
        assert caplog.messages == [f"rank {rank}"]

    def test_tmp_path(rank, tmp_path, tell):
        (tmp_path / "mine").write_text(str(rank))
        assert (tmp_path / "mine").read_text() == str(rank)
        tell(path=str(tmp_path))

    def test_monkeypatch(world, monkeypatch):
        monkeypatch.setenv("RANK", "7")

    def test_environment_is_back(world):
        assert os.environ["RANK"] == str(world.rank)

    @pytest.mark.skip(reason="not today")
    def test_skip_mark(world): assert False

    @pytest.mark.skipif("os.environ['WORLD_SIZE'] == '4'", reason="four")
    def test_skipif(world): assert False

    @pytest.mark.xfail(reason="known")
    def test_xfail(world): assert False

    @pytest.mark.xfail(reason="one rank is enough", strict=True)
    def test_xfail_one_rank(rank): assert rank != 2

    @pytest.mark.xfail(reason="not so", strict=True)
    def test_xpass_strict(world): pass

    def test_warning(world):
        warnings.warn("from a rank", UserWarning)

    def test_record_property(rank, record_property):
        record_property("number", rank)

    def test_raises(world):
        with pytest.raises(ValueError, match="no"):
            raise ValueError("no")

    def test_launcher_dies(rank):
        import psutil, time
        if rank == 1:
            [launcher] = [p for p in psutil.Process().parents() if p.name() == "mnode-elastic"]
            launcher.kill()
        time.sleep(20)

    def test_after_its_launcher(process_group):
        x = torch.ones(1); dist.all_reduce(x); assert x.item() == 4

    def test_here(request):
        assert not request.config.pluginmanager.has_plugin("mnode-rank-session")
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds")


@pytest.fixture(scope="module")
def run(directory: Path) -> InnerRun:
    need_rack()
    write_files(directory, conftest=CONFTEST, test_it=TESTS)
    return run_pytest(directory, "--mnode-nodes=4", "--mnode-launcher=rack", "-rA")


def facts(directory: Path, test: str) -> list[dict[str, object]]:
    """Facts recorded by each rank in a test, by rank."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob(f"{test}.*.json"))]


EXPECTED = {
    "test_skip_mark": "skipped",
    "test_skipif": "skipped",
    "test_xfail": "skipped",
    "test_xfail_one_rank": "skipped",
    "test_xpass_strict": "failure",
    "test_launcher_dies": "failure",
}


def test_outcomes_are_those_of_plain_pytest(run: InnerRun) -> None:
    outcomes = run.outcomes()
    assert {name: outcomes[name] for name in EXPECTED} == EXPECTED
    others = {name: o for name, o in outcomes.items() if name not in EXPECTED and o != "passed"}
    assert not others, run.output
    assert len(outcomes) == 35, sorted(outcomes)


def test_the_header_names_the_chosen_launcher_and_the_reason(run: InnerRun) -> None:
    assert (
        "mnode: launcher rack (requested), 4 nodes × 1 = 4 ranks, backend gloo, spec rack"
        in run.output
    )


def test_warm_tests_share_ranks_and_group(run: InnerRun, directory: Path) -> None:
    assert facts(directory, "test_warm_first") == facts(directory, "test_warm_second")
    assert len(facts(directory, "test_warm_first")) == 4


def test_levels_of_reuse(run: InnerRun, directory: Path) -> None:
    def pids(test: str) -> list[object]:
        return [fact["pid"] for fact in facts(directory, test)]

    assert pids("test_new_group") == pids("test_warm_second")
    assert not set(pids("test_fresh")) & set(pids("test_warm_second"))
    assert not set(pids("test_after_fresh")) & set(pids("test_fresh"))


def test_each_rank_has_its_own_tmp_path(run: InnerRun, directory: Path) -> None:
    assert len({fact["path"] for fact in facts(directory, "test_tmp_path")}) == 4


def test_nodes_are_part_of_the_report(run: InnerRun) -> None:
    assert run.properties("test_sum")["mnode.nodes"] == "node0,node1,node2,node3"
    assert run.properties("test_two_by_two")["mnode.nodes"] == "node0,node1"
    assert run.properties("test_two_by_two")["mnode.ranks"] == "4"
    recorded = run.properties("test_record_property")
    assert [recorded[f"number (rank {rank})"] for rank in range(4)] == ["0", "1", "2", "3"]


def test_an_elastic_launcher_is_replaced(run: InnerRun) -> None:
    failure = run.cases()["test_launcher_dies"].find("failure")
    assert failure is not None, run.output
    assert "rank 1 of 4 on node1" in str(failure.get("message"))
    assert "the elastic launcher of this node ended" in str(failure.get("message"))


def test_a_warning_of_all_ranks_is_reported_once(run: InnerRun) -> None:
    assert run.output.count("UserWarning: from a rank") == 1


def test_strict_xpass_is_reported_for_all_ranks(run: InnerRun) -> None:
    assert "[XPASS(strict)] not so" in run.output
