"""Jobs and scripts that are ready to be copied: they parse, and do what the documents say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.options import _OPTIONS

ROOT = Path(__file__).parents[2]
READY = ROOT / "fixtures/ci"
_FLAG = re.compile(r"(?<![\w-])--mnode-[a-z][a-z-]*[a-z]")
SCRIPTS = ("nightly.sbatch", "healthcheck.sh", "prolog.sh")
TEXTS = sorted([*READY.iterdir(), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_option_that_is_named_is_one(path: Path) -> None:
    known = {option.flag for option in _OPTIONS} | {"--mnode-locate"}
    assert set(_FLAG.findall(path.read_text())) <= known


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_bash_and_can_be_run(name: str) -> None:
    path = READY / name
    subprocess.run(["bash", "-n", path], check=True, timeout=10)
    assert path.read_text().startswith("#!/bin/bash\n")
    assert os.access(path, os.X_OK)


def loaded(name: str) -> dict[Any, Any]:
    page: dict[Any, Any] = yaml.safe_load((READY / name).read_text())
    return page


def commands_of(page: Any) -> Iterator[str]:
    """Every line that a job of GitHub or GitLab runs."""
    if isinstance(page, dict):
        for key, value in page.items():
            if key == "run":
                yield from str(value).splitlines()
            elif key == "script":
                yield from value
            else:
                yield from commands_of(value)
    elif isinstance(page, list):
        for value in page:
            yield from commands_of(value)


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_the_jobs_certify_on_slurm_and_test_without_a_cluster(name: str) -> None:
    commands = [shlex.split(line) for line in commands_of(loaded(name))]
    runs = [words for words in commands if any(word.endswith("pytest") for word in words[:3])]
    [rack, cluster] = runs
    assert "--mnode-nodes=4" in rack
    assert any(word.startswith("--junitxml=") for word in rack)
    assert "--mnode-launcher=slurm" in cluster
    assert "--mnode-slurm-args=--partition=gpu --exclusive --time=02:00:00" in cluster
    assert "--mnode-spec=cluster.yaml" in cluster
    assert "--mnode-report=mnode-report" in cluster
    assert "acceptance/" in cluster


def test_the_github_job_is_one() -> None:
    page = loaded("github.yml")
    assert set(page[True]) == {"pull_request", "schedule"}  # YAML takes the key "on" for true
    for job in page["jobs"].values():
        assert job["timeout-minutes"]
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
        [kept] = [s for s in job["steps"] if s.get("uses", "").startswith("actions/upload")]
        assert kept["if"] == "always()"


def test_the_gitlab_job_is_one() -> None:
    page = loaded("gitlab.yml")
    jobs = {name: job for name, job in page.items() if name != "stages"}
    assert {job["stage"] for job in jobs.values()} == set(page["stages"])
    for job in jobs.values():
        assert job["artifacts"]["when"] == "always"
        assert job["artifacts"]["reports"]["junit"].endswith("junit.xml")
        assert job["timeout"]


@dataclass(frozen=True)
class Ran:
    """How a script ended, what it called, and what it said."""

    status: int
    calls: tuple[str, ...]
    stderr: str


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that scripts have to quote."""
    path = tmp_path / "a 'place' of ours"
    (path / "bin").mkdir(parents=True)
    return path


def run(place: Path, script: str, pytest_does: str, **env: str) -> Ran:
    """Run a script where the programs that it calls only note that they were called."""
    calls = place / "calls"
    calls.touch()
    note = f'printf "%s\\n" "${{0##*/}} $*" >>{shlex.quote(str(calls))}'
    for name in ("scontrol", "logger", "sbatch"):
        program(place / "bin" / name, note)
    program(place / "python", f"{note}\n{pytest_does}")
    done = subprocess.run(
        [READY / script],
        env={
            "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
            "MNODE_ROOT": str(place),
            "MNODE_PYTHON": str(place / "python"),
            **env,
        },
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return Ran(done.returncode, tuple(calls.read_text().splitlines()), done.stderr)


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


SAID = """\
echo '..F'
echo '/a/plugin.py:236: Failed: fabric interfaces that are up: 0, "expected" at least 1'
echo 'FAILED acceptance/test_preflight.py::test_interfaces_are_up[node0]'
exit 1"""


@pytest.mark.parametrize("code", [0, 1, 2, 4, 143])
def test_the_night_ends_as_pytest_did(place: Path, code: int) -> None:
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_SUBMIT_DIR": "/nowhere"}
    ran = run(place, "nightly.sbatch", f"exit {code}", MNODE_SPEC="the spec.yaml", **allocation)
    assert ran.status == code
    [call] = ran.calls
    assert f"-m pytest {place}/acceptance --mnode-nodes=4 --mnode-spec=the spec.yaml" in call
    [report] = (place / "mnode-reports").iterdir()
    assert report.name.endswith("-7")
    assert f"--mnode-report={report}" in call


def test_the_night_is_submitted_again_whatever_came_of_it(place: Path) -> None:
    allocation = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_SUBMIT_DIR": "/nowhere",
        "SLURM_JOB_PARTITION": "big gpus",
        "SLURM_GPUS_PER_NODE": "8",
    }
    more = {"MNODE_SPEC": "spec.yaml", "MNODE_AGAIN": "yes"}
    ran = run(place, "nightly.sbatch", "exit 1", **allocation, **more)
    assert ran.status == 1
    again = ran.calls[-1]
    assert re.match(
        r"sbatch --begin=\d{4}-\d\d-\d\dT01:00:00 --nodes=4 --partition=big gpus", again
    )
    assert f"--gpus-per-node=8 {place}/fixtures/ci/nightly.sbatch" in again
    assert "--account" not in again


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_a_spec_a_script_says_which_variable_is_missing(place: Path, script: str) -> None:
    ran = run(place, script, "exit 0", SLURM_SUBMIT_DIR="/", SLURM_JOB_ID="7")
    assert ran.status != 0
    assert "set MNODE_SPEC to the page" in ran.stderr
    assert ran.calls == ()


def test_a_node_that_is_as_promised_is_left_alone(place: Path) -> None:
    ran = run(place, "healthcheck.sh", "exit 0", MNODE_SPEC="spec.yaml")
    assert ran.status == 0
    [call] = ran.calls
    assert "--mnode-launcher=local --mnode-nodes=1 --mnode-spec=spec.yaml" in call


def test_a_node_that_is_not_as_promised_is_drained_with_the_reason(place: Path) -> None:
    ran = run(place, "healthcheck.sh", SAID, MNODE_SPEC="s", SLURMD_NODENAME="gpu07")
    assert ran.status == 1
    [drained] = [call for call in ran.calls if call.startswith("scontrol")]
    assert drained.startswith("scontrol update nodename=gpu07 state=drain reason=mnode: fabric")
    assert drained.endswith("interfaces that are up: 0, expected at least 1")


@pytest.mark.parametrize("code", [2, 3, 4, 5, 124])
def test_a_check_that_could_not_run_drains_nothing(place: Path, code: int) -> None:
    ran = run(place, "healthcheck.sh", f"echo ERROR: no such spec; exit {code}", MNODE_SPEC="s")
    assert ran.status == 0
    assert not any(call.startswith("scontrol") for call in ran.calls)
    assert any(f"did not run (status {code}): ERROR: no such spec" in call for call in ran.calls)


def test_a_check_that_hangs_ends_at_its_limit(place: Path) -> None:
    ran = run(place, "healthcheck.sh", "exec sleep 60", MNODE_SPEC="s", MNODE_SECONDS="1")
    assert ran.status == 0
    assert any("did not run (status 124)" in call for call in ran.calls)


def test_the_prolog_fails_and_leaves_draining_to_slurm(place: Path) -> None:
    ran = run(place, "prolog.sh", SAID, MNODE_SPEC="s")
    assert ran.status == 1
    assert not any(call.startswith("scontrol") for call in ran.calls)


def test_the_questions_of_the_check_are_those_of_one_node() -> None:
    """A test of preflight that is renamed must not leave the check without it."""
    text = (READY / "healthcheck.sh").read_text()
    match = re.search(r'^questions="(.*?)"', text, re.DOTALL | re.MULTILINE)
    assert match is not None
    words = match[1].replace("\\\n", "").split(" or ")
    names = re.findall(
        r"^def (test_\w+)", (ROOT / "acceptance/test_preflight.py").read_text(), re.M
    )
    chosen = {word.strip(): [n for n in names if word.strip() in n] for word in words}
    assert all(chosen.values()), chosen
    asked = {name for found in chosen.values() for name in found}
    others = {"reached", "names_are", "packets", "clocks", "same", "environment", "ties", "shared"}
    left = [n for n in names if n not in asked and not any(word in n for word in others)]
    assert left == []
