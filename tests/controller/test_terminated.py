"""Runs that get SIGTERM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.inner import clean_env, junit_command, need_rack, write_files
from tests.watched import Watched

TEXT = """
    import pathlib, time

    def test_before(world): pass

    def test_long(world, request):
        time.sleep(0.5)  # ranks may be given a test while the run still reports the one before
        pathlib.Path(request.config.rootpath, f"busy{world.rank}").touch()
        time.sleep(120)

    def test_after(world): pass
"""
AS_INIT = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


@pytest.mark.parametrize("to_all", [False, True])
def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path, to_all: bool) -> None:
    """A scheduler may send it to all processes, and the batch script passes it on once more."""
    need_rack()
    write_files(tmp_path, test_it=TEXT)
    args = ("--mnode-nodes=2", "--mnode-report=report", "--junitxml=junit.xml", "test_it.py")
    with Watched(tmp_path, *args) as run:
        run.wait_until_busy(2)
        others = psutil.Process(run.process.pid).children(recursive=True) if to_all else []
        os.kill(run.process.pid, signal.SIGTERM)
        for one in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.terminate()
        if to_all:
            time.sleep(0.2)
            os.kill(run.process.pid, signal.SIGTERM)
        output = run.output()
        run.expect_nothing_left()
    assert run.process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert to_all or "[ranks 0-1 of 2 on node0,node1] at test_it.py:" in output, output
    assert "cut short by interrupted" in output
    assert json.loads((tmp_path / "report/certificate.json").read_text())
    assert (tmp_path / "junit.xml").exists()


def test_sigterm_ends_the_first_process_of_a_container(tmp_path: Path) -> None:
    """Without a handler, the kernel keeps SIGTERM from it."""
    if subprocess.run([*AS_INIT, "true"], check=False, capture_output=True).returncode:
        pytest.skip("PID namespaces are not allowed here")
    text = "import time\ndef test_it():\n    open('busy', 'w').close()\n    time.sleep(60)\n"
    (tmp_path / "test_it.py").write_text(text)
    spec = Path(__file__).parents[2] / "fixtures/clusters/rack.yaml"
    argv = junit_command(tmp_path, f"--mnode-spec={spec}", "test_it.py")
    with subprocess.Popen(
        [*AS_INIT, *argv], cwd=tmp_path, env=clean_env(), stdout=subprocess.PIPE, text=True
    ) as outer:
        end = time.monotonic() + 60
        while not (tmp_path / "busy").exists():
            assert time.monotonic() < end
            assert outer.poll() is None
            time.sleep(0.05)
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", *children], check=True)
        output, _ = outer.communicate(timeout=30)
    assert outer.returncode == pytest.ExitCode.INTERRUPTED, output
