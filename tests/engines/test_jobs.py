"""Jobs that tests launch on a real Slurm: submitted, requeued by Slurm, never left behind.

The run holds one CPU of each of its nodes, so that a job fits beside it.
"""

from __future__ import annotations

import signal
from pathlib import Path

from tests.engines.inside import own_temporary, run_pytest, running_pytest, spec_for
from tests.engines.job_helpers import JOB_HELPERS, PREEMPTED, assert_passed, write
from tests.engines.slurm import SlurmOnRack

SHARED = "--mnode-slurm-args=--exclusive=user --ntasks-per-node=1 --cpus-per-task=1 --time=10"
HELPERS = (
    JOB_HELPERS
    + """
    from pytest_mnode.jobs.slurm import sbatch
    from pytest_mnode.jobs.slurm.submitted import SubmittedJob
    from pytest_mnode.criteria.launching.slurm import submission as sbatch_path
    from pytest_mnode.criteria.launching.paths import NotSubmittedError
    from pytest_mnode.launchers.slurm import Slurm
    from pytest_mnode.launchers.slurm.jobs import jobs_from_text

    @pytest.fixture
    def place(tmp_path):
        return tmp_path

    def started(job):
        assert Slurm().job(job.number).restarts == job.requeue
        return {(node, pid) for node in job.nodes for pid in job.pids(node)}

    CONTRACT = ("python", f"{JOBS}/contract.py", "--meet=none")

    def queued():
        text = Slurm().run("scontrol", "--oneliner", "show", "job")
        return [j for j in jobs_from_text(text) if j.name.startswith("mnode-") and not j.over]
"""
)

TESTS = (
    HELPERS
    + PREEMPTED
    + """
    def test_submitted_and_seen_in_the_queue(cluster, argv, tmp_path):
        job = cluster.launch(Job(argv, nodes=2, restarts=2))
        assert isinstance(job, SubmittedJob)
        until(job, " 0 0 2 fab0 =fab0 node")
        [there] = queued()
        assert (there.job_id, there.state, there.nodes) == (job.number, "RUNNING", job.nodes)
        assert job.nodes == ("node0", "node1") and len(job.pids("node0", 0)) == 1
        assert len(job.kill(rank=1)) == 1
        (tmp_path / "broken.0.0").touch()
        until(job, " 0 1 2 fab0 =fab0 node")
        with pytest.raises(TimeLimitError, match="the job still runs on node0, node1 after 0.2 s"):
            job.wait(0.2)
        (tmp_path / "done").touch()
        assert job.wait(40).returncodes == {"node0": 0, "node1": 0}
        assert whats(job) == ["submitted", "started", "signalled", "ended", "ended"]
        assert queued() == []
        files = job._files
        job.close()
        assert not files.exists()

    def test_cancelled_by_somebody_else(cluster, argv):
        job = cluster.launch(quick(argv, nodes=1))
        until(job, " 0 0 1 fab0")
        subprocess.run(["scancel", str(job.number)], check=True)
        assert not job.wait(40).ok
        assert job.events[-1].detail.startswith("Slurm ended it: CANCELLED")

    def test_closed_while_it_waits(cluster, argv, monkeypatch):
        first = cluster.launch(quick(argv, nodes=1))
        until(first, " 0 0 1 fab0")
        # Where Slurm foretells that it would wait, it is not submitted.
        monkeypatch.setattr(sbatch, "why_not_submitted", lambda *_: "")
        job = cluster.launch(quick(argv, nodes=1))
        assert job.poll() is None and Slurm().job(job.number).state == "PENDING"
        job.close()
        job.close()
        assert [j.job_id for j in queued()] == [first.number]
        first.close()
        assert queued() == []

    def test_what_would_never_start_runs_as_steps_and_says_so(cluster, argv, tmp_path):
        job = cluster.launch(quick(argv, nodes=2, procs_per_node=2))
        assert not isinstance(job, SubmittedJob)
        detail = job.events[0].detail
        assert detail.startswith(f"node0, node1 (as steps of allocation {cluster.allocation}: ")
        assert "this run holds the nodes: a submitted job would start at" in detail
        until(job, " 0 0 4 fab0")
        (tmp_path / "done").touch()
        assert job.wait(40).ok and queued() == []

    @pytest.mark.parametrize("style", ["torchrun", "megatron"])
    def test_job_files_by_sbatch(cluster, style, measure):
        wanted = read_job(Path(JOBS) / f"{style}.yaml")
        wanted = wanted.model_copy(update={"ranks_per_node": 1}).placed(2, 0)
        if style == "megatron":
            command = [w for w in wanted.command if not w.startswith("--tensor")]
            wanted = wanted.model_copy(update={"command": tuple(command)})
        path = path_of(cluster)
        assert (path.name, path.runs_images) == ("sbatch", False)
        nodes = ["node2", "node1"] if style == "megatron" else ["node0", "node1"]
        started = start(path, wanted, nodes, style, 90)
        print(started.text())
        assert started.submitted.nodes == tuple(sorted(nodes))
        assert started.outcome.codes == dict.fromkeys(sorted(nodes), 0), started.text()
        assert [r.rank for r in started.outcome.reports] == [0, 1]
        assert all(r.met is not None and r.met.size == 2 for r in started.outcome.reports)
        judge(cluster, measure, started, nodes)
        assert queued() == []

    def test_a_site_that_hands_on_everything_is_found_out(cluster, monkeypatch):
        monkeypatch.setenv("SBATCH_EXPORT", "ALL")  # it wins over the script's own option
        monkeypatch.setenv("SBATCH_JOB_NAME", "other")
        started = start(path_of(cluster), plain(1, *CONTRACT), ["node0"], "leaky", 60)
        found = leaked(started.expected, started.outcome.reports)
        assert found and "MNODE_CANARY" in found[0], started.text()

    def test_a_step_that_slurm_does_not_start_proves_nothing(cluster):
        wanted = read_job(Path(JOBS) / "deepspeed.yaml").placed(2, 0)  # more CPUs than the run has
        with pytest.raises(NotSubmittedError, match="srun: .*; let the run's allocation leave"):
            start(path_of(cluster), wanted, ["node1", "node0"], "many", 60)
        assert queued() == []

    def test_at_its_limit_a_script_is_out_of_the_queue(cluster):
        wanted = plain(2, "sh", "-c", "setsid sleep 3141 & sleep 3141")
        submission = path_of(cluster).submit(wanted, cluster.nodes[:2])
        outcome = submission.wait(3)
        assert outcome.codes == {"node0": None, "node1": None}
        assert queued() == []
        left = cluster.run(["pgrep", "-f", "sleep 3141"], cluster.nodes[:2])
        assert [r.stdout for r in left] == ["", ""]

    # Last: Slurm does not give the node back to the allocation of the run.
    def test_a_lost_node_is_replaced_by_slurm(cluster, argv, tmp_path):
        job = cluster.launch(quick(argv, nodes=2, requeues=1, spares=["node2"]))
        until(job, " 0 0 2 fab0 =fab0 node")
        cluster.power_off("node1")
        subprocess.run(["scontrol", "update", "nodename=node1", "state=down", "reason=test"])
        until(job, " 1 0 2 fab0", ["node0", "node2"])
        assert job.nodes == ("node0", "node2")
        assert [e.node for e in job.events if e.what == "node lost"] == ["node1"]
        assert [e.detail for e in job.events if e.what == "requeued"] == ["node1 is gone"]
        (tmp_path / "done").touch()
        assert job.wait(40).ok
"""
)


STEPS = (
    HELPERS
    + """
    # Job files of the other styles run so in test_whole.py.
    def test_a_script_that_would_never_start_runs_in_the_allocation(cluster, measure):
        wanted = read_job(Path(JOBS) / "deepspeed.yaml").placed(2, 0)
        nodes = ["node2", "node1"]
        started = start(path_of(cluster), wanted, nodes, "deepspeed", 90)
        print(started.text())
        note = started.submitted.notes[0]
        begin = f"srun started it as a step of allocation {cluster.allocation}: allocation "
        assert note.startswith(begin), note
        assert started.submitted.nodes == ("node1", "node2")  # Slurm's order
        assert started.outcome.codes == {"node1": 0, "node2": 0}, started.text()
        judge(cluster, measure, started, nodes)
        assert queued() == []

    def test_variables_that_reach_a_step_are_found_out(cluster, monkeypatch):
        given = sbatch_path.LOGIN
        monkeypatch.setattr(sbatch_path, "LOGIN", [*given, "MNODE_CANARY"])
        started = start(path_of(cluster), plain(1, *CONTRACT), ["node1"], "leaky", 60)
        found = leaked(started.expected, started.outcome.reports)
        assert found and "MNODE_CANARY" in found[0], started.text()

    def test_at_its_limit_a_step_has_ended(cluster):
        wanted = plain(2, "sh", "-c", "sleep 3143 & sleep 3143")
        submission = path_of(cluster).submit(wanted, cluster.nodes[:2])
        outcome = submission.wait(3)
        assert outcome.codes == {"node0": None, "node1": None}
        left = cluster.run(["pgrep", "-f", "sleep 3143"], cluster.nodes[:2])
        assert [r.stdout for r in left] == ["", ""]
"""
)


def test_jobs_of_a_run_that_leaves_them_room(slurm: SlurmOnRack, tmp_path: Path) -> None:
    write(tmp_path, TESTS)
    spec = spec_for(slurm, tmp_path, "jobs on slurm")
    args = ("--mnode-launcher=slurm", "--mnode-nodes=3", SHARED, spec, "--durations=12")
    option, env = own_temporary(tmp_path)
    run = run_pytest(slurm, tmp_path, *args, option, "test_it.py", env=env, limit_s=420)
    assert_passed(run, 12)


def test_scripts_run_as_steps_of_a_run_that_holds_whole_nodes(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    write(tmp_path, STEPS)
    spec = spec_for(slurm, tmp_path, "steps on slurm")
    args = ("--mnode-launcher=slurm", "--mnode-nodes=3", spec, "--durations=12")
    assert_passed(run_pytest(slurm, tmp_path, *args, "test_it.py", limit_s=300), 3)


WAITS = (
    HELPERS
    + """
    def test_it(cluster, argv):
        job = cluster.launch(quick(argv, nodes=1, requeues=1))
        until(job, " 0 0 1 fab0")
        Path("started").touch()
        time.sleep(120)
"""
)


def test_a_killed_controller_leaves_no_job(slurm: SlurmOnRack, tmp_path: Path) -> None:
    write(tmp_path, WAITS)
    args = ("--mnode-launcher=slurm", "--mnode-nodes=2", SHARED)
    spec = spec_for(slurm, tmp_path, "x")
    with running_pytest(slurm, tmp_path, *args, spec, "test_it.py") as inner:
        slurm.await_that((tmp_path / "started").exists, 90, "the job runs")
        assert len(slurm.queue()) == 2
        inner.send_signal(signal.SIGKILL)
        slurm.await_that(lambda: not slurm.queue(), 40, "nothing of it is queued")
        slurm.await_idle()
        rank = ["pgrep", "-f", "rank.py"]
        slurm.await_that(
            lambda: slurm.run(*rank, on="node0", check=False).stdout == "", 30, "no rank is left"
        )
