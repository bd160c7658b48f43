"""Each case of the acceptance suite is turned red by a run of it, or is excepted with a reason.

And claims of red runs are proven, and their repeats counted.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from pytest_mnode.evidence.check import catalogue
from tests.inner import run_pytest, write_files
from tests.red import MORE_REPEATS, case_name, claimed, turns_red

ROOT = Path(__file__).parents[1]
EXCEPTIONS: dict[str, str] = {
    "preflight::test_dcgm_nodes_pass": "No GPUs; results as DCGM writes them turn it red.",
    "preflight::test_peer_traffic_is_direct": "No accelerators; made trees turn it red.",
    "preflight::test_power_limits_are_as_promised": "No NVML; a stand-in turns it red.",
}
"""Why no run turns a case red."""


def _cases() -> set[str]:
    """By their text: some of these modules import torch where ranks are forked from."""
    checks = {
        case_name(f"acceptance/test_{one.key.partition('.')[0]}.py::{one.case()}")
        for one in catalogue()
    }
    return checks | {
        case_name(f"{path}::{test.name}")
        for path in (ROOT / "acceptance").glob("test_*.py")
        for test in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
    }


def _red() -> set[str]:
    """What tests claim to turn red; that they do is proven when they run."""
    found = set[str]()
    for path in (ROOT / "tests").glob("*/**/test_*.py"):
        if f"@{turns_red.__name__}(" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            tests = vars(importlib.import_module(name)).values()
            found |= set[str]().union(*map(claimed, tests))
    return found


def test_each_acceptance_case_is_turned_red_or_excepted() -> None:
    cases, red = _cases(), _red()
    assert len(cases) > 80
    none = set[str]()
    assert cases - red - set(EXCEPTIONS) == none, "add a run on nodes with a fault, or an exception"
    assert (red | set(EXCEPTIONS)) - cases == none, "these cases are no longer there"
    assert red & set(EXCEPTIONS) == none, "these cases are no exceptions any more"
    assert all(reason.endswith(".") for reason in EXCEPTIONS.values())


PLUGIN = """
    from tests.red import RedRuns

    def pytest_configure(config):
        config.pluginmanager.register(RedRuns())
"""
CLAIMS = """
    from types import SimpleNamespace

    import pytest
    from tests import red
    from tests.red import turns_red

    def run(**verdicts):
        cases = [
            {"test": f"acceptance/test_mesh.py::{name}[4-a/b::c]", "verdict": verdict}
            for name, verdict in verdicts.items()
        ]
        done = SimpleNamespace(certificate={"criteria": [{"cases": cases}]})
        red.register(done)
        return done

    @pytest.fixture(scope="module")
    def shared():
        return run(test_shared="fail")

    @turns_red("mesh", "test_shared", "test_own")
    def test_by_both(shared):
        run(test_own="fail")

    @turns_red("mesh", "test_own")
    def test_by_a_run_of_another_test(shared):
        pass

    @turns_red("mesh", "test_own")
    @pytest.mark.parametrize("verdict", ["pass", "inconclusive", "not promised"])
    def test_by_no_failure(verdict):
        run(test_own=verdict)

    @turns_red("data", "test_own")
    def test_by_another_file():
        run(test_own="fail")
"""
BUSY = """
    import pytest
    from tests import red

    @pytest.mark.parametrize("number", range(REPEATS))
    def test_busy(number):
        red.register_repeat(f"cores were busy, {number}")
"""


def test_a_claim_is_proven_by_runs_of_the_test_and_its_fixtures(tmp_path: Path) -> None:
    busy = BUSY.replace("REPEATS", "2")
    write_files(tmp_path, conftest=PLUGIN, test_it=CLAIMS, test_busy=busy)
    done = run_pytest(tmp_path, "-p", "no:mnode")
    outcomes = done.outcomes()
    passed = [name for name, outcome in outcomes.items() if outcome == "passed"]
    assert passed == ["test_busy[0]", "test_busy[1]", "test_by_both"], done.output
    assert len(outcomes) == 3 + 5
    assert "these cases did not fail: data::test_own" in done.output
    assert "2 red runs repeated, at most 2" in done.output
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, "two repeats are allowed"


def test_more_than_two_repeats_fail_a_stage(tmp_path: Path) -> None:
    write_files(tmp_path, conftest=PLUGIN, test_it=BUSY.replace("REPEATS", "3"))
    done = run_pytest(tmp_path, "-p", "no:mnode", "-n2")
    assert done.returncode == MORE_REPEATS, done.output
    assert "3 red runs repeated, at most 2" in done.output
    for number in range(3):
        assert f"test_busy[{number}]: cores were busy, {number}\n" in done.output
