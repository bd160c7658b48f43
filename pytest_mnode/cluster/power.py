"""Switching nodes by the commands that the spec names, run on this machine."""

from __future__ import annotations

import shlex
import subprocess

from pytest_mnode.cluster.node import Node
from pytest_mnode.errors import ClusterError
from pytest_mnode.spec.power import Power


def argv(command: str, node: str) -> list[str]:
    """The words of a command for one node."""
    return [word.replace("{node}", node) for word in shlex.split(command)]


def switch(power: Power | None, what: str, node: Node) -> Power:
    """Run the command that switches a node "off" or "on", and wait for its end; the section.

    Raises ClusterError where the spec names none, it fails, or it does not end in time.
    """
    if power is None:
        raise ClusterError(
            f"cannot switch {node.name} {what}: the spec names no command for it "
            f"(power.switch_{what})"
        )
    words = argv(power.switch_off if what == "off" else power.switch_on, node.name)
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=power.command_within_s,
            check=False,
        )
    except OSError as error:
        raise ClusterError(f"power.switch_{what}: {words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        limit = power.command_within_s
        raise ClusterError(
            f"power.switch_{what}: {words[0]} for {node.name} had not ended after {limit:g} s"
        ) from None
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        last = said[-1] if said else "it said nothing"
        raise ClusterError(
            f"power.switch_{what}: {words[0]} for {node.name} ended with {done.returncode}: {last}"
        )
    return power
