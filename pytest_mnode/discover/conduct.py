"""The controller's side: every node looked at, at the same time, and none waited for for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from pytest_mnode.criteria.preflight.conduct import search_path
from pytest_mnode.criteria.preflight.facts import decode
from pytest_mnode.discover.facts import NodeLook, Seen, Sight
from pytest_mnode.discover.look import UNSCHEDULED
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.nodes import CommandResult

LOOK_LIMIT_S = 90.0
"""Of the whole look: interpreters start from file servers, and drivers take their time."""
_EMULATED = {
    "rack": (
        "nodes are namespaces of one machine and share its kernel, cores and memory",
        "links are veth pairs shaped to their line rate at both ends (tbf)",
    ),
    "local": ("nodes are processes of one machine, which talk over its loopback",),
}
_SLURM_NAMES = {
    "cluster": "SLURM_CLUSTER_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
}


class Nodes(Protocol):
    """What a look needs of the nodes of a run."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    def run(
        self,
        argv: Sequence[str],
        nodes: Sequence[str] | str | None = None,
        *,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> list[CommandResult]: ...

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]: ...

    def address(self, node: str) -> str: ...

    @property
    def python(self) -> str: ...


def look_at(nodes: Nodes, launcher: str, reason: str) -> Sight:
    """What all nodes show. A node that does not answer has a problem in words, and no look."""
    emulated = _EMULATED.get(launcher, ()) if len(nodes.nodes) > 1 else ()
    argv = [
        nodes.python,
        "-P",
        "-m",
        "pytest_mnode.discover.look",
        *([UNSCHEDULED] if emulated else []),
    ]
    env = search_path(nodes.python)
    off: dict[str, Seen] = {}
    for name in nodes.nodes:
        try:
            nodes.commands(argv, name)
        except MnodeError as error:  # no command can be run there
            off[name] = Seen(name, _address(nodes, name), None, str(error).splitlines()[0])
    able = [name for name in nodes.nodes if name not in off]
    seen = {
        result.node: seen_of(result, _address(nodes, result.node))
        for result in nodes.run(argv, able, timeout=LOOK_LIMIT_S, env=env)
    }
    return Sight(
        nodes=tuple(seen[name] if name in seen else off[name] for name in nodes.nodes),
        launcher=launcher,
        reason=reason,
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        emulated=emulated,
        scheduler_names=scheduler_names(os.environ),
    )


def seen_of(result: CommandResult, address: str) -> Seen:
    """What a node's look printed, whatever its shell printed besides."""
    line = next((one for one in result.stdout.splitlines() if one.startswith("{")), None)
    if result.returncode is None:
        problem = f"no answer within {LOOK_LIMIT_S:g} s"
    elif line is None:
        said = result.stderr.strip().splitlines()
        last = said[-1] if said else "it said nothing"
        problem = f"its look ended with status {result.returncode}: {last}"
    else:
        try:
            return Seen(result.node, address, decode(NodeLook, line))
        except ValueError as error:
            problem = f"its answer cannot be read: {' '.join(str(error).split())[:200]}"
    return Seen(result.node, address, None, problem)


def _address(nodes: Nodes, name: str) -> str:
    """Where a node is reached, as a number where it can be looked up; IPv4 before IPv6."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return str(socket.getaddrinfo(nodes.address(name), None, family)[0][4][0])
        except (OSError, MnodeError):
            continue
    return ""


def scheduler_names(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Names that a submission needs, of the Slurm allocation this run is in.

    Source: sbatch(1), output environment variables.
    """
    return tuple((k, environment[v]) for k, v in _SLURM_NAMES.items() if environment.get(v))
