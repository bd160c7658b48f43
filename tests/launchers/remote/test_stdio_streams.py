"""The local end of a remote command: what it receives and what it sends."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from pytest_mnode.launchers.remote.node_command import LOST
from tests.launchers.remote.proxies import LIMIT_S, REMOTE_END, SLEEPS, Way, over, ready, run


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
        way.streams.remote_end().kill()
        _, err = program.communicate(timeout=LIMIT_S)
        assert (program.returncode, err) == (LOST, "n1: the connection was lost\n")


@pytest.mark.parametrize(("sleeps_s", "within_s"), [(60, 2.0), (1, 20.0)])
def test_a_slow_start_within_the_limit_is_awaited(
    way: Way, sleeps_s: float, within_s: float
) -> None:
    slow = over(f"echo warning: busy >&2; sleep {sleeps_s}")
    why = (
        "no answer within 2 s (warning: busy): its disk is slow; raise --mnode-start-limit "
        "if it is slow"
    )
    late = "its disk is slow"
    assert way.problem(slow, within_s=within_s, late=late) == (why if sleeps_s > within_s else "")


def test_an_ssh_that_outlives_its_connection_is_not_awaited(way: Way) -> None:
    why = "Python did not start on the node (no status)"
    assert way.problem("exec sleep 60 >&- 2>&-") == why
