"""A node of its own machine, had on again: the node itself is asked, and not who speaks for it."""

from __future__ import annotations

import subprocess

from pytest_mnode.errors import NodeLostError
from pytest_mnode.launchers.node import Launcher, Node, lacks
from pytest_mnode.launchers.node_env import node_env

ANSWER_S = 10.0
"""Far above what a command takes on a node that is busy; a dead one never answers."""


def boot(launcher: Launcher, node: Node, limit_s: float = ANSWER_S) -> None:
    """Switch a node on that runs no commands, or have its launcher reach it again. Raises
    ClusterError.

    One whose agent or gate alone is gone is on; it needs no switch, only another of these. What
    the launcher knows is not enough: Slurm calls a node ALLOCATED that lost its power until
    SlurmdTimeout is over, and ssh has its connection for some seconds more.
    """
    if runs_commands(launcher, node, limit_s):
        return
    switch = getattr(launcher, "power_on", None)
    if switch is None:
        raise lacks(launcher.name, "power_on")
    switch(node)


def runs_commands(launcher: Launcher, node: Node, limit_s: float = ANSWER_S) -> bool:
    """Whether a command runs on a node to its end, now and in this time."""
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
