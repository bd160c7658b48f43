"""Runs whose helper processes on this machine die; for the rack see test_worlds.py."""

from __future__ import annotations

import pytest

from tests.inner import InnerRun, run_pytest, write_files

TESTS = """
    import os, pathlib, signal, subprocess, time, psutil

    def test_leaves_an_orphan(world):
        subprocess.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"])

    def kill(name, world):
        pathlib.Path(f"{name}.{world.rank}").write_text(str(os.getpid()))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # torch has the kernel send it
        if world.rank == 1:
            for process in psutil.Process().parents():
                if process.name() == name:
                    process.kill()
                    break
            else:
                raise AssertionError(f"no {name}")
        time.sleep(600)

    def test_launcher_dies(world): kill("mnode-elastic", world)
    def test_after_launcher(world):
        assert world.size == 2
        end = time.monotonic() + 120
        while psutil.pid_exists(int(pathlib.Path("mnode-elastic.1").read_text())):
            assert time.monotonic() < end, "the rank outlives its launcher"
            time.sleep(0.02)
    def test_fork_server_dies(world): kill("mnode-collect", world)
    def test_after_fork_server(world): assert world.size == 2
    def test_later(world): assert world.size == 2
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("agents")
    write_files(directory, test_it=TESTS)
    return run_pytest(directory, "--mnode-nodes=2", "--mnode-launcher=local")


def test_processes_that_lost_their_parent_are_found(ran: InnerRun) -> None:
    assert ran.outcomes()["test_leaves_an_orphan"] in ("error", "failure"), ran.output
    assert "sleep" in ran.output


def test_an_elastic_launcher_is_replaced(ran: InnerRun) -> None:
    assert ran.outcomes()["test_after_launcher"] == "passed", ran.output
    failure = ran.cases()["test_launcher_dies"].find("failure")
    assert failure is not None, ran.output
    assert "rank 1 of 2 on local1" in str(failure.get("message"))
    assert "the elastic launcher of this node ended" in str(failure.get("message"))


def test_without_a_fork_server_the_run_ends_with_the_reason(ran: InnerRun) -> None:
    assert ran.returncode == pytest.ExitCode.INTERRUPTED, ran.output
    outcomes = ran.outcomes()
    assert outcomes["test_fork_server_dies"] == "failure"
    # Its ranks may have been requested before the death was reported.
    assert outcomes["test_after_fork_server"] in ("error", "failure")
    assert "test_later" not in outcomes
    why = "the process that imports torch and the tests was killed by SIGKILL"
    assert "no ranks can be started: " in ran.output
    assert f"local0 … local1: {why}" in ran.output
