"""pytest-xdist: disjoint nodes at the same time, and exclusive use of the fabric to measure."""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path

import pytest

from tests.inner import InnerRun, need_rack, run_pytest, write_files
from tests.programs import write_program

pytest.importorskip("xdist")

TESTS = """
    import json, pathlib, time
    import pytest

    @pytest.fixture
    def noted(request, world):
        start = time.monotonic()
        yield
        if world.rank == 0:
            facts = dict(nodes=world.nodes, start=start, end=time.monotonic())
            path = pathlib.Path(request.config.rootpath) / (request.node.name + ".json")
            path.write_text(json.dumps(facts))

    def work():
        import torch, torch.distributed as dist
        x = torch.ones(1); dist.all_reduce(x); time.sleep(0.25)

    @pytest.mark.mnode(nodes=2)
    @pytest.mark.parametrize("i", range(6))
    def test_two(noted, process_group, i): work()

    @pytest.mark.mnode(nodes=4)
    @pytest.mark.parametrize("i", range(2))
    def test_all(noted, process_group, i): work()

    @pytest.mark.mnode(nodes=3)
    @pytest.mark.parametrize("i", range(2))
    def test_three(noted, process_group, i): work()

    @pytest.mark.mnode(nodes=1)
    @pytest.mark.parametrize("i", range(2))
    def test_measuring(noted, process_group, measure, i):
        work()
        measure("speed", 3.0, "GB/s", at_least=2.0, source="the test")

    def test_in_the_controller(cluster):
        assert [r.stdout.strip() for r in cluster.run(["hostname"])] == list(cluster.nodes)

    @pytest.mark.mnode(nodes=5)
    def test_too_many(world): pass

    def test_fails_on_one(world):
        assert world.rank != 1

    def test_stops(world): breakpoint()
"""
TAKING_TURNS = """
    import pytest

    pytestmark = pytest.mark.xdist_group(__name__)

    @pytest.fixture(scope="module")
    def wide(world):
        return __name__

    @pytest.mark.parametrize("i", range(4))
    def test_wide(wide, i):
        assert wide == __name__
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("xdist")


@pytest.fixture(scope="module")
def run(directory: Path) -> InnerRun:
    need_rack()
    renamed = TAKING_TURNS.replace("test_wide", "test_other")
    write_files(directory, test_a=TAKING_TURNS, test_b=renamed, test_it=TESTS)
    return run_pytest(directory, "--mnode-nodes=4", "-n2", "--dist=loadgroup", "-v")


def test_all_run_whatever_the_order(run: InnerRun) -> None:
    wrong = {n: o for n, o in run.outcomes().items() if o != "passed"}
    failed = dict.fromkeys(("test_fails_on_one", "test_stops"), "failure")
    assert wrong == {"test_too_many": "error", **failed}, run.output
    assert len(run.outcomes()) == 24


def test_nodes_are_never_shared_and_measurements_are_exclusive(
    run: InnerRun, directory: Path
) -> None:
    spans = {p.stem: json.loads(p.read_text()) for p in directory.glob("test_*.json")}
    assert len(spans) == 12
    together = 0
    for (a, one), (b, other) in combinations(spans.items(), 2):
        if one["start"] < other["end"] and other["start"] < one["end"]:
            together += 1
            assert not set(one["nodes"]) & set(other["nodes"]), (a, b)
            assert "measuring" not in a + b, (a, b)
    assert together, "nothing ran at the same time"


def test_more_nodes_than_there_are_is_one_line(run: InnerRun) -> None:
    assert "test_too_many needs 5 nodes, but the run has 4; give --mnode-nodes=5" in run.output


def test_workers_have_no_terminal_for_a_debugger(run: InnerRun) -> None:
    assert "a rank cannot be debugged with pytest-xdist" in run.output


def test_reports_keep_their_form_across_processes(run: InnerRun) -> None:
    failure = run.cases()["test_fails_on_one"].find("failure")
    assert failure is not None
    message = str(failure.get("message"))
    assert message.startswith("rank 1 of 4 on node1: AssertionError: assert 1 != 1")
    assert "[ranks 0,2-3 of 4 on node0,node2,node3: passed]" in str(failure.text)
    assert run.properties("test_all[0]")["mnode.nodes"] == "node0,node1,node2,node3"
    assert '"value": 3.0' in run.properties("test_measuring[0]")["mnode.measurement"]


def test_nodes_of_a_dead_worker_are_returned(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        test_it="""
            import os

            def test_worker_dies(cluster):
                os._exit(7)

            def test_other(cluster): pass
        """,
    )
    run = run_pytest(tmp_path, "--mnode-nodes=1", "--mnode-launcher=local", "-n1")
    outcomes = run.outcomes()
    assert outcomes.pop("test_worker_dies") != "passed"
    assert outcomes == {"test_other": "passed"}, run.output


def test_without_a_number_of_nodes_the_remedy_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, test_it="def test_it(world): pass")
    run = run_pytest(tmp_path, "-n1")
    assert run.outcomes() == {"test_it": "error"}
    assert "give --mnode-nodes" in run.output


def test_workers_take_turns_in_the_same_ranks(run: InnerRun) -> None:
    """A rank keeps objects for a worker's next test, even if another worker's test runs before."""
    wide = [name for name in run.outcomes() if name.startswith(("test_wide", "test_other"))]
    assert len(wide) == 8, run.output


def test_an_invalid_mark_is_one_line(tmp_path: Path) -> None:
    mark = 'import pytest\n@pytest.mark.mnode(nodes="x")\ndef test_it(world): pass'
    write_files(tmp_path, test_it=mark)
    run = run_pytest(tmp_path, "-n1", "--mnode-nodes=2", "--mnode-launcher=local")
    line = (
        "ERROR: test_it.py::test_it: @pytest.mark.mnode(nodes='x'): accepted: a whole number of 1"
    )
    assert line in run.output, run.output
    assert "INTERNALERROR" not in run.output
    assert run.returncode == pytest.ExitCode.USAGE_ERROR


def test_unavailable_nodes_at_the_start_of_workers_are_one_line(tmp_path: Path) -> None:
    """A run with gang tests requests its nodes later than others."""
    page = (Path(__file__).parents[1] / "fixtures/clusters/rack.yaml").read_text()
    for old, new in (
        ("  - question: gang\n    reason: the rack has no scheduler\n", ""),
        ("\ncriteria:\n", "\nscheduler: {kind: slurm}\ncriteria:\n  gang: {rounds: 3}\n"),
    ):
        assert page.count(old) == 1, old
        page = page.replace(old, new)
    (tmp_path / "spec.yaml").write_text(page)
    (tmp_path / "bin").mkdir()
    for name in ("srun", "salloc", "sbatch", "scontrol", "sinfo"):
        write_program(tmp_path / "bin" / name, "#!/bin/sh\necho no controller here >&2\nexit 1\n")
    for name in ("scancel", "squeue"):  # the clean-up would ask for an hour whether jobs are left
        write_program(tmp_path / "bin" / name, "#!/bin/sh\n")
    write_files(tmp_path, test_it="def test_it(world): pass")
    run = run_pytest(
        tmp_path,
        *("-n2", "--mnode-nodes=2", "--mnode-launcher=slurm", "--mnode-spec=spec.yaml"),
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
    )
    assert "ERROR: slurm: 2 nodes not allocated: no controller here" in run.output, run.output
    assert "INTERNALERROR" not in run.output
    assert run.returncode == pytest.ExitCode.USAGE_ERROR


def test_workers_on_other_machines_have_no_nodes(tmp_path: Path) -> None:
    """A fake ssh that stays on this machine."""
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    write_program(ssh, '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    write_files(tmp_path, test_it="def test_it(world): pass")
    run = run_pytest(
        tmp_path,
        *("--dist=load", "--tx=ssh=n7//python=python3", "--mnode-nodes=2"),
        "--mnode-launcher=local",
        env={"PATH": f"{ssh.parent}:{os.environ['PATH']}"},
    )
    line = (
        "ssh=n7//python=python3 is not a process of this machine, and only such processes can use"
    )
    assert line in run.output, run.output
    assert "INTERNALERROR" not in run.output
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
