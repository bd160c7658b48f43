"""Shipped jobs and scripts: they parse, and do what the documents say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.launchers.slurm.command_lines import QUEUE_LIMIT_S
from pytest_mnode.options import OPTIONS
from tests.ci.running import READY, ROOT

_FLAG = re.compile(r"(?<![\w-])--mnode-[a-z][a-z-]*[a-z]")
SCRIPTS = ("nightly.sbatch", "healthcheck.sh", "prolog.sh")
TEXTS = sorted([*READY.iterdir(), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_named_option_exists(path: Path) -> None:
    known = {option.flag for option in OPTIONS.values()} | {"--mnode-locate", "--mnode-plan"}
    assert set(_FLAG.findall(path.read_text())) <= known


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_bash_and_can_be_run(name: str) -> None:
    path = READY / name
    subprocess.run(["bash", "-n", path], check=True, timeout=60)
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


@pytest.mark.parametrize(
    ("name", "variables"),
    [("github.yml", ("jobs", "cluster", "env")), ("gitlab.yml", ("cluster", "variables"))],
)
def test_the_cluster_job_calls_only_programs_of_a_fresh_checkout(
    name: str, variables: tuple[str, ...]
) -> None:
    """A runner removes files that git ignores from its checkout, such as a .venv."""
    page = loaded(name)
    [program] = [
        shlex.split(line)[0] for line in commands_of(page) if "--mnode-launcher=slurm" in line
    ]
    for key in variables:
        page = page[key]
    assert Path(page[program.removeprefix("$")]).is_absolute()


def test_the_cluster_job_has_more_time_than_its_queue_and_its_allocation() -> None:
    """An hour in the queue, the value of --time, and the time to build and to write results."""
    hours = 1 + 2
    assert loaded("github.yml")["jobs"]["cluster"]["timeout-minutes"] >= (hours + 0.5) * 60
    words = loaded("gitlab.yml")["cluster"]["timeout"].split()
    given = dict(zip(words[1::2], map(int, words[::2]), strict=True))
    assert given["hours"] * 60 + given.get("minutes", 0) >= (hours + 0.5) * 60
    assert QUEUE_LIMIT_S == 3600


def test_the_github_job_is_valid() -> None:
    page = loaded("github.yml")
    assert set(page[True]) == {"pull_request", "schedule"}  # YAML reads the key "on" as true
    for job in page["jobs"].values():
        assert job["timeout-minutes"]
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
        [kept] = [s for s in job["steps"] if s.get("uses", "").startswith("actions/upload")]
        assert kept["if"] == "always()"


def test_the_gitlab_job_is_valid() -> None:
    page = loaded("gitlab.yml")
    jobs = {name: job for name, job in page.items() if name != "stages"}
    assert {job["stage"] for job in jobs.values()} == set(page["stages"])
    for job in jobs.values():
        assert job["artifacts"]["when"] == "always"
        assert job["artifacts"]["reports"]["junit"].endswith("junit.xml")
        assert job["timeout"]
