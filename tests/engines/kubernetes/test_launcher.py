"""Runs whose nodes are pods of a real Kubernetes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_mnode.launchers.kubernetes.launcher import KEEP_PODS
from pytest_mnode.launchers.kubernetes.manifest import RUN_LABEL
from tests.acceptance.certified import ACCEPTANCE
from tests.engines.debugged import debug
from tests.engines.inside import COVERAGE, lines_run, run_pytest, running_pytest
from tests.engines.kubernetes.bed import KubernetesOnRack, on_nodes
from tests.inner import released_plugins, write_files

MEET = """
    import os
    import torch
    import torch.distributed as dist

    def test_every_rank_meets(world, process_group, shared_tmp_path):
        (shared_tmp_path / str(world.rank)).touch()
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == world.size == 4 == len(os.listdir(shared_tmp_path))
        if world.rank == 3:
            assert world.node == "node3"

    def test_commands(cluster):
        assert cluster.nodes == ("node0", "node1", "node2", "node3")
        done = cluster.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
        assert [(d.returncode, d.stdout, d.stderr) for d in done] == [(7, "out\\n", "err\\n")] * 4
"""
LAUNCHED = f"""
    from pathlib import Path
    from pytest_mnode.criteria.launching.styles import read_job
    from pytest_mnode.criteria.launching.starting import judged_place
    from pytest_mnode.criteria.launching.starting import path_of, start

    def test_a_job_of_the_launch_criterion(cluster, measure):
        wanted = read_job(Path("{ACCEPTANCE.parent}/fixtures/jobs/deepspeed.yaml"))
        wanted = wanted.model_copy(update={{"ranks_per_node": 1}}).placed(2, 0)
        started = start(path_of(cluster), wanted, ["node2", "node1"], "deepspeed", 90)
        assert started.submitted.notes[0] == "submitted as a Job with pods of its own"
        met = [(r.rank, r.node, r.met.size) for r in started.outcome.reports if r.met]
        assert met == [(0, "node2", 2), (1, "node1", 2)], started.text()
        addresses = {{node: cluster.address(node) for node in cluster.nodes}}
        measure.record(judged_place(started, ["node2", "node1"], addresses))
"""
HANG = """
    import time

    def test_hangs(world):
        print("hangs", flush=True)
        if world.rank == 0:
            open("begun", "w").close()
        time.sleep(120)
"""
AFTER = """
    def test_ranks_meet(world, process_group):
        assert world.size == 2

    def test_the_address_is_its_own(cluster):
        first = cluster.nodes[0]
        assert cluster.free_port(first)
        open("address", "w").write(cluster.address(first))
"""


@pytest.fixture(autouse=True)
def nothing_left(bed: KubernetesOnRack) -> Any:
    yield
    bed.await_that(lambda: bed.get("jobs,pods")["items"] == [], 30, "no job, no pod")


@pytest.mark.parametrize("host_network", [True, False], ids=["host network", "own addresses"])
def test_ranks_in_pods_meet(bed: KubernetesOnRack, tmp_path: Path, host_network: bool) -> None:
    write_files(tmp_path, test_it=MEET, test_launched=LAUNCHED)
    options = bed.launch(tmp_path, hostNetwork=host_network)
    beside = {"PYTHONPATH": str(released_plugins())}
    run = run_pytest(bed, tmp_path, "-v", "--mnode-nodes=4", *COVERAGE, *options, env=beside)
    assert run.returncode == 0, run.output
    assert "kubernetes" in run.output
    assert 'assert world.node == "node3"' in lines_run(tmp_path), run.output


def test_a_rank_is_debugged_in_a_pod(bed: KubernetesOnRack, tmp_path: Path) -> None:
    debug(bed, tmp_path, *bed.launch(tmp_path, hostNetwork=True))


def test_a_deleted_pod_is_named_and_another_takes_its_place(
    bed: KubernetesOnRack, tmp_path: Path
) -> None:
    """The pod has its own address, at which ranks meet; test_faults has pods on hostNetwork."""
    write_files(tmp_path, test_hang=f"{HANG}\n{AFTER}")
    # Otherwise the new pod may start on one of the other nodes.
    options = bed.launch(tmp_path, affinity=on_nodes("node0", "node1"))
    with running_pytest(bed, tmp_path, "--mnode-nodes=2", *options) as program:
        bed.await_that((tmp_path / "begun").exists, 60, "ranks run")
        node, pod = first_pod(bed)
        bed.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        output, _ = program.communicate(timeout=120)
    assert f"node {node} is lost: its pod was deleted" in output
    assert "1 failed, 2 passed" in output, output
    assert (tmp_path / "address").read_text() != pod["status"]["podIP"]


def test_a_new_pod_on_another_node_is_named_and_not_waited_for(
    bed: KubernetesOnRack, tmp_path: Path
) -> None:
    write_files(tmp_path, test_hang=f"{HANG}\n{AFTER}")
    options = bed.launch(tmp_path, hostNetwork=True)
    with running_pytest(bed, tmp_path, "--mnode-nodes=2", *options) as program:
        bed.await_that((tmp_path / "begun").exists, 60, "ranks run")
        node, pod = first_pod(bed)
        bed.kubectl("cordon", node)
        try:
            bed.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
            output, _ = program.communicate(timeout=120)
        finally:
            bed.kubectl("uncordon", node)
    moved = rf"booted again: {node} has no pod any more: its new pod mnode-\S+ is on (node\d); "
    found = re.search(moved + re.escape(KEEP_PODS), output)
    assert found, output
    assert found[1] != node


def first_pod(bed: KubernetesOnRack) -> tuple[str, Any]:
    """The first node of a run, and its pod."""
    pods = {pod["spec"]["nodeName"]: pod for pod in bed.get("pods")["items"]}
    return min(pods.items())


def test_pods_end_by_themselves_if_they_cannot_be_deleted(
    bed: KubernetesOnRack, tmp_path: Path
) -> None:
    """The controller is killed while the API server is gone, and then its clean-up process."""
    shorter = "import pytest_mnode.launchers.kubernetes.launcher as it; it.SILENCE_S = 10.0"
    write_files(tmp_path, test_hang=HANG, conftest=shorter)
    options = bed.launch(tmp_path, hostNetwork=True)
    pod = json.loads((tmp_path / "pods.json").read_text())
    spec = {"template": {"spec": pod["spec"]}, "ttlSecondsAfterFinished": 1}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}
    (tmp_path / "pods.json").write_text(json.dumps(job))
    with running_pytest(bed, tmp_path, "--mnode-nodes=2", *options) as program:
        bed.await_that((tmp_path / "begun").exists, 60, "ranks run")
        [run] = {job["metadata"]["labels"][RUN_LABEL] for job in bed.get("jobs")["items"]}
        ours = {*psutil.Process(program.pid).children(recursive=True)} - {*cleanup_processes(run)}
        bed.kill_daemon("apiserver")
        try:
            program.send_signal(signal.SIGKILL)
            program.communicate(timeout=30)
            _, left = psutil.wait_procs(ours, timeout=30)
            assert not left
            cleanup = cleanup_processes(run)
            for process in cleanup:
                process.kill()
            assert cleanup
            assert not psutil.wait_procs(cleanup, timeout=30)[1]
        finally:
            bed.start_api_server()
        bed.await_that(bed.answers, 60, "the API server is back")
    assert bed.get("jobs")["items"], "another process deleted the pods"
    bed.await_that(lambda: bed.get("jobs,pods")["items"] == [], 60, "no job, no pod")


def cleanup_processes(run: str) -> list[psutil.Process]:
    """The process that goes on deleting the objects of a run, before what it has started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if run in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda one: one.create_time())


def refused(bed: KubernetesOnRack, directory: Path, *options: str) -> str:
    """Output of a run that gets no pods."""
    write_files(directory, test_meet=MEET)
    run = run_pytest(bed, directory, "--mnode-nodes=2", *options)
    assert run.returncode != 0
    assert "Traceback" not in run.output
    return run.output


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (
            {"nodeSelector": {"rack": "9"}},
            ["--mnode-k8s-wait=4"],
            "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector",
        ),
        ({}, ["--mnode-python=/no/python"], '"/no/python": stat /no/python: no such file'),
        ({}, ["--mnode-k8s-context=other"], "--mnode-k8s-context=other: no usable Kube"),
    ],
    ids=["no node fits", "no Python", "no context"],
)
def test_the_reason_for_missing_pods_is_printed(
    bed: KubernetesOnRack, tmp_path: Path, spec: dict[str, Any], options: list[str], message: str
) -> None:
    output = refused(bed, tmp_path, *bed.launch(tmp_path, **spec), *options)
    assert message in output, output
