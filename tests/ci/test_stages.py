""".ci/run: which stages run with which files, their times, and what is kept as passed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ci.running import ROOT, program
from tests.reached import ALL, STAGES

STAGES_OF_ALL = [
    *("environment", "bare", "programs", "test", "red", "engines", "machines", "total"),
]


@dataclass(frozen=True)
class Run:
    """A run of .ci/run: its exit status, the commands it gave, and its output."""

    status: int
    calls: list[str]
    output: str

    @property
    def timed(self) -> list[str]:
        """Stages in the summary."""
        lines = self.output.rpartition("== environment ")
        return re.findall(r"^== (\w+) +\d+ s", lines[1] + lines[2], re.MULTILINE)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    return tmp_path


def run(clone: Path, plan: dict[str, str], fails: str = "no target", **env: str) -> Run:
    """Run it with programs that record their calls. fails: make's target that fails with 7."""
    calls = clone / "calls"
    note = f'printf "%s\\n" "${{0##*/}} $*" >>{shlex.quote(str(calls))}'
    lines = "\n".join(f"{stage}: {plan.get(stage, '')}" for stage in STAGES)
    program(clone / "bin" / "dpkg-query", "echo installed")
    program(clone / "bin" / "git", "echo abc")
    program(clone / "bin" / "make", f'{note}\ncase " $* " in *" {fails} "*) exit 7 ;; esac')
    program(clone / ".venv/bin/python", f"{note}\necho {shlex.quote(lines)}")
    done = subprocess.run(
        [clone / ".ci" / "run"],
        env={"PATH": f"{clone / 'bin'}:{os.environ['PATH']}", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    called = [call for call in calls.read_text().splitlines() if call != "make --version"]
    return Run(done.returncode, called, done.stdout)


def test_all_tests_are_kept_as_passed(clone: Path) -> None:
    done = run(clone, dict.fromkeys(STAGES, ALL))
    assert done.status == 0, done.output
    assert done.calls == [
        "make environment",
        "python -m tests.reached",
        "make test-bare",
        "make --jobs=2 engines machines frameworks",
        "make test",
        "make test-red",
        "make test-engines",
        "make test-machines",
        "python -m tests.reached --passed abc",
    ]
    assert done.timed == STAGES_OF_ALL


def test_on_a_slow_machine_the_longest_tests_are_named_and_not_run(clone: Path) -> None:
    for name in ("test_a.py", "test_whole.py", "kubernetes/test_b.py", "kubernetes/test_whole.py"):
        path = clone / "tests" / "engines" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    done = run(clone, dict.fromkeys(STAGES, ALL), CI_LATE_S="-1")
    assert done.status == 0, done.output
    assert done.calls[-2:] == [
        "make test-engines TESTS=tests/engines/kubernetes/test_b.py tests/engines/test_a.py",
        "make test-machines TESTS=tests/machines/test_rdma.py",
    ], "and nothing is kept as passed"
    assert "NOT RUN are the whole suite" in done.output
    some = run(clone, {"test": "a.py", "engines": "tests/engines/test_whole.py"}, CI_LATE_S="-1")
    assert some.calls[-1] == "make test-engines TESTS=tests/engines/test_whole.py"
    assert "NOT RUN" not in some.output


def test_some_tests_run_only_where_there_are_some_and_are_not_kept_as_passed(clone: Path) -> None:
    done = run(clone, {"test": "tests/a.py tests/b.py", "engines": "tests/engines/c.py"})
    assert done.status == 0, done.output
    assert done.calls[2:] == [
        "make test-bare TESTS=tests/a.py tests/b.py",
        "make --jobs=2 engines",
        "make test TESTS=tests/a.py tests/b.py",
        "make test-engines TESTS=tests/engines/c.py",
    ]
    assert done.timed == [s for s in STAGES_OF_ALL if s not in ("red", "machines")]


@pytest.mark.parametrize(("fails", "last"), [("test-bare", "bare"), ("test-red", "red")])
def test_a_stage_that_fails_ends_the_run_and_is_timed(clone: Path, fails: str, last: str) -> None:
    done = run(clone, dict.fromkeys(STAGES, ALL), fails)
    assert done.status == 7
    assert done.calls[-1] == f"make {fails}"
    assert done.timed == [*STAGES_OF_ALL[: STAGES_OF_ALL.index(last) + 1], "total"]
    assert re.search(rf"^== {last} +\d+ s  exit status 7$", done.output, re.MULTILINE)


def test_lint_and_types_are_checked_where_no_test_is_reached(clone: Path) -> None:
    done = run(clone, {"red": "tests/acceptance/a.py"})
    assert done.status == 0, done.output
    asked = ["make --jobs=2 frameworks", "make check", "make test-red TESTS=tests/acceptance/a.py"]
    assert done.calls[2:] == asked
