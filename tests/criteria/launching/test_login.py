"""The login on a node, as a real process: its environment, its user, and its leftovers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_mnode.criteria.launching import login
from pytest_mnode.criteria.launching.reports import read_output
from tests.inner import need_rack
from tests.waiting import until

PROGRAM = str(Path(login.__file__))
SHELL = str(shutil.which("sh"))


def plan(*commands: Sequence[str], **changes: Any) -> str:
    page = {
        "unprivileged": False,
        "must_read": [],
        "must_run": [],
        "path": "/usr/bin:/bin",
        "lang": "C.UTF-8",
        "processes": [{"argv": list(argv), "env": {"OWN": "1"}} for argv in commands],
    }
    return json.dumps(page | changes)


def start(text: str, *within: str) -> subprocess.Popen[str]:
    stdin = os.memfd_create("plan")
    os.write(stdin, text.encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    process = subprocess.Popen(
        [*within, sys.executable, "-I", "-S", PROGRAM],
        env={**os.environ, "MNODE_CANARY": "x", "PYTHONPATH": "/nowhere", "BASH_ENV": "/nowhere"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(stdin)
    return process


def run(text: str, *within: str) -> tuple[int, str]:
    process = start(text, *within)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out


def env_of(out: str) -> dict[str, str]:
    """What `env` printed, without what the shell itself sets."""
    env = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    return {n: v for n, v in env.items() if n not in ("PWD", "SHLVL", "_", "OLDPWD")}


def test_environment_and_user_of_a_container_are_kept() -> None:
    code, out = run(plan([SHELL, "-c", "env"], container=True, unprivileged=True, path="/first"))
    _, [logged_in] = read_output(out)
    assert (code, logged_in.uid) == (0, os.geteuid())
    env = env_of(out)
    assert (env["PYTHONPATH"], env["OWN"]) == ("/nowhere", "1")
    assert env["PATH"] == f"/first:{os.environ['PATH']}"
    assert env["HOME"]


def test_nothing_of_the_callers_environment_is_left() -> None:
    code, out = run(plan([SHELL, "-c", "env"]))
    _, [login_line] = read_output(out)
    assert code == 0
    env = env_of(out)
    assert set(env) == {"HOME", "USER", "PATH", "LANG", "OWN"}
    assert (env["PATH"], env["LANG"], env["USER"]) == ("/usr/bin:/bin", "C.UTF-8", login_line.user)
    assert login_line.uid == os.geteuid()


REMOTE_EXEC = """
import os, subprocess, sys
os.environ["MNODE_CANARY"] = "x"
sys.exit(subprocess.call(sys.argv[1:]))
"""


def test_another_machines_own_environment_is_kept() -> None:
    """That of the process which starts the login there; this run has added the rest."""
    own = ["NCCL_IB_HCA=mlx5_1", "PATH=/own/bin:/bin", "HOME=/", "USER=ada", "SLURM_PROCID=0"]
    within = ["env", "-i", *own, sys.executable, "-I", "-S", "-c", REMOTE_EXEC]
    code, out = run(plan([SHELL, "-c", "env"], remote=True, path="/first"), *within)
    assert code == 0, out
    wanted = {"HOME": "/", "USER": "ada", "PATH": "/first:/own/bin:/bin", "LANG": "C.UTF-8"}
    wanted |= {"OWN": "1", "NCCL_IB_HCA": "mlx5_1"}
    assert {n: v for n, v in env_of(out).items() if n != "LC_CTYPE"} == wanted


def test_variables_of_a_job_are_in_no_argument_list() -> None:
    secret = uuid.uuid4().hex
    process = start(plan(processes=[{"argv": ["/bin/sleep", "30"], "env": {"TOKEN": secret}}]))
    assert process.stdout is not None
    process.stdout.readline()
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
    try:
        assert not [one for one in family if secret in " ".join(one.cmdline())]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_home_is_the_working_directory_and_gets_no_logs() -> None:
    show = 'test "$PWD" = "$HOME" && touch "$0/x" && echo "$0"'
    code, out = run(plan([SHELL, "-c", show, "{logs}"]))
    logs = Path(out.splitlines()[-1])
    assert code == 0, out
    assert logs.parent == Path(tempfile.gettempdir())
    assert not logs.exists()


def test_a_group_may_have_another_number_than_its_user() -> None:
    need_rack()  # it needs user namespaces, too
    within = ("unshare", "--user", "--map-user=1000", "--map-group=100")
    code, out = run(plan([SHELL, "-c", "id -u; id -g", "{logs}"]), *within)
    assert (code, out.splitlines()[1:]) == (0, ["1000", "100"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
class TestAsNobody:
    def test_runs_unprivileged_with_a_home_that_is_removed(self) -> None:
        show = 'id -u; echo "$HOME"; touch "$HOME/file" && echo wrote; cat /proc/self/status'
        command = [SHELL, "-c", f'touch "$0/x" || exit 9; {show}', "{logs}"]
        code, out = run(plan(command, unprivileged=True, must_run=[SHELL]))
        lines = out.splitlines()
        assert (code, lines[1], lines[3]) == (0, "65534", "wrote")
        assert [line.split()[1] for line in lines if line.startswith("CapEff")] == ["0" * 16]
        assert not Path(lines[2]).exists()

    def test_the_reason_for_running_as_root(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        (tmp_path / "x").touch()
        for doing, key in (("read", "must_read"), ("run", "must_run")):
            files = {key: [f"{tmp_path}/x"]}
            code, out = run(plan([SHELL, "-c", "id -u"], unprivileged=True, **files))
            _, [login_line] = read_output(out)
            assert (code, login_line.uid) == (0, 0)
            assert login_line.why == f"uid 65534 cannot {doing} {tmp_path}/x"


def test_status_is_the_first_failure_after_all_have_ended() -> None:
    code, out = run(plan([SHELL, "-c", "exit 3"], [SHELL, "-c", "sleep 0.3; echo late"]))
    assert code == 3
    assert "late" in out
    assert run(plan([SHELL, "-c", "kill -9 $$"]))[0] == 128 + 9
    code, out = run(plan(["/no/such/program"]))
    assert code == 127
    assert "cannot run /no/such/program: No such file or directory" in out
    homeless = {"argv": ["/bin/true"], "env": {"HOME": "/no/such/home"}}
    _, out = run(plan(processes=[homeless]))
    assert "cannot run /bin/true in /no/such/home: No such file or directory" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_descendants(number: signal.Signals) -> None:
    # A grandchild in its own session, whose parent has ended.
    hidden = "setsid sh -c 'sleep 301' & sleep 300"
    process = start(plan([SHELL, "-c", hidden], [SHELL, "-c", "trap '' TERM; sleep 302"]))
    login_process = psutil.Process(process.pid)
    until(lambda: len(login_process.children(recursive=True)) >= 5, "all processes have started")
    found = login_process.children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def test_processes_left_by_a_job_are_ended() -> None:
    process = start(plan([SHELL, "-c", "setsid sleep 303 & echo $!"]))
    out, _ = process.communicate(timeout=30)
    pid = int(out.splitlines()[-1])
    assert not psutil.pid_exists(pid)


def test_a_login_ends_with_its_connection() -> None:
    """The program that runs it on the node may be killed."""
    within = (SHELL, "-c", 'exec 3<&0; "$@" <&3 & wait', "sh")
    parent = start(plan([SHELL, "-c", "echo $$; exec sleep 304"]), *within)
    assert parent.stdout is not None
    parent.stdout.readline()
    job = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate(timeout=30)
    job.wait(30)
