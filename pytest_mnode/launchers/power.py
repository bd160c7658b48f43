"""Power of nodes, switched by the spec's commands, and recovery of lost nodes."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.remote.node_process import start
from pytest_mnode.processes import end_programs
from pytest_mnode.protocol.launcher_requests import PowerOn
from pytest_mnode.spec.inventory import Power

ANSWER_S = 10.0
"""Far longer than a command takes on a busy node; a dead node never answers."""


def argv(command: str, node: str) -> list[str]:
    """Arguments of a spec's command, with `{node}` replaced by the node's name."""
    return [word.replace("{node}", node) for word in shlex.split(command)]


def switch(power: Power | None, what: str, node: Node) -> Power:
    """Run the spec's command that switches a node "off" or "on"; returns the spec's power section.

    Raises ClusterError if the spec has no such command, it fails, or it does not end in time.
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
    """Exit status of a command, and the lines it printed: standard error, else standard output.

    Output goes to files, so that processes which the command leaves in the background, such as a
    virtual machine, are not waited for. At its limit the command's process group is killed.
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
            end_programs([program])
            raise
        for file in (err, out):
            file.seek(0)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
            if any(lines):
                return code, [line for line in lines if line]
        return code, []


def recover(launcher: Launcher, node: Node, limit_s: float = ANSWER_S) -> None:
    """Recover a lost node: power it on, or have its launcher connect to it again.

    If a command runs on the node, only its agent was lost, and nothing is done. The launcher's
    state is no proof: a scheduler may report a node without power as in use for minutes,
    and ssh keeps its connection for some seconds. Raises ClusterError.
    """
    if not runs_commands(launcher, node, limit_s):
        launcher.ask(PowerOn(node.name))


def runs_commands(launcher: Launcher, node: Node, limit_s: float = ANSWER_S) -> bool:
    """Whether a command on the node succeeds within `limit_s` seconds."""
    try:
        [command] = launcher.commands([node], ["true"])
        nothing = Path(os.devnull)
        program = start(command, launcher.env.command(), stdout=nothing, stderr=nothing)
    except (NodeLostError, OSError):
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(limit_s)
    end_programs([program])
    return program.returncode == 0
