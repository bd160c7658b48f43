"""What a batch script's state in the queue means for its run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.criteria.launching.contract import leaked, wrong_variables
from pytest_mnode.criteria.launching.paths import NotSubmittedError, Submitted
from pytest_mnode.criteria.launching.reports import read_output
from pytest_mnode.criteria.launching.slurm import submission as module
from pytest_mnode.criteria.launching.slurm.script import (
    ADDED,
    SiteEnvironment,
    batch_lines,
    srun_takes_images,
    task_text,
    tasks_per_node,
)
from pytest_mnode.criteria.launching.slurm.submission import (
    Sbatch,
    SbatchSubmission,
    StepSubmission,
)
from pytest_mnode.criteria.launching.styles import LaunchJob
from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.slurm.nodes import Names
from pytest_mnode.jobs.slurm.sbatch import Request, script
from pytest_mnode.launchers.slurm import JobState
from pytest_mnode.launchers.slurm.nodes import nodes_from_text
from pytest_mnode.processes import has_ended
from tests.criteria.launching import made
from tests.programs import write_program
from tests.waiting import until

RUNS = JobState(7, "x", "RUNNING")


@pytest.mark.parametrize(
    ("answers", "state", "over"),
    [
        (False, None, False),  # nothing was ever heard of the job
        (False, RUNS, False),
        (True, RUNS, False),
        (True, JobState(7, "x", "FAILED"), True),
        (True, None, True),
    ],
)
def test_without_an_answer_of_slurm_the_wait_goes_on(
    answers: bool, state: JobState | None, over: bool
) -> None:
    submission = SbatchSubmission.__new__(SbatchSubmission)
    submission._queued = SimpleNamespace(answers=lambda: answers, state=state)  # type: ignore[assignment]
    assert submission._over() is over


def submission(files: Path, **texts: str) -> SbatchSubmission:
    """Two tasks on each of two nodes; one node has the same name as the start of the other."""
    page = {"name": "a", "nodes": 2, "accelerators_per_node": 0, "ranks_per_node": 2}
    made = SbatchSubmission.__new__(SbatchSubmission)
    made._job = LaunchJob.model_validate(page | {"command": ["x"], "style": "deepspeed"})
    made._files = files
    names = {"here": "gpu-1", "there": "gpu-1-2"}
    made._names = SimpleNamespace(slurm=names)  # type: ignore[assignment]
    made.submitted = SimpleNamespace(nodes=("here", "there"))  # type: ignore[assignment]
    for name, text in texts.items():
        (files / name.replace("_", "-")).write_text(text)
    return made


@pytest.mark.parametrize(("configured", "requested"), [("gpu:8", 8), ("(null)", 0)])
def test_a_script_without_room_becomes_a_step_with_the_gpus_that_slurm_has(
    configured: str, requested: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = nodes_from_text(f"NodeName=n1 State=IDLE Gres={configured}")
    held = JobState(7, "x", "RUNNING", nodes=("n1", "n2"))
    slurm = Mock(**{"nodes.return_value": there, "job.return_value": held})
    slurm.run.return_value = "JobId=7 Partition=gpu"
    why_not_submitted, step = Mock(return_value="full"), Mock()
    monkeypatch.setattr(module, "why_not_submitted", why_not_submitted)
    monkeypatch.setattr(module, "StepSubmission", step)
    Sbatch(Mock(**{"job_facts.names": {"n1": "n1"}}), 7, slurm, Mock()).submit(GPU_JOB, ["n1"])
    [[request, _]] = [call.args for call in why_not_submitted.mock_calls]
    [[_, _, names, gpus_per_node, note]] = [call.args for call in step.mock_calls]
    assert request.gpus_per_node == gpus_per_node == requested
    assert dict(names.slurm) == {"n1": "n1"}
    assert note == "srun started it as a step of allocation 7: full"


GPU_JOB = LaunchJob.model_validate(
    {"name": "a", "nodes": 1, "accelerators_per_node": 8, "command": ["x"], "style": "torchrun"}
).placed(1, 8)


def a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, srun: str) -> SbatchSubmission:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", srun), ("scontrol", "echo n1")):
        write_program(programs / name, f"#!/bin/sh\n{text}\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_login", lambda _: {"PATH": os.environ["PATH"]})
    monkeypatch.setenv("SLURM_NNODES", "9")
    cluster: Any = SimpleNamespace(
        allocation=7,
        scratch=str(tmp_path),
        python=sys.executable,
        free_port=lambda _: 29511,
        fabric_interface=lambda _: None,
    )
    return StepSubmission(cluster, GPU_JOB, Names({"host1": "n1"}), 8, "the queue is full")


def test_a_script_runs_as_a_step_on_the_nodes_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    made = a_step(tmp_path, monkeypatch, f'env >{record}; echo "ARGV $*" >>{record}; exit 1')
    with pytest.raises(NotSubmittedError):
        made.wait(20.0)
    text = record.read_text()
    options = text.partition("ARGV ")[2]
    for word in ("--jobid=7", "--nodes=1", "--nodelist=n1", "--overlap", "--gres=gpu:8"):
        assert word in options.split()
    exports = [word for word in options.split() if word.startswith("--export=")]
    assert exports[-1] == "--export=HOME,LANG,PATH,USER,MASTER_ADDR,MASTER_PORT"
    assert "MNODE_CANARY=" in text
    for line in ("SLURM_JOB_ID=7", "SLURM_NNODES=1", "SLURM_JOB_NODELIST=n1", "MASTER_PORT=29511"):
        assert line in text.splitlines()
    made.close()
    assert not list(tmp_path.glob("launch-*"))


def test_a_step_that_slurm_does_not_start_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = a_step(tmp_path, monkeypatch, "echo 'srun: error: no room in job 7' >&2; exit 1")
    why = "^not submitted: the queue is full; srun: no room in job 7; let the run's allocation "
    remedy = r"leave room .*, or set criteria\.launch\.path: direct in the spec if users start"
    with pytest.raises(NotSubmittedError, match=why + remedy):
        made.wait(20.0)
    made.close()


def test_a_step_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = a_step(tmp_path, monkeypatch, "exec sleep 60")
    outcome = made.wait(0.5)
    assert outcome.codes == {"host1": None}
    assert made._program.poll() is not None  # type: ignore[attr-defined]


def test_output_is_separated_by_node(tmp_path: Path) -> None:
    output = {"out_gpu_1_0": "a", "out_gpu_1_10": "b", "out_gpu_1_2_11": "c", "out_gpu_1_2_9": "d"}
    made = submission(tmp_path, **output)
    (tmp_path / "slurm.out").write_text("!")
    assert (made._output("here"), made._output("there")) == ("ab!", "dc")


def test_exit_statuses_are_counted_by_node(tmp_path: Path) -> None:
    codes = {"code_gpu_1_0": "0", "code_gpu_1_1": "0", "code_gpu_1_2_2": "3", "code_gpu_1_2_3": ""}
    made = submission(tmp_path, **codes)
    assert (made._code("here", True), made._code("there", True)) == (0, 3)
    assert made._code("there", False) == 3  # the other task waits for it
    (tmp_path / "code-gpu-1-2-2").unlink()
    assert (made._code("there", False), made._code("there", True)) == (None, 137)


def waiting(files: Path, state: JobState) -> SbatchSubmission:
    made = submission(files)
    made.submitted = Submitted(("here", "there"))
    made._directory = SimpleNamespace(cleanup=lambda: None)  # type: ignore[assignment]
    made._queued = Mock(state=state, number=7)
    made._began = time.monotonic()
    return made


def test_a_held_script_is_not_waited_for(tmp_path: Path) -> None:
    held = JobState(7, "x", "PENDING", reason="user_env_retrieval_failed_requeued_held")
    made = waiting(tmp_path, held)
    outcome = made.wait(60)
    assert outcome.codes == {"here": None, "there": None}
    assert outcome.waits == f"job 7 waits in the queue: PENDING ({held.reason})"
    calls = [name for name, *_ in made._queued.mock_calls]  # type: ignore[attr-defined]
    assert [name for name in calls if name != "answers"] == ["cancel", "await_end", "close"]


def test_a_script_that_waits_for_room_waits_until_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(time, "sleep", looks.append)
    made = waiting(tmp_path, JobState(7, "x", "PENDING", reason="Resources"))
    assert made.wait(0.05).waits == "job 7 waits in the queue: PENDING (Resources)"
    assert len(looks) > 1
    assert waiting(tmp_path, RUNS).wait(0.0).waits == ""


def test_a_step_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP_END_S", 0.2)
    made = a_step(tmp_path, monkeypatch, f"trap '' TERM; echo $$ > {tmp_path}/up; exec sleep 60")
    until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text())
    with pytest.raises(ClusterError, match=r"did not end its step within 0\.2 s"):
        made.close()
    assert has_ended(int((tmp_path / "up").read_text()))


JOBS = Path(__file__).parents[3] / "fixtures" / "jobs"
SAME = {"n0": {"GLOO_SOCKET_IFNAME": "lo"}, "n1": {"GLOO_SOCKET_IFNAME": "lo"}}
# Runs two nodes one after the other and the tasks of each at the same time, with srun's variables.
SRUN = """#!/bin/sh
tasks=1
while [ $# -gt 0 ]; do
    case "$1" in
    --ntasks-per-node=*) tasks=${1#*=} ;;
    --output=*) output=$(dirname "${1#*=}")/ ;;
    --*) ;;
    *) break ;;
    esac
    shift
done
number=0
for node in 0 1; do
    local=0
    while [ $local -lt $tasks ]; do
        SLURM_PROCID=$number SLURM_LOCALID=$local SLURM_NODEID=$node SLURMD_NODENAME=n$node \\
        SLURM_NTASKS=$((2 * tasks)) "$@" >"${output:-/dev/}null" &
        number=$((number + 1)) local=$((local + 1))
    done
done
wait
"""


def job(style: str, **fields: Any) -> LaunchJob:
    page = {"name": "a", "nodes": "all", "accelerators_per_node": 0, "ranks_per_node": 2}
    command = [sys.executable, str(JOBS / "contract.py"), "--limit=10", "it's"]
    page |= {"command": command, "style": style, "env": {"OWN": "a 'b'"}}
    return LaunchJob.model_validate(page | fields).placed(2, 0)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with as much of Slurm's commands as a script needs."""
    programs = tmp_path / "pro grams"
    programs.mkdir()
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/sh\necho localhost\necho n1\n"}.items():
        write_program(programs / name, text)
    (programs / "python").symlink_to(sys.executable)
    for name in ("sh", "head", "dirname"):
        (programs / name).symlink_to(str(shutil.which(name)))
    return programs


def sh(text: str, env: dict[str, str], *argv: str) -> None:
    done = subprocess.run(
        argv, input=text, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def run(wanted: LaunchJob, site: Path, tmp_path: Path) -> tuple[str, dict[str, int]]:
    """Output of all tasks, and their exit statuses by task."""
    directory = tmp_path / "it's shared"
    directory.mkdir()
    login = {"HOME": str(tmp_path), "USER": "u", "PATH": str(site), "LANG": "C.UTF-8"}
    around = SiteEnvironment(login, SAME, str(directory))
    task = directory / "task.sh"
    task.write_text(task_text(wanted, around))
    request = Request("x", 2, output="/dev/null", directory="/")
    text = script(request, batch_lines(wanted, around, str(task)))
    facts = {"SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_NUM_NODES": "2", "SLURM_EXPORT_ENV": "NONE"}
    sh(text, facts, "/bin/sh", "-e")
    output = "".join(path.read_text() for path in sorted(directory.glob("out-n*-*")))
    codes = {path.name: int(path.read_text()) for path in directory.glob("code-*")}
    return output, codes


@pytest.mark.parametrize("style", ["deepspeed", "megatron"])
def test_ranks_of_a_script_meet_in_the_right_environment(
    style: str, site: Path, tmp_path: Path
) -> None:
    wanted = job(style)
    if style == "megatron":
        wrapped = (str(JOBS / "megatron.sh"), *wanted.command)
        wanted = wanted.model_copy(update={"command": wrapped})
    output, codes = run(wanted, site, tmp_path)
    reports, _ = read_output(output)
    assert codes == {f"code-n{n}-{2 * n + t}": 0 for n in range(2) for t in range(2)}, output
    assert [report.met.size for report in reports if report.met] == [4] * 4
    assert {report.contract["MASTER_ADDR"] for report in reports} == {"localhost"}
    assert {report.arguments[-1] for report in reports} == {"it's"}
    assert all({"OWN", "HOME", "USER", "LANG"} <= report.names for report in reports)
    assert not any("SLURM_EXPORT_ENV" in report.names for report in reports)
    assert {report.contract["GLOO_SOCKET_IFNAME"] for report in reports} == {"lo"}


def test_a_failed_task_keeps_its_exit_status(site: Path, tmp_path: Path) -> None:
    wanted = job("plain", command=["sh", "-c", 'exit "$((SLURM_NODEID * 3))"'])
    assert run(wanted, site, tmp_path)[1] == {"code-n0-0": 0, "code-n1-1": 3}


def test_one_torchrun_per_node_with_slurms_node_number() -> None:
    wanted = job("torchrun", command=["python", "-u", "t.py", "--x"])
    text = task_text(wanted, SiteEnvironment({}, {}, "/s"))
    [line] = [line for line in text.splitlines() if "torch.distributed.run" in line]
    assert line == (
        'python -m torch.distributed.run --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 2 '
        '--node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" '
        "--log-dir /s/torchrun-$SLURM_NODEID --no-python python -u t.py --x"
    )
    assert [tasks_per_node(job(style)) for style in ("torchrun", "plain", "deepspeed")] == [1, 1, 2]


def test_interface_variables_that_differ_by_node_or_are_set_by_the_job(tmp_path: Path) -> None:
    pins = {"n0": {"A": "1", "B": "x"}, "n1": {"A": "1", "B": "y"}, "n2": {"A": "1", "B": "x"}}
    wanted = job("plain", command=["sh", "-c", 'echo "$A$B"'], env={"A": "own"})
    text = task_text(wanted, SiteEnvironment({}, pins, str(tmp_path)))
    for node, shown in (("n0", "ownx"), ("n1", "owny"), ("n2", "ownx")):
        env = {"SLURMD_NODENAME": node, "SLURM_PROCID": "0", "PATH": os.environ["PATH"], "A": "own"}
        sh(text, env, "sh")
        assert (tmp_path / f"out-{node}-0").read_text().strip() == shown


def test_an_image_is_passed_to_srun_if_it_has_the_plugin() -> None:
    wanted = job("plain", image="lab/torch:1")
    lines = batch_lines(wanted, SiteEnvironment({}, {}, "/s", image=True), "/s/task.sh")
    assert "--container-image=lab/torch:1 --container-mounts=/s:/s sh /s/task.sh" in lines[-1]
    assert "container" not in batch_lines(wanted, SiteEnvironment({}, {}, "/s"), "/s/task.sh")[-1]
    assert srun_takes_images("      --container-image=[USER@]…\n")
    assert not srun_takes_images("  --container              Path to OCI container bundle\n")


def test_variables_of_slurm_and_profile_are_not_leaks() -> None:
    outside = frozenset({"SLURM_JOB_ID", "PYENV_ROOT", "MNODE_CANARY"})
    wanted = made.expected(outside=outside)
    seen = made.right(wanted)
    seen = made.but(seen, 2, names=seen[2].names | {"SLURM_JOB_ID", "PYENV_ROOT"})
    seen = made.but(seen, 3, names=seen[3].names | outside)
    assert len(leaked(wanted, seen)) == 5
    found = leaked(replace(wanted, added=ADDED, profile=True), seen)
    assert [text.split()[2:4] for text in found] == [["3:", "MNODE_CANARY"], ["3:", "PYENV_ROOT"]]


def test_slurm_numbers_of_a_torchrun_task_are_not_ranks() -> None:
    wanted = made.expected("torchrun")
    task = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    reports = made.changed(made.right(wanted), 3, **task)
    assert wrong_variables(wanted, reports) == []
    [text] = wrong_variables(wanted, made.changed(reports, 3, SLURM_NODEID="2"))
    assert "SLURM_NODEID=" in text


def test_reports_are_read_by_launch_style() -> None:
    line = json.dumps({"mnode_rank": 1, "node": "n0", "contract": {"RANK": "1"}})
    [report], _ = read_output(f"3: {line}\n")
    assert report.rank == 1
