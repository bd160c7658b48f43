"""Limit of open files of the controller, to which nodes and the ranks of this machine connect.

A hub without a descriptor for one more connection does not notice it, and its ranks would be
blamed for not answering. Nodes that are other machines have one connection for all their ranks: for
them procs_per_node is 0.
"""

from __future__ import annotations

import resource

from pytest_mnode.errors import ClusterError

SLACK = 256
"""Files reserved for pytest, its plugins, the tests and their commands."""
OF_A_NODE, OF_A_MACHINE = 2, 6
"""Files for each node; of another machine, two pipes and a connection of its agent, and of one
program beside."""


def least(nodes: int, procs_per_node: int) -> int:
    """Number of files that must be open at once, with one world over all nodes."""
    return nodes * (procs_per_node + OF_A_NODE if procs_per_node else OF_A_MACHINE) + SLACK


def most(nodes: int, procs_per_node: int, idle_worlds: int) -> int:
    """Maximum of open files, with idle worlds kept for later tests, one in use and one ending."""
    return least(nodes, procs_per_node * (idle_worlds + 2))


def check(nodes: int, procs_per_node: int) -> None:
    """Raise ClusterError if this machine's limit is too low for a run."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = least(nodes, procs_per_node)
    if hard != resource.RLIM_INFINITY and needed > hard:
        ranks = f" with {procs_per_node} ranks each" if procs_per_node else ""
        raise ClusterError(
            f"{nodes} nodes{ranks} need {needed} open files of this process, and this machine "
            f"allows {hard} (nofile); raise its hard limit here (ulimit -Hn, "
            "/etc/security/limits.conf, LimitNOFILE=), or use fewer nodes"
        )


def allow(nodes: int, procs_per_node: int, idle_worlds: int) -> int | None:
    """Raise this process's soft limit to the hard one if a run may need more files.

    Returns the previous soft limit; None if it was not changed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (hard, resource.RLIM_INFINITY) or most(nodes, procs_per_node, idle_worlds) <= soft:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def give_back(soft: int | None) -> None:
    """Restore the soft limit that `allow` returned."""
    if soft is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
