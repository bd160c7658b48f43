"""Batch scripts of each style: their lines, and their effect where a loop replaces srun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.launching.contract import leaked, wrong_variables
from pytest_mnode.criteria.launching.job_file import LaunchJob
from pytest_mnode.criteria.launching.reports import read_output
from pytest_mnode.criteria.launching.styles import (
    ADDED,
    SiteEnvironment,
    batch_lines,
    srun_takes_images,
    task_text,
    tasks_per_node,
)
from pytest_mnode.jobs.slurm.sbatch import Request, script
from tests.criteria.launching import made
from tests.programs import write_program

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
