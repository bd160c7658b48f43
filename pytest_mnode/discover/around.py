"""Entries of what lies around nodes: storage, and the scheduler. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mnode.discover.agreeing import named
from pytest_mnode.discover.cluster import CONFIRM, Cluster, look_of
from pytest_mnode.discover.page import Entry, mapped, scalar

_MOST_SOURCES = 3


def storage(cluster: Cluster) -> Entry:
    """File systems that all nodes mount, for the operator to say what is kept where."""
    # By path and kind: file servers spread nodes over their addresses.
    mounts: dict[tuple[str, str], dict[str, str]] = {}
    for node in cluster.nodes:
        for mount in look_of(node).mounts or ():
            mounts.setdefault((mount.path, mount.kind), {})[node.name] = mount.source
    for place, having in mounts.items():
        if lacking := [node.name for node in cluster.nodes if node.name not in having]:
            mounted = f"{_mounted(*place, having)} is mounted on {named(list(having))}"
            cluster.differences.append(f"{mounted}, and not on {named(lacking)}")
    shared = [mount for mount, having in mounts.items() if len(having) == len(cluster.nodes)]
    if not shared:
        why = "Left out: no file system of the network is mounted on all nodes."
        form = "{datasets: /data, checkpoints: /checkpoints}"
        return Entry("storage", form, why, left_out=True, gap=True)
    seen = "; ".join(_mounted(*place, mounts[place]) for place in shared)
    why = (
        f"Left out, since nothing says what is kept where. Mounted on all nodes: {seen}. Name "
        "paths there, uncomment, and promise storage: {} under criteria.preflight."
    )
    first = scalar(shared[0][0])
    form = mapped({"datasets": first, "checkpoints": first})
    return Entry("storage", form, why, left_out=True, gap=True)


def _mounted(path: str, kind: str, having: Mapping[str, str]) -> str:
    """A file system in words. having: its source by node."""
    sources = list(dict.fromkeys(having.values()))
    if len(sources) == 1:
        return f"{path} ({kind} {sources[0]})"
    of = f"{len(sources)} sources: {named(sources, _MOST_SOURCES)}"
    return f"{path} ({kind} from {of}; see that they are one file system)"


def scheduled(cluster: Cluster) -> bool:
    """Whether Slurm hands out the nodes, as the run or the nodes show."""
    answers = {look_of(node).scheduler for node in cluster.nodes}
    return cluster.sight.launcher == "slurm" or ("slurm" in answers and not cluster.sight.emulated)


def gang(cluster: Cluster) -> tuple[Entry, ...]:
    """What can be promised of a scheduler, as a comment; nothing without one."""
    if not scheduled(cluster):
        return ()
    why = "Left open: asked by itself, with nodes that are free; see docs/gang.md."
    return (Entry("gang", "{}", why, left_out=True),)


def scheduler(cluster: Cluster) -> Entry:
    """Who hands out nodes, where the run or the nodes show it."""
    kind = cluster.of("scheduler", lambda look: look.scheduler)
    names = {key: scalar(name) for key, name in cluster.sight.scheduler_names if key != "cluster"}
    used = cluster.sight.launcher == "slurm"
    if scheduled(cluster):
        how = "this run is in an allocation of it" if used else f"{kind.seen}: its sinfo answers"
        promised = {"kind": "slurm", **({"names": mapped(names)} if names else {})}
        return Entry("scheduler", mapped(promised), f"Seen: {how}. {CONFIRM}.", gap=True)
    why = "Left out: this run is in no allocation, and no Slurm answers the nodes."
    return Entry("scheduler", "{kind: slurm}", why, left_out=True, gap=True)
