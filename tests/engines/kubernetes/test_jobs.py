"""Jobs that tests launch in pods: separate Jobs, deleted and created again, never left behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.certified import ACCEPTANCE, certificate_of, promised
from tests.engines.inside import run_pytest, running_pytest, spec_for
from tests.engines.job_helpers import JOB_HELPERS, PREEMPTED, assert_passed, write
from tests.engines.kubernetes import evicting
from tests.engines.kubernetes.bed import KubernetesOnRack, on_nodes
from tests.engines.kubernetes.gang_engines import GPU, Kueue, add_priorities, give_gpus
from tests.inner import InnerRun

HELPERS = (
    JOB_HELPERS
    + """
    import dataclasses, json
    from pytest_mnode.criteria.launching import kubernetes as pods
    from pytest_mnode.jobs import RunningJob
    from pytest_mnode.jobs.kubernetes.pod_job import PodJob

    @pytest.fixture
    def place(request):
        # In the directory of the tests, which all pods mount.
        place = Path.cwd() / request.node.name
        place.mkdir()
        return place

    def started(job):
        [there] = jobs()
        assert there["metadata"]["name"] == job.name
        return {job.name}

    def kubectl(*words):
        argv = ["kubectl", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def jobs():
        kind = os.environ["KIND"]
        found = json.loads(kubectl("get", kind, "-l", "pytest-mnode/job", "-o", "json"))
        return found["items"]
"""
)
TESTS = (
    HELPERS
    + PREEMPTED
    + """
    def test_a_job_of_its_own(cluster, argv, place):
        job = cluster.launch(quick(argv, nodes=2, procs_per_node=2))
        assert isinstance(job, PodJob)
        until(job, " 0 0 4 fab0 =fab0 node")
        [there] = jobs()
        [owner] = there["metadata"]["ownerReferences"]
        assert there["metadata"]["name"] == job.name
        assert owner["kind"] == there["kind"] == os.environ["KIND"]
        assert job.nodes == ("node0", "node1") and len(job.pids("node1", 3)) == 1
        with pytest.raises(TimeLimitError, match="the job still runs on node0, node1 after 0.2 s"):
            job.wait(0.2)
        assert len(job.kill(rank=3)) == 1
        (place / "done").touch()
        result = job.wait(40)
        assert (result.returncodes["node0"], result.ok) == (0, False)
        assert whats(job)[:3] == ["submitted", "started", "signalled"]
        assert sorted(e.detail for e in job.events if e.what == "ended") == ["status 0", "status 1"]
        job.close()
        job.close()
        assert jobs() == [] and job.pids("node0") == []

    def test_a_pod_that_somebody_deletes_is_named_and_all_is_made_again(cluster, argv, place):
        job = cluster.launch(quick(argv, nodes=2, requeues=1))
        until(job, " 0 0 2 fab0")
        where = ["-l", f"pytest-mnode/job={job.name}", "--field-selector=spec.nodeName=node1"]
        kubectl("delete", "pod", "--wait=false", *where)
        # A rank that dies takes its world along.
        (place / "broken.0.0").touch()
        until(job, " 1 0 2 fab0")
        ended = [e.detail for e in job.events if e.what == "ended" and e.node == "node1"]
        assert ended[0].endswith(", its pod was deleted"), ended
        assert [e.detail for e in job.events if e.what == "requeued"] == ["preempted"]
        (place / "done").touch()
        assert job.wait(40).ok

    # Job files of the other styles start so in test_whole.py.
    def test_a_job_of_the_launch_criterion(cluster, measure):
        wanted = read_job(Path(JOBS) / "deepspeed.yaml")
        wanted = wanted.model_copy(update={"ranks_per_node": 2}).placed(2, 0)
        nodes = ["node1", "node0"]
        started = start(path_of(cluster), wanted, nodes, "deepspeed", 90)
        print(started.text())
        notes = started.submitted.notes
        assert notes[0] == f"submitted as a {os.environ['KIND']} with pods of its own", notes
        assert [r.met.size for r in started.outcome.reports if r.met] == [4] * 4, started.text()
        judge(cluster, measure, started, nodes)
        assert jobs() == []

    def test_what_leaks_into_pods_and_what_does_not_end_is_found(cluster, monkeypatch):
        contract = f"python {JOBS}/contract.py --meet=none; setsid sleep 3141"
        wanted = plain(1, "sh", "-c", contract)
        given = pods.Order
        leaky = lambda argv, _, *more, **text: given(argv, dict(os.environ), *more, **text)
        monkeypatch.setattr(pods, "Order", leaky)
        started = start(path_of(cluster), wanted, ["node1"], "leaky", 15)
        found = leaked(started.expected, started.outcome.reports)
        assert found and "MNODE_CANARY" in found[0], started.text()
        assert started.overdue == ["node1"] and jobs() == []

    def test_what_would_not_start_runs_in_the_pods_of_the_run_and_says_why(
        cluster, argv, place, monkeypatch
    ):
        manifest = json.loads(json.dumps(cluster.job_facts.manifest))
        manifest["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "999"}}
        large = dataclasses.replace(cluster.job_facts, manifest=manifest)
        monkeypatch.setattr(type(cluster), "job_facts", large)
        job = cluster.launch(quick(argv, nodes=2))
        assert type(job) is RunningJob and jobs() == []
        detail = job.events[0].detail
        assert detail.startswith("node0, node1 (in the run's own pods: Kubernetes would not ")
        assert "Insufficient cpu" in detail
        until(job, " 0 0 2 fab0")
        (place / "done").touch()
        assert job.wait(40).ok
"""
)
WAITS = (
    HELPERS
    + """
    def test_it(cluster, argv):
        job = cluster.launch(quick(argv, nodes=2))
        until(job, " 0 0 2 fab0")
        Path("started").touch()
        time.sleep(120)
"""
)


@pytest.fixture(autouse=True)
def nothing_left(bed: KubernetesOnRack) -> Iterator[None]:
    yield
    bed.await_that(lambda: bed.get("jobs,pods")["items"] == [], 60, "no job, no pod")


def run_tests(bed: KubernetesOnRack, directory: Path, kind: str, *names: str) -> InnerRun:
    write(directory, TESTS)
    spec = spec_for(bed, directory, "jobs in pods")
    options = bed.launch(directory, hostNetwork=True, affinity=on_nodes("node0", "node1"))
    if kind == "JobSet":
        template = directory / "pods.json"
        pod = json.loads(template.read_text())
        around = {"spec": {"template": {"spec": pod["spec"]}}}
        sets = {"replicatedJobs": [{"name": "node", "template": around}]}
        made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": kind, "spec": sets}
        template.write_text(json.dumps(made))
    chosen = ["-k", " or ".join(names)] if names else []
    args = ("--mnode-nodes=2", *options, spec, "--durations=12", "test_it.py", *chosen)
    return run_pytest(bed, directory, *args, limit_s=300, env={"KIND": kind})


def test_jobs_of_a_run_in_pods(bed: KubernetesOnRack, tmp_path: Path) -> None:
    assert_passed(run_tests(bed, tmp_path, "Job"), 7)


def test_jobs_have_the_kind_of_the_template(
    bed: KubernetesOnRack, jobset: None, tmp_path: Path
) -> None:
    """Of a run whose own pods belong to a JobSet as well."""
    chosen = ("test_a_job_of_its_own", "test_a_pod_that_somebody_deletes")
    assert_passed(run_tests(bed, tmp_path, "JobSet", *chosen), 2)


def test_a_killed_controller_leaves_no_job(bed: KubernetesOnRack, tmp_path: Path) -> None:
    """The pods have their own addresses."""
    write(tmp_path, WAITS.replace("fab0", "None"))
    options = bed.launch(tmp_path)
    with running_pytest(bed, tmp_path, "--mnode-nodes=2", *options, "test_it.py") as inner:
        bed.await_that((tmp_path / "started").exists, 90, "the job runs")
        assert len(bed.get("jobs")["items"]) == 2
        inner.send_signal(signal.SIGKILL)


def test_an_evicted_job_resumes_from_its_checkpoint(
    bed: KubernetesOnRack, kueue: Kueue, tmp_path: Path
) -> None:
    """acceptance/test_restart.py, with a gang of a higher priority that preempts the job.

    test_whole covers a lost node with the same kind of job.
    """
    give_gpus(bed)
    add_priorities(bed)
    kill = "test_a_killed_job_comes_back_and_loses_nothing"
    changes = {"kills": ["preemption"], "within": "120 s", "pause": "0.3 s"}
    restart = promised("restart") | changes
    spec = spec_for(bed, tmp_path, "jobs are evicted", criteria={"restart": restart})
    options = bed.launch(tmp_path, hostNetwork=True)
    pod = json.loads((tmp_path / "pods.json").read_text())
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    template = tmp_path / "gpu.json"
    template.write_text(json.dumps(pod))
    scheduler = {"engine": "kueue", "queue": "cluster"}
    run = run_pytest(
        bed,
        tmp_path,
        *("--mnode-nodes=2", *options, spec, "-p", evicting.__name__, "--mnode-env=EVICTED"),
        *("-k", kill, "-rA", f"--mnode-report={tmp_path}/report"),
        str(ACCEPTANCE / "test_restart.py"),
        env={"EVICTED": json.dumps({"scheduler": scheduler, "template": str(template)})},
        limit_s=300,
    )
    cases = certificate_of(run, tmp_path / "report").cases("restart")
    assert cases[f"{kill}[preemption]"]["verdict"] == "pass", run.output
    assert "submitted: Job mnode-job-" in run.output, run.output
    assert "in the run's own pods" not in run.output
    assert "its pod was" in run.output, run.output
