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
"""
FORK_SERVER = """
    def test_fork_server_dies(world): kill("mnode-collect", world)
    def test_after_fork_server(world): assert world.size == 2
    def test_later(world): assert world.size == 2
"""


def test_an_elastic_launcher_is_replaced(tmp_path: Path) -> None:
    need_rack()
    write_files(tmp_path, test_it=TESTS)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=rack")
    assert run.outcomes() == {
        "test_launcher_dies": "failure",
        "test_after_launcher": "passed",
    }, run.output
    failure = run.cases()["test_launcher_dies"].find("failure")
    assert failure is not None
    assert "rank 1 of 2 on node1" in str(failure.get("message"))
    assert "the elastic launcher of this node ended" in str(failure.get("message"))


def test_without_a_fork_server_the_run_ends_with_the_reason(tmp_path: Path) -> None:
    write_files(tmp_path, test_it=TESTS + FORK_SERVER)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    assert run.returncode == pytest.ExitCode.INTERRUPTED, run.output
    outcomes = run.outcomes()
    assert outcomes["test_after_launcher"] == "passed", run.output
    assert outcomes["test_fork_server_dies"] == "failure"
    # Its ranks may have been asked for before the death was reported.
    assert outcomes["test_after_fork_server"] in ("error", "failure")
    why = "the process that imports torch and the tests was killed by SIGKILL"
    assert "no ranks can be started: " in run.output
    assert f"local0 … local1: {why}" in run.output
