"""Forks the elastic launcher of a node's part of a world, inside the node's namespaces."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_mnode import processes
from pytest_mnode.machine import namespaces
from pytest_mnode.protocol.agent_messages import AgentOrder, ForkLauncher, LauncherForked
from pytest_mnode.protocol.pipe import Pipe

if TYPE_CHECKING:
    from pytest_mnode.agent.elastic import RankMain


def fork_launcher(
    order: AgentOrder,
    message: ForkLauncher,
    source: Pipe,
    rank_main: RankMain,
    others: Sequence[Pipe] = (),
) -> LauncherForked:
    """Fork the elastic launcher. source: pipe of the message and its descriptors, which the child
    closes. others: further pipes that the child closes."""
    launch, namespace_pid = message.launch, message.namespace_pid
    to_agent, store = take_fds(message, source)
    server_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        for pipe in (source, *others):
            pipe.close()
        processes.die_with_parent(server_pid)

        def elastic() -> None:
            from pytest_mnode.agent import elastic

            elastic.main(order, launch, Pipe.from_fd(to_agent), store, rank_main)

        if namespace_pid is None:
            processes.run_and_exit(elastic)
        processes.run_and_exit(lambda: _inside(namespace_pid, elastic))
    os.close(to_agent)
    if store is not None:
        os.close(store)
    return LauncherForked(launch.node, launch.world.id, pid)


def take_fds(message: ForkLauncher, source: Pipe) -> tuple[int, int | None]:
    """The descriptors of a message: its pipe to the agent and, on the first node, its store."""
    return source.fds.popleft(), source.fds.popleft() if message.launch.node_rank == 0 else None


def _inside(namespace_pid: int, function: Callable[[], None]) -> None:
    """Call `function` in a child inside the namespaces of a node, and stay as its parent."""
    namespaces.enter(namespace_pid)
    outside = os.getpid()
    inside = os.fork()
    if inside == 0:  # only a child is inside the PID namespace
        processes.die_with_parent(outside)
        processes.run_and_exit(function)
    processes.close_all_but(set())
    processes.set_name("mnode-enter")
    os.waitpid(inside, 0)
