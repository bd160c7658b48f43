"""pytest on Slurm: its own allocation from the login node, lost nodes, and no leftovers."""

from __future__ import annotations

import shlex
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pytest_mnode.backends.registry import choose
from pytest_mnode.errors import UsageError
from pytest_mnode.options import Settings
from pytest_mnode.spec import default_spec_path, load_spec
from tests.engines.debugged import debug
from tests.engines.inside import (
    COVERAGE,
    lines_run,
    own_temporary,
    run_pytest,
    running_pytest,
    spec_for,
)
from tests.engines.slurm import SlurmOnRack
from tests.inner import InnerRun, junit_command, released_plugins, write_files

OUTSIDE = """
    import os
    import torch, torch.distributed as dist

    def test_ranks(world, process_group, shared_tmp_path):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world.size == 2
        assert len(os.sched_getaffinity(0)) == os.cpu_count()
        (shared_tmp_path / str(world.rank)).touch()
        dist.barrier()
        assert len(os.listdir(shared_tmp_path)) == 2
        if world.rank == 1:
            assert os.uname().nodename == "node1"

    def test_commands(cluster):
        names = [done.stdout.strip() for done in cluster.run(["hostname"])]
        assert tuple(names) == cluster.nodes == ("node0", "node1")
        assert cluster.share_files
        (cluster.scratch / "seen").write_text("by all")
        for done in cluster.run(["cat", str(cluster.scratch / "seen")]):
            assert done.stdout == "by all"
        slow = cluster.run(["sh", "-c", "sleep 30 & sleep 30"], "node1", timeout=1)
        assert slow[0].returncode is None
"""
BATCH = """
    import os

    def test_ranks(world, process_group):
        assert os.environ["RANK"] == str(world.rank)
        assert os.environ["SLURM_JOB_ID"]
        assert not [name for name in os.environ if name.endswith(("PROCID", "NODEID", "NTASKS"))]
        assert len(os.sched_getaffinity(0)) == os.cpu_count()

    def test_commands(cluster):
        assert "SLURM_NODEID" in os.environ
        for done in cluster.run(["sh", "-c", "echo $SLURM_NODEID; hostname"]):
            assert done.stdout.split() == [done.node]
"""
WAITS = """
    import pathlib, time
    import pytest

    def waits(world, request):
        pathlib.Path(request.config.rootpath, f"busy{world.size}-{world.rank}").touch()
        time.sleep(90)
"""
LOSSES = """
    @pytest.mark.mnode(nodes=4)
    def test_four(world, process_group, request): waits(world, request)

    @pytest.mark.mnode(nodes=3)
    def test_three(world, process_group, request): waits(world, request)

    @pytest.mark.mnode(nodes=2)
    def test_two(world, process_group, request): waits(world, request)

    @pytest.mark.mnode(nodes=1)
    def test_one(world, process_group): pass
"""
BOOTED = """
    def test_first(world, process_group, request): waits(world, request)

    def test_second(world, process_group): assert world.size == 2
"""


def test_a_run_from_the_login_node(slurm: SlurmOnRack, tmp_path: Path) -> None:
    write_files(tmp_path, test_it=OUTSIDE)
    nodes = "--mnode-slurm-args=--partition=all --time=5 --nodelist=node[0-1]"
    spec = spec_for(slurm, tmp_path, "slurm", power=None)
    args = ("--mnode-launcher=slurm", "--mnode-nodes=2", nodes, spec, *COVERAGE, "test_it.py")
    beside = {"PYTHONPATH": str(released_plugins())}
    run = run_pytest(slurm, tmp_path, *args, env=beside)
    assert run.returncode == 0, run.output
    assert "mnode: launcher slurm (requested), 2 nodes" in run.output
    assert 'assert os.uname().nodename == "node1"' in lines_run(tmp_path), run.output
    assert [job.state for job in slurm.queue()] in ([], ["COMPLETING"])
    assert list(tmp_path.glob(".mnode-*")) == []
    slurm.await_that(lambda: not slurm.queue(), 30, "the allocation is given back")


def test_a_rank_is_debugged_by_slurm(slurm: SlurmOnRack, tmp_path: Path) -> None:
    options = ("--mnode-launcher=slurm", "--mnode-slurm-args=--nodelist=node[0-1]")
    debug(slurm, tmp_path, *options, spec_for(slurm, tmp_path, "slurm", power=None))


def test_a_run_on_free_nodes(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """Another job has node0: the run requests two others by name, and gets them at once."""
    slurm.run("sbatch", "--nodelist=node0", "--exclusive", "--wrap=sleep 300", cwd=tmp_path)
    slurm.await_that(lambda: slurm.nodes()["node0"].state == "ALLOCATED", 30, "node0 is taken")
    body = "def test_names(cluster): assert cluster.nodes == ('node1', 'node2')"
    write_files(tmp_path, test_it=body)
    run = run_pytest(
        slurm,
        tmp_path,
        *("--mnode-launcher=slurm", "--mnode-nodes=free:2", "--mnode-history=kept"),
        *(spec_for(slurm, tmp_path, "slurm", power=None), "test_it.py"),
    )
    assert run.returncode == 0, run.output
    assert "2 nodes × 1 = 2 ranks" in run.output
    assert "of the free nodes node[1-2]" in run.output


def test_a_run_in_a_batch_job(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """The script is a task on the first node, with task variables that ranks must not inherit."""
    write_files(tmp_path, test_it=BATCH)
    spec = spec_for(slurm, tmp_path, "slurm", power=None)
    pytest_there = shlex.join(junit_command(tmp_path, "--mnode-nodes=2", spec, "test_it.py"))
    output = tmp_path / "output"
    done = slurm.run(
        *("sbatch", "--wait", "--nodes=3", "--exclusive", "--no-kill", "--ntasks-per-node=1"),
        *(f"--output={output}", "--cpus-per-task=1", f"--wrap={pytest_there}"),
        cwd=tmp_path,
        check=False,
        limit_s=120,
    )
    printed = output.read_text()
    assert done.returncode == 0, printed
    assert "mnode: launcher slurm (inside of job " in printed
    assert "2 passed" in printed


def running(
    slurm: SlurmOnRack, directory: Path, *args: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A run of test_it.py whose temporary files are in its directory."""
    option, env = own_temporary(directory)
    given = ("--mnode-launcher=slurm", option, *args, "test_it.py")
    return running_pytest(slurm, directory, *given, env=env)


def await_busy(
    slurm: SlurmOnRack, program: subprocess.Popen[str], directory: Path, ranks: int
) -> None:
    def busy() -> bool:
        return program.poll() is not None or len(list(directory.glob(f"busy{ranks}-*"))) == ranks

    slurm.await_that(busy, 90, f"{ranks} ranks are busy")


def test_nodes_lost_during_a_run_are_named(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """One after the other: powered off, cut off, set DOWN by Slurm. The other nodes go on."""
    write_files(tmp_path, test_it=WAITS + LOSSES)
    spec = spec_for(slurm, tmp_path, "slurm", power=None)
    with running(slurm, tmp_path, "--mnode-nodes=4", spec) as program:
        await_busy(slurm, program, tmp_path, 4)
        slurm.power_off("node3")
        await_busy(slurm, program, tmp_path, 3)
        slurm.set_links("node2", up=False)
        await_busy(slurm, program, tmp_path, 2)
        slurm.down("node1", "broken fan")
        output, _ = program.communicate(timeout=60)
    run = InnerRun(program.returncode, output, tmp_path / "junit.xml")
    failures = {name: case.findtext("failure", "") for name, case in run.cases().items()}
    assert run.outcomes()["test_one"] == "passed", output
    assert "node3 is lost: the connection was lost" in failures["test_four"], failures
    assert "node2 is lost: the connection was lost" in failures["test_three"], failures
    assert "node1 is lost: " in failures["test_two"], failures
    # Reported by srun at once, in its current words, or by Slurm when it is queried again.
    words = ("Node failure on node1", "CANCELLED", "node1: task 0: Killed", "broken fan")
    assert any(why in failures["test_two"] for why in words), failures
    assert "node0 is lost" not in output


def test_a_node_that_lost_power_unexpectedly_is_booted(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """Slurm calls it alive until SlurmdTimeout, so the launcher tries a command on the node."""
    write_files(tmp_path, test_it=WAITS + BOOTED)
    args = ("--mnode-nodes=2", spec_for(slurm, tmp_path, "slurm"))
    with running(slurm, tmp_path, *args, "--mnode-slurm-args=--nodelist=node[0-1]") as program:
        await_busy(slurm, program, tmp_path, 2)
        slurm.power_off("node1")
        output, _ = program.communicate(timeout=80)
    run = InnerRun(program.returncode, output, tmp_path / "junit.xml")
    assert run.outcomes() == {"test_first": "failure", "test_second": "passed"}, output
    assert "node1 is lost: " in run.cases()["test_first"].findtext("failure", "")


def test_without_slurm_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    missing = "Slurm is not installed: srun, salloc, sbatch, scontrol not found in PATH"
    with pytest.raises(UsageError, match=f"^--mnode-launcher=slurm: {missing}$"):
        choose(Settings(launcher="slurm"), 2, load_spec(default_spec_path()), [], tmp_path)
