"""The local end of a remote command: what it receives and what it sends."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
from pathlib import Path

import pytest

from pytest_mnode.launchers.remote import remote_proxy
from tests.launchers.remote.proxies import (
    LIMIT_S,
    REMOTE_END,
    SLEEPS,
    Way,
    over,
    proxy_command,
    ready,
    remote_end,
    run,
)


def test_arguments_keep_their_bytes_in_any_locale(way: Way, tmp_path: Path) -> None:
    made = run(["localedef", "-i", "de_DE", "-f", "ISO-8859-1", f"{tmp_path}/de_DE.ISO-8859-1"])
    if not (tmp_path / "de_DE.ISO-8859-1").exists():
        pytest.skip(f"no locale could be made: {made.stderr}")
    latin = f"env LOCPATH={shlex.quote(str(tmp_path))} LC_ALL=de_DE.ISO-8859-1"
    argv = ["sh", "-c", "echo $MNODE_TEST $0", "Łódź \udcff"]
    command = way(argv, f"exec {latin} {shlex.join(REMOTE_END)}")
    env = {**os.environ, "MNODE_TEST": "Łukasz"}
    for ours in (command, [*shlex.split(latin), *command]):
        done = subprocess.run(ours, capture_output=True, env=env, timeout=LIMIT_S, check=False)
        assert done.stdout == "Łukasz Łódź ".encode() + b"\xff\n", done.stderr


def test_output_of_a_login_shell_is_not_the_reason_of_a_loss(way: Way) -> None:
    command = way(SLEEPS, over("echo 'Lmod: loading cuda/12.4' >&2"))
    with ready(command, stderr=subprocess.PIPE) as program:
        remote_end(program).kill()
        _, err = program.communicate(timeout=LIMIT_S)
        assert (program.returncode, err) == (remote_proxy.LOST, "n1: the connection was lost\n")


NO_PIDFD = "def none(pid): raise OSError(38, os.strerror(38))\nos.pidfd_open = none"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("del os.pidfd_open", ""),  # as in conda's Python
        (NO_PIDFD, "n1: pidfd_open on this machine: Function not implemented\n"),
    ],
)
def test_a_python_or_a_kernel_without_pidfd_open(way: Way, change: str, line: str) -> None:
    *python, path, config, node, command = way(["true"], daemon=os.getpid())
    program = (
        f"import os, sys, runpy\n{change}\nsys.path.insert(0, os.path.dirname({path!r}))\n"
        f"runpy.run_path({path!r}, run_name='__main__')"
    )
    done = run([*python, "-c", program, config, node, command])
    assert (done.stderr, done.returncode) == (line, remote_proxy.LOST if line else 0)


def test_ssh_has_no_prompts_and_the_run_s_original_open_file_limit(tmp_path: Path) -> None:
    """The controller raises its own limit; srun would pass that on to its steps."""
    output = tmp_path / "output"
    script = f"(echo $SSH_ASKPASS_REQUIRE; ulimit -Sn) > {shlex.quote(str(output))}"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        command = proxy_command(tmp_path, ["sh", "-c", script], ["true"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    run(command)
    assert output.read_text().split() == ["never", "512"]


@pytest.mark.parametrize(("start_s", "status"), [(0.5, remote_proxy.LOST), (20.0, 0)])
def test_a_slow_start_within_the_limit_is_awaited(
    tmp_path: Path, start_s: float, status: int
) -> None:
    """Slurm's Prolog runs before the first step of a node."""
    slow = ["sh", "-c", over("echo srun: waiting >&2; sleep 2")]
    late = "its Prolog is slow"
    done = run(proxy_command(tmp_path, slow, ["true"], start_s=start_s, late=late))
    line = (
        "n1: no answer within 0.5 s (srun: waiting): its Prolog is slow; raise --mnode-start-limit "
        "if it is slow\n"
    )
    assert (done.returncode, done.stderr) == (status, line if status else "")


def test_an_ssh_that_outlives_its_connection_is_not_awaited(tmp_path: Path) -> None:
    stays = ["sh", "-c", "exec sleep 60 >&- 2>&-"]
    done = run(proxy_command(tmp_path, stays, ["true"]))
    assert done.returncode == remote_proxy.LOST
