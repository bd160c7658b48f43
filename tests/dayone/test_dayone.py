"""A project of real libraries gives the same results with all released plugins and without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.inner import InnerRun, released_libraries, released_plugins, run_pytest

PROJECT = Path(__file__).with_name("project")
FAILED = {
    "test_a_tensor_of_one_rank_meets_a_dtensor": "ranks 0-3 of 4 on local0,local1: RuntimeError",
    "test_one_replica_goes_astray": "rank 2 of 4 on local1: AssertionError",
}
WITH_PLUGINS = (
    *("--html=report.html", "--json-report", "--alluredir=allure", "--benchmark-json=bench.json"),
    *("--cov=.", "--cov-report=json", "--timeout=120", "--splits=1", "--group=1"),
    # Else a failure in the middle, after which ranks import all libraries again.
    "--randomly-dont-reorganize",
    *("--force-sugar", "-p", "no:subtests", "-p", "pytest_subtests.plugin"),
)


def run_project(directory: Path, *args: str, beside: tuple[Path, ...]) -> InnerRun:
    for source in PROJECT.glob("*.py"):
        name = "conftest.py" if source.stem == "conftest_of_all" else f"test_{source.name}"
        (directory / name).write_text(source.read_text())
    return run_pytest(
        directory,
        *("--mnode-nodes=2", "--mnode-procs-per-node=2", "--mnode-launcher=local", *args),
        env={"PYTHONPATH": os.pathsep.join(map(str, beside)), "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    """Without plugins a test that fails, and one that records a value, which use torch alone: each
    rank takes seconds to import the libraries."""
    chosen = "test_training.py", "-k", "ddp_trains or astray"
    directory = tmp_path_factory.mktemp("plain")
    return run_project(directory, *chosen, beside=(released_libraries(),))


@pytest.fixture(scope="module")
def beside_all(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    beside = (released_libraries(), released_plugins())
    return run_project(tmp_path_factory.mktemp("beside"), *WITH_PLUGINS, beside=beside)


def messages(run: InnerRun) -> dict[str, str]:
    """First line of the junit message of each test that did not pass."""
    return {
        name: str(child.get("message")).partition("\n")[0]
        for name, case in run.cases().items()
        for child in case
        if child.tag in ("failure", "error", "skipped")
    }


def recorded(run: InnerRun) -> dict[str, dict[str, str]]:
    """Properties recorded by the tests that record some."""
    found: dict[str, dict[str, str]] = {}
    for name in run.cases():
        for key, value in run.properties(name).items():
            if not key.startswith("mnode."):
                found.setdefault(name, {})[key] = value
    return found


def test_every_test_of_the_project_passes(beside_all: InnerRun) -> None:
    outcomes = beside_all.outcomes()
    assert len(outcomes) == 25
    failed = {name for name, outcome in outcomes.items() if outcome != "passed"}
    assert failed == set(FAILED), beside_all.output
    for name, message in FAILED.items():
        assert messages(beside_all)[name].startswith(message)
    assert "losses" in recorded(beside_all)["test_accelerate_prepares_and_gathers"]


def test_results_are_the_same_without_plugins(plain: InnerRun, beside_all: InnerRun) -> None:
    assert set(plain.outcomes().values()) == {"passed", "failure"}, plain.output
    assert plain.outcomes().items() <= beside_all.outcomes().items(), plain.output
    assert messages(plain).items() <= messages(beside_all).items()
    assert len(recorded(plain)) == 1
    assert recorded(plain).items() <= recorded(beside_all).items()


def test_the_plugins_were_loaded(beside_all: InnerRun) -> None:
    here = beside_all.junit.parent
    report = json.loads((here / ".report.json").read_text())
    assert report["summary"]["total"] == 25
    assert len(list((here / "allure").glob("*-result.json"))) == 25
    assert (here / "report.html").read_text().count("test_one_replica_goes_astray") >= 1
    totals = json.loads((here / "coverage.json").read_text())["files"]
    assert totals["test_sharding.py"]["summary"]["percent_covered"] == 100
    assert "Using --randomly-seed" in beside_all.output
