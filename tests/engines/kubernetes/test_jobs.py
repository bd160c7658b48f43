"""Jobs that tests launch in pods: separate Jobs, deleted and created again, never left behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.certified import ACCEPTANCE
from tests.engines.inside import page_for, run_pytest, running_pytest, spec_for
from tests.engines.job_helpers import JOB_HELPERS, PREEMPTED, QUICK
from tests.engines.kubernetes import evicting
from tests.engines.kubernetes.bed import KubernetesOnRack, on_nodes
from tests.engines.kubernetes.gang_engines import GPU, Kueue, add_priorities, give_gpus
from tests.inner import InnerRun, write_files
from tests.jobs.ranks import RANK

HELPERS = (
    JOB_HELPERS
    + """
    import dataclasses, json, os, signal, subprocess
    from pathlib import Path
    import pytest
    from pytest_mnode.criteria.launching import pods
    from pytest_mnode.criteria.launching.starting import path_of
    from pytest_mnode.criteria.launching.contract import leaked
    from pytest_mnode.criteria.launching.job_file import LaunchJob, read_job
    from pytest_mnode.criteria.launching.judge_start import judged_place, judged_start
    from pytest_mnode.criteria.launching.starting import start
    from pytest_mnode.errors import TimeLimitError
    from pytest_mnode.jobs import launch, RunningJob
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

    @pytest.mark.parametrize("style", ["deepspeed", "megatron"])
    def test_a_job_of_the_launch_criterion(cluster, measure, style):
        wanted = read_job(Path(JOBS) / f"{style}.yaml")
        wanted = wanted.model_copy(update={"ranks_per_node": 2}).placed(2, 0)
        nodes = ["node1", "node0"]
        started = start(path_of(cluster), wanted, nodes, style, 90)
        print(started.text())
        notes = started.submitted.notes
        assert notes[0] == f"submitted as a {os.environ['KIND']} with pods of its own", notes
        assert [r.met.size for r in started.outcome.reports if r.met] == [4] * 4, started.text()
        measure.record(judged_start(started, Promise(), "criteria.launch"))
        addresses = {node: cluster.address(node) for node in cluster.nodes}
        measure.record(judged_place(started, nodes, addresses))
        assert jobs() == []

    class Promise:
        within_s = 90.0

    def test_what_leaks_into_pods_and_what_does_not_end_is_found(cluster, monkeypatch):
        page = {"name": "a", "nodes": 1, "accelerators_per_node": 0, "style": "plain"}
        command = ["sh", "-c", f"python {JOBS}/contract.py --meet=none; setsid sleep 3141"]
        wanted = LaunchJob.model_validate(page | {"command": command}).placed(1, 0)
        given = pods.Order
        leaky = lambda argv, _, *more, **text: given(argv, dict(os.environ), *more, **text)
        monkeypatch.setattr(pods, "Order", leaky)
        started = start(path_of(cluster), wanted, ["node1"], "leaky", 15)
        found = leaked(started.expected, started.outcome.reports)
        assert found and "MNODE_CANARY" in found[0], started.text()
        assert started.overdue == ["node1"] and jobs() == []

    def test_what_would_not_start_runs_in_the_pods_of_the_run_and_says_why(cluster, argv, place):
        manifest = json.loads(json.dumps(cluster.pods.manifest))
        manifest["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "999"}}
        large = dataclasses.replace(cluster.pods, manifest=manifest)
        launcher = __import__("sys").modules["pytest_mnode.jobs.launch"]
        job = launcher._in_pods(cluster, quick(argv, nodes=2), large)
        cluster._jobs.append(job)
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
AS_JOBSET = ("test_a_job_of_its_own", "test_preempted_and_started_again",
             "test_a_pod_that_somebody_deletes_is_named_and_all_is_made_again")  # fmt: skip
LAUNCHED = "test_a_job_of_the_launch_criterion"
NAMES = [
    name
    for line in TESTS.splitlines()
    if "    def test_" in line
    for name in [line.split("(")[0].split()[1]]
    for name in (
        [f"{LAUNCHED}[deepspeed]", f"{LAUNCHED}[megatron]"] if name == LAUNCHED else [name]
    )
]


@pytest.fixture(autouse=True)
def nothing_left(bed: KubernetesOnRack) -> Iterator[None]:
    yield
    bed.await_that(lambda: bed.get("jobs,pods")["items"] == [], 60, "no job, no pod")


def write(directory: Path, tests: str) -> None:
    write_files(directory, test_it=tests)
    path = directory / "test_it.py"
    given = (RANK, QUICK, str(ACCEPTANCE.parent / "fixtures" / "jobs"))
    path.write_text(f"RANK, QUICK, JOBS = {given!r}\n{path.read_text()}")


@pytest.fixture(scope="module")
def run(bed: KubernetesOnRack, tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    return run_tests(bed, tmp_path_factory.mktemp("jobs"), "Job")


@pytest.fixture(scope="module")
def run_as_jobset(
    bed: KubernetesOnRack, jobset: None, tmp_path_factory: pytest.TempPathFactory
) -> InnerRun:
    """A run whose own pods belong to a JobSet as well."""
    return run_tests(bed, tmp_path_factory.mktemp("jobsets"), "JobSet", *AS_JOBSET)


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


@pytest.mark.parametrize("name", NAMES)
def test_inner_test_passed(run: InnerRun, name: str) -> None:
    assert run.outcomes().get(name) == "passed", run.output


@pytest.mark.parametrize("name", AS_JOBSET)
def test_jobs_have_the_kind_of_the_template(run_as_jobset: InnerRun, name: str) -> None:
    assert run_as_jobset.outcomes().get(name) == "passed", run_as_jobset.output


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
    kills = ["preemption"]
    promised = page_for(bed, "x")["criteria"]["restart"]
    restart = promised | {"kills": kills, "within": "120 s", "pause": "0.3 s"}
    spec = spec_for(bed, tmp_path, "jobs are evicted", criteria={"restart": restart})
    options = bed.launch(tmp_path, hostNetwork=True)
    pod = json.loads((tmp_path / "pods.json").read_text())
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    template = tmp_path / "gpu.json"
    template.write_text(json.dumps(pod))
    scheduler = {"engine": "kueue", "queue": "as-large-as-the-cluster"}
    run = run_pytest(
        bed,
        tmp_path,
        *("--mnode-nodes=2", *options, spec, "-p", evicting.__name__, "--mnode-env=EVICTED"),
        *("-k", kill, "-rA", f"--mnode-report={tmp_path}/report"),
        str(ACCEPTANCE / "test_restart.py"),
        env={"EVICTED": json.dumps({"scheduler": scheduler, "template": str(template)})},
        limit_s=300,
    )
    certificate = json.loads((tmp_path / "report" / "certificate.json").read_text())
    [criterion] = [c for c in certificate["criteria"] if c["name"] == "restart"]
    cases: dict[str, dict[str, Any]] = {c["test"].partition("::")[2]: c for c in criterion["cases"]}
    for one in kills:
        assert cases[f"{kill}[{one}]"]["verdict"] == "pass", run.output
    assert "submitted: Job mnode-job-" in run.output, run.output
    assert "in the run's own pods" not in run.output
    assert "its pod was" in run.output, run.output
