"""What becomes of a run whose own helpers on a node die."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import need_rack, run_pytest, write_files

TESTS = """
    import os, signal, time, psutil

    def kill(name, world):
        if world.rank == 1:
            for process in psutil.Process().parents():
                if process.name() == name:
                    process.kill()
                    break
            else:
                raise AssertionError(f"no {name}")
        time.sleep(20)

    def test_launcher_dies(world): kill("mnode-elastic", world)
    def test_after_launcher(world): assert world.size == 2
    def test_agent_dies(world): kill("mnode-agent", world)
    def test_after_agent(world): assert world.size == 2
"""


def test_on_the_rack_both_are_replaced(tmp_path: Path) -> None:
    need_rack()
    write_files(tmp_path, test_it=TESTS)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=rack")
    assert run.outcomes() == {
        "test_launcher_dies": "failure",
        "test_after_launcher": "passed",
        "test_agent_dies": "failure",
        "test_after_agent": "passed",
    }, run.output
    assert "node1" in str(run.cases()["test_agent_dies"].find("failure").get("message"))  # type: ignore[union-attr]


def test_a_node_that_cannot_be_booted_ends_the_run_with_its_name(tmp_path: Path) -> None:
    write_files(tmp_path, test_it=TESTS)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    outcomes = run.outcomes()
    assert outcomes["test_after_launcher"] == "passed", run.output
    assert outcomes["test_after_agent"] == "error"
    assert "local1 is lost: its agent ended; it could not be booted again" in run.output
