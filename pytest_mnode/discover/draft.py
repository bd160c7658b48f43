"""From what was seen of a cluster to a first page of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_mnode.discover import bounds
from pytest_mnode.discover.agreeing import agreed, named
from pytest_mnode.discover.around import gang, scheduler, storage
from pytest_mnode.discover.cluster import CONFIRM, Cluster, look_of
from pytest_mnode.discover.devices import accelerators, gpudirect, told_of
from pytest_mnode.discover.facts import Accelerators, Sight
from pytest_mnode.discover.page import Entry, rendered, scalar
from pytest_mnode.discover.room import limits
from pytest_mnode.discover.wires import fabric, management


@dataclass(frozen=True, slots=True)
class Draft:
    """A page, and what its maker should know of it.

    differences: what not all nodes show alike, a line each. missing: keys that the loader will ask
    for, since nothing was seen to fill them in with. unread: what nodes have and could not be read.
    """

    preface: tuple[str, ...]
    entries: tuple[Entry, ...]
    differences: tuple[str, ...]
    missing: tuple[str, ...]
    unread: tuple[str, ...] = ()

    def text(self, tried: Sequence[str] = ()) -> str:
        """The page as YAML. tried: what came of putting it to the nodes, a paragraph each."""
        differing = [f"- {line}" for line in self.differences]
        heading = ["Not all nodes show the same:"] if differing else []
        unread = [f"- could not be read: {line}" for line in self.unread]
        return rendered([*self.preface, *heading, *differing, *unread, *tried], self.entries)


def draft(sight: Sight) -> Draft:
    """A first page. Raises ValueError where no node showed anything."""
    if not sight.shown:
        raise ValueError("no node showed anything")
    cluster = Cluster(sight)
    entries = (
        *_head(sight),
        accelerators(cluster),
        fabric(cluster),
        management(cluster),
        storage(cluster),
        scheduler(cluster),
        _criteria(cluster),
        Entry("certificate", "{valid_for: 7 days}", "How long its answers hold.", gap=True),
    )
    return Draft(
        tuple(_preface(sight)),
        entries,
        tuple(cluster.differences),
        tuple(cluster.missing),
        tuple(_unread(sight)),
    )


def _unread(sight: Sight) -> Iterator[str]:
    """Parts that nodes could not read, with the nodes that share the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in sight.shown:
        for part, why in look_of(node).unread.items():
            found.setdefault((part, why), []).append(node.name)
    for (part, why), nodes in found.items():
        yield f"{part} of {named(nodes)}: {why}"


def _preface(sight: Sight) -> Iterator[str]:
    names = [node.name for node in sight.shown]
    yield (
        f"A first spec, made by --mnode-discover on {sight.made_at} of what {len(names)} "
        f"node{'s' * (len(names) != 1)} showed: {named(names)} (launcher {sight.launcher}, "
        f"{sight.reason})."
    )
    yield (
        "It says what is there, which need not be what was bought: a NIC that is missing on every "
        "node, or a link at half its rate, is written down as if it had to be so. Compare each "
        "line with the order, put it right, and then say confirmed: true. Until then no run with "
        "this page certifies."
    )
    for node in sight.silent:
        yield f"- {node.name} showed nothing: {node.problem}"


def _head(sight: Sight) -> Iterator[Entry]:
    cluster = dict(sight.scheduler_names).get("cluster")
    name = cluster or f"discovered {sight.made_at.partition(' ')[0]}"
    yield Entry("name", scalar(name), "What the cluster is called.", gap=True)
    yield Entry("confirmed", "false", f"{CONFIRM}, line by line; then say true.")
    if sight.emulated:
        why = "Not real, and said on each certificate."
        yield Entry("emulated", "", why, items=sight.emulated)
    silent = f"; {named([n.name for n in sight.silent])} showed nothing" if sight.silent else ""
    seen = f"As many as this run asked for, and {len(sight.shown)} showed what they have{silent}."
    yield Entry("nodes", str(len(sight.nodes)), f"{seen} {CONFIRM}.")


def _criteria(cluster: Cluster) -> Entry:
    about = (
        "What follows no node shows: bounds that clusters of this kind keep when they are well. "
        "Put what was promised to you in their place. What is left out is reported as not promised."
    )
    machine = _machine(cluster)
    found = (Entry("mesh", "{}"),) if machine is None else bounds.criteria(machine)
    return Entry("criteria", "", about, (*found, *gang(cluster)), gap=True)


def _machine(cluster: Cluster) -> bounds.Machine | None:
    """What bounds depend on; None where no fabric was seen."""
    wire, managed = cluster.usual("fabric"), cluster.usual("management")
    if wire is None:
        return None
    looks = [look_of(node) for node in cluster.nodes]
    shm, memlock, open_files = limits(cluster)
    numa_nodes = cluster.of("NUMA nodes", lambda look: look.numa_nodes).value
    told = told_of(cluster)
    direct = gpudirect(cluster) if wire.kind != "ethernet" else None
    return bounds.Machine(
        nodes=len(cluster.sight.nodes),
        accelerators=any(one.on_pci or one.models for one in told),
        emulated=bool(cluster.sight.emulated),
        fabric=wire,
        managed=managed is not None and managed.rate_mbits_s is not None,
        managed_mtu=managed is not None and managed.mtu_bytes is not None,
        numa_nodes=numa_nodes or 0,
        numa_told=all(None not in one.numa_nodes for one in told),
        nvml=len(told) == len(looks) and all(one.models for one in told),
        ecc=_state(told, "ecc"),
        persistence=_state(told, "persistence"),
        mig=_state(told, "mig"),
        remapped_rows=bool(told) and all(one.remapped_rows_told for one in told),
        pcie_links=bool(looks) and all(look.pcie_links_told for look in looks),
        kernel_log=bool(looks) and all(look.kernel_log_told for look in looks),
        gpudirect=direct.way if direct is not None else "",
        shm_bytes=shm,
        memlock=memlock or "",
        open_files=open_files,
    )


def _state(told: Sequence[Accelerators], name: str) -> bool | None:
    """What most accelerators of all nodes are set to."""
    states: list[bool | None] = [state for one in told for state in getattr(one, name) or ()]
    return agreed({str(index): state for index, state in enumerate(states)}).value
