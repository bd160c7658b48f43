"""Continuous integration chooses tests by what changed: never too few."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests import reached
from tests.inner import need_program
from tests.reached import STAGES, WHOLE, Plan, Uses, inner, is_test, plan, read

GONE_PAGE, GONE_LOG = "docs/gone.md", "fixtures/logs/gone-2.30.log"
CLEANUP = {
    "tests/controller/test_terminated.py",
    "tests/launchers/test_cleanup.py",
    "tests/test_leaves_nothing.py",
}


@pytest.fixture(scope="module")
def graph() -> Iterator[Uses]:
    """Of the tree as it is, with two files of data that are not there any more."""
    spec = importlib.util.find_spec("pytest_mnode")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    with pytest.MonkeyPatch.context() as patch:
        # A clone adds its root to the package's path.
        patch.setattr(spec, "submodule_search_locations", spec.submodule_search_locations[:1])
        yield reached.uses(reached.tracked() | {GONE_PAGE, GONE_LOG})


def chosen(made: Plan) -> set[str]:
    assert made.reason is None, made.reason
    return {file for files in made.files.values() for file in files}


@pytest.mark.parametrize(
    ("changed", "runs", "leaves_out"),
    [
        (
            "pytest_mnode/gang/judging.py",
            "gang/test_judging engines/test_gang engines/kubernetes/test_gang",
            "logs/test_nccl_log worlds/test_raising machines/test_rdma engines/test_ssh",
        ),
        (
            "pytest_mnode/criteria/scaling/judge.py",
            "criteria/scaling/test_plan acceptance/test_ports_turn_red",
            "acceptance/test_groups_turn_red machines/test_rdma machines/test_acceptance",
        ),
        (
            "pytest_mnode/criteria/preflight/node_probe.py",  # a program of -m
            "acceptance/test_preflight_turns_red machines/test_acceptance",
            "test_table",
        ),
        (
            "pytest_mnode/launchers/kubernetes/bridge.py",
            "engines/kubernetes/test_launcher",
            "engines/test_ssh engines/test_slurm_runs worlds/test_raising",
        ),
        ("pytest_mnode/jobs/slurm/on_node.py", "engines/test_jobs", "engines/test_ssh test_table"),
        (
            "pytest_mnode/logs/causes/find.py",
            "logs/test_causes",
            "engines/test_jobs acceptance/test_loads_turn_red machines/test_rdma",
        ),
        (
            "pytest_mnode/checks/node/mtu.py",  # preflight runs it, which only two stages are about
            "acceptance/test_preflight_turns_red machines/test_rdma",
            "engines/test_jobs",
        ),
        (
            "pytest_mnode/controller/worlds.py",
            "controller/test_session engines/test_ssh",
            "acceptance/test_loads_turn_red machines/test_rdma",
        ),
        ("pytest_mnode/agent/agent.py", "worlds/test_raising engines/test_ssh", "test_table"),
        ("pytest_mnode/rank/entry.py", "worlds/test_raising gpu/test_rack", "test_table"),
        ("pytest_mnode/launchers/rack/enter.py", "launchers/test_enter test_cluster", "test_table"),
        ("pytest_mnode/launchers/remote/node_command.py", "machines/test_bed", "test_table"),
        ("pytest_mnode/machine/__main__.py", "discover/test_on_rack", "test_table"),
        ("pytest_mnode/certificate/page/parts.html.j2", "certificate/test_page", "test_table"),
        ("pytest_mnode/logs/causes/known.toml", "logs/test_causes", "test_table"),
        ("fixtures/logs/rail-down-2.23.log", "logs/test_nccl_log", "gang/test_judging"),
        ("fixtures/clusters/rack.yaml", "spec/test_load test_cluster", "test_table"),
        ("fixtures/ci/prolog.sh", "ci/test_health_check", "logs/test_nccl_log"),
        ("docs/slurm.md", "ci/test_health_check", "test_table engines/test_slurm_runs"),
        ("acceptance/test_scaling.py", "acceptance/test_scaling_turns_red", "test_table"),
        ("tests/worlds/scenarios/raising.py", "worlds/test_raising", "test_table"),
        ("tests/recorded.py", "machine/test_pci", "test_table"),
        ("tests/machine/conftest.py", "machine/test_tcp", "test_table spec/test_load"),
        ("tests/engines/slurm.py", "engines/test_slurm_runs", "engines/test_ssh"),
        ("tests/engines/ssh.py", "engines/test_ssh", "engines/test_slurm_runs"),
        ("tests/engines/kubernetes/pause/main.go", "engines/kubernetes/test_faults", "test_table"),
        ("tests/machines/guest/init.sh", "machines/test_bed", "engines/test_ssh"),
        ("tests/test_table.py", "test_table", "test_measure"),
        (GONE_PAGE, "ci/test_ready_jobs", "test_table"),
        (GONE_LOG, "logs/test_nccl_log", "test_table"),
    ],
)
def test_tests_that_a_change_reaches_run(
    graph: Uses, changed: str, runs: str, leaves_out: str
) -> None:
    found = chosen(plan([changed], graph))
    assert {f"tests/{name}.py" for name in runs.split()} <= found
    assert not {f"tests/{name}.py" for name in leaves_out.split()} & found
    assert found >= CLEANUP


@pytest.mark.parametrize(
    "changed",
    [
        *("pyproject.toml", "Makefile", ".ci/run", ".ci/bare", ".gitignore", "conftest.py"),
        *("tests/conftest.py", "tests/again.py", "tests/reached.py", "tests/red.py"),
        "tests/plugins.txt",
        *("pytest_mnode/gone.py", "tests/gone.py", "acceptance/test_gone.py"),  # removed
        *("a-new-file", "pytest_mnode/new.css"),
    ],
)
def test_what_is_unsure_runs_all(graph: Uses, changed: str) -> None:
    made = plan(["tests/test_table.py", changed], graph)
    assert made.reason is not None
    assert changed in made.reason
    assert str(made) == "".join(f"{stage}: ALL\n" for stage in STAGES)


def test_without_a_change_of_what_tests_use_only_leftovers_are_tested(graph: Uses) -> None:
    found = chosen(plan(["CHANGELOG.md", "tests/test_gone.py"], graph))
    assert found >= CLEANUP
    of_steps = {test for test in found if "::" in test}
    assert len(of_steps) > 100
    assert len(found - of_steps) < 15


def test_whole_suites_run_with_all_tests_or_if_they_changed(graph: Uses) -> None:
    assert graph.files >= WHOLE
    assert not WHOLE & chosen(plan(["pytest_mnode/controller/worlds.py"], graph))
    for test in WHOLE:
        assert WHOLE & chosen(plan([test], graph)) == {test}


def test_each_test_belongs_to_a_stage_once(graph: Uses) -> None:
    made = plan(["pytest_mnode/processes.py"], graph)
    files = [file for files in made.files.values() for file in files]
    assert sorted(files) == sorted(set(graph.tests) - WHOLE)  # with no single tests
    assert set(made.files["red"]) == {
        test for test in graph.tests if test.startswith("tests/acceptance/")
    }


def test_a_change_of_any_module_runs_the_tests_that_import_it(graph: Uses) -> None:
    missing = [
        f"{test} imports {module}"
        for test in graph.tests
        for module in _imported(test)
        if module in graph.files and test not in graph.tests_by_use[module]
    ]
    assert not missing


def test_every_module_of_the_package_is_used_by_a_test(graph: Uses) -> None:
    used = graph.tests_by_use.keys()
    modules = {
        file for file in graph.files if file.startswith("pytest_mnode/") and file[-3:] == ".py"
    }
    # `python -m pytest_mnode` is in no test's imports, and a change of it runs all.
    assert modules - used <= {"pytest_mnode/__main__.py"}


def _imported(test: str) -> Iterable[str]:
    """Files of the modules that a test imports, also inside functions, and as attributes."""
    todo: list[ast.AST] = [ast.parse(read(test))]
    while todo:
        node = todo.pop()
        todo += inner(node)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            path = name.replace(".", "/")
            yield from (f"{path}.py", f"{path}/__init__.py")


def _git(directory: Path, *argv: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e")
    run = ["git", "-C", str(directory), *who, *argv]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()


def _commit(directory: Path, name: str) -> str:
    (directory / name).write_text(name)
    _git(directory, "add", "--all")
    _git(directory, "commit", "--quiet", "--message", name)
    return _git(directory, "rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, and nothing known to have passed."""
    need_program("git", "git")
    directory = tmp_path / "clone"
    directory.mkdir()
    _git(directory, "init", "--quiet")
    _commit(directory, "first")
    monkeypatch.setattr(reached, "ROOT", directory)
    monkeypatch.setenv("CI_PASSED", str(tmp_path / "cache" / "passed.json"))
    monkeypatch.delenv("CI_ALL", raising=False)
    return directory


def test_a_commit_that_passed_is_built_on(clone: Path) -> None:
    first = _git(clone, "rev-parse", "HEAD")
    assert reached.last_passed()[1] is not None
    reached.record(first)
    _commit(clone, "second")
    assert reached.last_passed() == (first, None)


def test_all_tests_run_if_that_was_long_ago(clone: Path) -> None:
    reached.record(_git(clone, "rev-parse", "HEAD"))
    for days, runs_all in ((reached.MOST_DAYS - 0.1, False), (reached.MOST_DAYS + 0.1, True)):
        then = time.time() - days * 86_400
        os.utime(reached.passed_file(), (then, then))
        assert ("days ago" in (reached.last_passed()[1] or "")) is runs_all


def test_a_commit_is_not_kept_if_the_working_tree_is_another(clone: Path) -> None:
    first = _git(clone, "rev-parse", "HEAD")
    (clone / "new").touch()
    reached.record(first)
    assert not reached.passed_file().exists()
    _commit(clone, "second")
    reached.record(first)
    assert not reached.passed_file().exists()


def test_a_commit_of_another_branch_is_not_built_on(clone: Path) -> None:
    first = _git(clone, "rev-parse", "HEAD")
    other = _commit(clone, "other")
    reached.record(other)
    _git(clone, "reset", "--quiet", "--hard", first)
    _commit(clone, "second")
    commit, reason = reached.last_passed()
    assert commit == other
    assert reason is not None
    assert "ancestor" in reason
    assert reached.plan_here().reason == reason


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"commit": "COMMIT", "environment": "another"}', "packages"),
        ('{"commit": "0123456789", "environment": "SAME"}', "ancestor"),
        ('{"commit": "COMMIT"}', "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_a_record_that_does_not_hold_here_runs_all(clone: Path, text: str, word: str) -> None:
    head = _git(clone, "rev-parse", "HEAD")
    reached.record(head)
    same = json.loads(reached.passed_file().read_text())["environment"]
    reached.passed_file().write_text(text.replace("COMMIT", head).replace("SAME", same))
    reason = reached.plan_here().reason
    assert reason is not None
    assert word in reason


def test_all_tests_run_on_demand(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached.record(_git(clone, "rev-parse", "HEAD"))
    monkeypatch.setenv("CI_ALL", "1")
    assert reached.plan_here().reason == "CI_ALL is set"


def test_every_kind_of_change_counts(clone: Path) -> None:
    for name in ("edited", "removed", "moved", "a name with blanks"):
        passed = _commit(clone, name)
    (clone / "edited").write_text("staged")
    _git(clone, "add", "edited")
    (clone / "removed").unlink()
    _git(clone, "mv", "moved", "elsewhere")
    (clone / "a name with blanks").write_text("edited")
    (clone / "new").touch()
    _commit(clone, "later")
    (clone / "not yet tracked").touch()
    expected = {"edited", "removed", "moved", "elsewhere", "a name with blanks"}
    assert reached.changed_since(passed) == expected | {"new", "later", "not yet tracked"}


def test_without_git_the_graph_has_the_same_files(
    graph: Uses, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    kinds = (".py", ".yaml")
    found = {file for file in reached.tracked() if file.endswith(kinds)}
    assert found == {file for file in graph.files if file.endswith(kinds)}


def test_names_of_tests_are_told_from_helpers() -> None:
    assert is_test("tests/gang/test_judging.py")
    assert not is_test("acceptance/test_gang.py")
    assert not is_test("tests/gang/simulated.py")
