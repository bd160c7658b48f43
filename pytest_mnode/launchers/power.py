"""Power of nodes: switched by commands that the spec names; lost nodes recovered."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.protocol.launcher_requests import PowerOn
from pytest_mnode.spec.inventory import Power

ANSWER_S = 10.0
"""Far above what a command takes on a busy node; a dead node never answers."""


def argv(command: str, node: str) -> list[str]:
    """The words of a command for one node."""
    return [word.replace("{node}", node) for word in shlex.split(command)]


def switch(power: Power | None, what: str, node: Node) -> Power:
    """Run the spec's command that switches a node "off" or "on"; returns the spec's section.

    Raises ClusterError where the spec names none, it fails, or it does not end in time.
    """
    if power is None:
        raise ClusterError(
            f"cannot switch {node.name} {what}: the spec names no command for it "
            f"(power.switch_{what})"
        )
    words = argv(power.switch_off if what == "off" else power.switch_on, node.name)
    try:
        code, printed = _run(words, power.command_within_s)
    except OSError as error:
        raise ClusterError(f"power.switch_{what}: {words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        limit = power.command_within_s
        raise ClusterError(
            f"power.switch_{what}: {words[0]} for {node.name} had not ended after {limit:g} s"
        ) from None
    if code != 0:
        last = printed[-1] if printed else "it printed nothing"
        raise ClusterError(
            f"power.switch_{what}: {words[0]} for {node.name} ended with {code}: {last}"
        )
    return power


def _run(words: list[str], limit_s: float) -> tuple[int, list[str]]:
    """Status of a command, and the lines it printed: its errors, else its output.

    Output goes into files, so that what the command leaves in the background, such as a virtual
    machine, is not waited for. Past its limit it is killed, with all that it started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code = program.wait(limit_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            raise
        for file in (err, out):
            file.seek(0)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
            if any(lines):
                return code, [line for line in lines if line]
        return code, []


def recover(launcher: Launcher, node: Node, limit_s: float = ANSWER_S) -> None:
    """Have a lost node run commands again: switch it on, or have its launcher reach it again.

    A node on which a command runs needs nothing: only its agent was lost. The command decides and
    not the launcher: Slurm calls a node that lost its power ALLOCATED until SlurmdTimeout is over,
    and ssh keeps its connection for some seconds. Raises ClusterError.
    """
    if not runs_commands(launcher, node, limit_s):
        launcher.ask(PowerOn(node.name))


def runs_commands(launcher: Launcher, node: Node, limit_s: float = ANSWER_S) -> bool:
    """Whether a command on the node ends well within `limit_s` seconds."""
    try:
        [command] = launcher.commands([node], ["true"])
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=node_env(),
            timeout=limit_s,
            check=False,
        )
    except (NodeLostError, OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
