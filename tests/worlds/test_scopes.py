"""Fixtures of class, module and session scope on ranks: when they are kept and ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inner import InnerRun, run_pytest, write_files

LOCAL = ("--mnode-nodes=2", "--mnode-launcher=local")
CONFTEST = """
    import json, os, pathlib
    import pytest

    class Log:
        def __call__(self, what, name):
            facts = dict(what=what, name=name, pid=os.getpid())
            with (pathlib.Path(__file__).parent / "log").open("a") as file:
                if os.environ.get("RANK", "0") == "0":
                    file.write(json.dumps(facts) + "\\n")

    log = Log()

    @pytest.fixture(autouse=True)
    def noted(request):
        log("ran", request.node.name)

    @pytest.fixture(scope="session")
    def model(process_group, world):
        log("up", f"model{world.size}")
        yield "model"
        log("down", f"model{world.size}")

    def pytest_collection_modifyitems(items):
        items.sort(key=lambda item: (item.path.stem == "test_d", item.name == "test_comes_last"))
"""
KEPT = """
    import sys
    import pytest
    from conftest import log
    if "torch" in sys.modules:  # where ranks are forked
        import torch, torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

    four = pytest.mark.mnode(nodes=2, procs_per_node=2)
    two = pytest.mark.mnode(nodes=2)
    one = pytest.mark.mnode(nodes=1)

    @pytest.fixture(scope="module")
    def mesh(process_group):
        log("up", "mesh")
        yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dist.barrier()
        log("down", "mesh")

    def use(mesh):
        x = torch.ones(1)
        dist.all_reduce(x, group=mesh["tp"].get_group())
        assert x.item() == 2

    @four
    def test_first(mesh): use(mesh)

    @one
    def test_of_another_shape(process_group, model): pass

    def test_in_the_controller(): pass

    def test_that_takes_all_nodes(cluster):
        ranks = cluster.world(procs_per_node=2).run(lambda *, world: world.rank)
        assert ranks == [0, 1, 2, 3]

    @four
    def test_second(mesh): use(mesh)

    @four
    def test_without_a_group(rank): assert dist.is_initialized()

    @four
    @pytest.mark.mnode(reuse="fresh")
    def test_fresh(mesh): use(mesh)

    @four
    def test_third(mesh): use(mesh)

    @four
    @pytest.mark.mnode(reuse="group")
    def test_new_group(mesh): use(mesh)

    class TestClass:
        @pytest.fixture(scope="class")
        @classmethod
        def thing(cls, process_group):
            log("up", "thing")
            yield
            log("down", "thing")

        @two
        def test_one(self, thing): pass

        @one
        def test_two(self, model): pass

        @two
        def test_three(self, thing): pass

    @two
    def test_own_group(world):
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        dist.barrier()  # one that ends it at once would leave the other half connected
        dist.destroy_process_group()
"""
ENDED = """
    import os
    import pytest
    from conftest import log

    two = pytest.mark.mnode(nodes=2)

    @pytest.fixture(scope="module")
    def wide(process_group, world):
        log("up", "wide")
        yield
        log("down", "wide")
        assert world.rank == 0, "cannot end"

    @two
    def test_before_the_crash(wide): pass

    @two
    def test_crash(wide, rank):
        if rank == 1:
            os._exit(3)

    @two
    def test_after_the_crash(wide): pass

    @pytest.mark.mnode(nodes=1)
    def test_that_leaves_the_module_next(rank): pass

    @two
    def test_comes_last(wide): pass
"""
OWN = """
    import pytest, torch, torch.distributed as dist
    from conftest import log

    pytestmark = pytest.mark.mnode(nodes=2)

    @pytest.fixture(scope="module", autouse=True)
    def own():
        dist.init_process_group("gloo")
        yield
        dist.destroy_process_group()

    class TestOwn:
        seen = []

        def test_own_first(self):
            dist.barrier(dist.new_group([0, 1]))
            self.seen.append(1)

        def test_own_second(self):
            dist.all_reduce(torch.ones(1))
            assert self.seen

    def test_own_last(): dist.barrier()
"""
STOPPED = """
    import pytest
    from conftest import log

    @pytest.fixture(scope="module")
    def stopped(process_group, world):
        log("up", "stopped")
        yield
        log("down", "stopped")

    @pytest.mark.mnode(nodes=2)
    def test_before_the_stop(stopped): pass

    @pytest.mark.mnode(nodes=2, procs_per_node=2)
    def test_fails(rank): assert 0

    @pytest.mark.mnode(nodes=2)
    def test_never(stopped): pass
"""
FAILED = {
    "test_crash": "failure",
    "test_that_leaves_the_module_next": "error",
    "test_comes_last": "error",
    "test_fails": "failure",
}


def logged(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "log").read_text().splitlines()]


def pids(directory: Path, *names: str) -> list[int]:
    """Pid of rank 0 in each of these tests."""
    ran = {one["name"]: one["pid"] for one in logged(directory) if one["what"] == "ran"}
    return [ran[name] for name in names]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scopes")


@pytest.fixture(scope="module")
def run(directory: Path) -> InnerRun:
    between = "import pytest\n@pytest.mark.mnode(nodes=1)\ndef test_between(model): pass\n"
    texts = {"test_a": KEPT, "test_b": ENDED, "test_c": between, "test_d": STOPPED}
    texts |= {"test_0": OWN, "test_1": OWN.replace("test_own", "test_next")}
    write_files(directory, conftest=CONFTEST, **texts)
    return run_pytest(directory, *LOCAL, f"--maxfail={len(FAILED)}")


def story(directory: Path, *names: str) -> list[str]:
    """Setups and teardowns of these fixtures and the tests that ran, in order."""
    words = [f"{one['what']} {one['name']}" for one in logged(directory)]
    return [word for word in words if word.startswith("ran") or word.split()[1] in names]


def test_only_the_intended_tests_fail(run: InnerRun) -> None:
    found = {name: kind for name, kind in run.outcomes().items() if kind != "passed"}
    assert found == FAILED, run.output


def test_a_mesh_keeps_its_ranks_across_other_tests(run: InnerRun, directory: Path) -> None:
    kept = pids(directory, "test_first", "test_second", "test_without_a_group", "test_third")
    assert len(set(kept)) == 1, run.output
    events = story(directory, "mesh")
    first = events[events.index("up mesh") : events.index("ran test_third") + 1]
    assert first == [
        *("up mesh", "ran test_first", "ran test_of_another_shape", "ran test_in_the_controller"),
        *("ran test_that_takes_all_nodes", "ran test_second", "ran test_without_a_group"),
        *("up mesh", "ran test_fresh", "down mesh", "ran test_third"),
    ]


def test_a_new_group_sets_up_dependent_fixtures_again(run: InnerRun, directory: Path) -> None:
    events = story(directory, "mesh")
    assert events[events.index("ran test_third") + 1 :][:5] == [
        *("down mesh", "up mesh", "ran test_new_group", "down mesh", "ran test_one"),
    ]


def test_a_group_that_a_fixture_made_keeps_its_ranks(run: InnerRun, directory: Path) -> None:
    """A next group, made from the environment in the same ranks, would meet its keys."""
    first, second = (
        pids(directory, *(f"test_{name}_{which}" for which in ("first", "second", "last")))
        for name in ("own", "next")
    )
    assert len({*first}) == len({*second}) == 1, run.output
    assert first[0] != second[0]


def test_class_and_session_fixtures_are_kept(run: InnerRun, directory: Path) -> None:
    events = story(directory, "thing", "model1")
    start = events.index("up thing")
    assert events[start : start + 6] == [
        *("up thing", "ran test_one", "ran test_two", "ran test_three", "down thing"),
        "ran test_own_group",
    ]
    assert events.count("up model1") == events.count("down model1") == 1
    assert events.index("down model1") == events.index("ran test_between") + 1


def test_a_crash_ends_the_scope_and_later_tests_get_a_new_one(
    run: InnerRun, directory: Path
) -> None:
    before, after = pids(directory, "test_before_the_crash", "test_after_the_crash")
    assert before != after
    events = story(directory, "wide")
    assert events[events.index("ran test_crash") :][:4] == [
        *("ran test_crash", "down wide", "up wide", "ran test_after_the_crash")
    ]


def test_module_fixtures_end_with_the_module_and_errors_belong_to_its_last_test(
    run: InnerRun, directory: Path
) -> None:
    events = story(directory, "wide")
    assert events[events.index("ran test_that_leaves_the_module_next") :][:6] == [
        *("ran test_that_leaves_the_module_next", "down wide", "ran test_between"),
        *("up wide", "ran test_comes_last", "down wide"),
    ]
    error = run.cases()["test_that_leaves_the_module_next"].find("error")
    assert error is not None
    assert "the teardown of fixtures of test_b.py" in str(error.text), run.output
    assert "[rank 1 of 2 on local1] AssertionError: cannot end" in str(error.text)


def test_with_xdist_each_worker_has_its_own_fixtures(tmp_path: Path) -> None:
    write_files(tmp_path, conftest=CONFTEST, test_a=KEPT)
    run = run_pytest(tmp_path, *LOCAL, "-n2", "-k", "first or second or shape or TestClass")
    assert set(run.outcomes().values()) == {"passed"}, run.output
    events = [f"{one['what']} {one['name']} {one['pid']}" for one in logged(tmp_path)]
    for name in ("mesh", "thing", "model1"):
        up = [line.replace("up", "down", 1) for line in events if line.startswith(f"up {name}")]
        assert sorted(up) == sorted(line for line in events if line.startswith(f"down {name}"))


def test_fixtures_end_if_the_run_stops_early(run: InnerRun, directory: Path) -> None:
    assert f"stopping after {len(FAILED)} failures" in run.output
    events = story(directory, "stopped")
    assert events[events.index("up stopped") :] == [
        *("up stopped", "ran test_before_the_stop", "ran test_fails", "down stopped")
    ]
