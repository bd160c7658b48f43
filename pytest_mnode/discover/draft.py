"""First draft of a cluster's spec page, from the machines of its nodes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import yaml

from pytest_mnode.checks.node.pcie import pci_links
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.discover import bounds
from pytest_mnode.discover.cluster import CONFIRM, Cluster, agreed, alike, named
from pytest_mnode.discover.hardware import (
    accelerators,
    extending,
    fabric,
    gpudirect,
    management,
    platform_of,
    scheduled,
)
from pytest_mnode.discover.networks import has_accelerators
from pytest_mnode.discover.nodes import FoundCluster, FoundNode, machine_of
from pytest_mnode.discover.page import Entry, mapped, rendered, scalar
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.mounts import Mount
from pytest_mnode.measurement import listed as first_few
from pytest_mnode.spec import Spec
from pytest_mnode.spec.quantity import SIZE

_MAY_BE_UNREAD = ("accelerators", "kernel_log")
_MOST_SOURCES = 3
_NONE = "none"
_OF_PROFILES = ("accelerators.", "fabric.")


@dataclass(frozen=True, slots=True)
class Draft:
    """A page and its open points.

    differences: facts that differ between nodes, one line each. missing: keys that the loader
    requires and no node shows. unread: parts of nodes that could not be read.
    """

    preface: tuple[str, ...]
    entries: tuple[Entry, ...]
    differences: tuple[str, ...]
    missing: tuple[str, ...]
    unread: tuple[str, ...] = ()

    def text(self, tried: Sequence[str] = ()) -> str:
        """The page as YAML. tried: results of checking the nodes against it, one paragraph each."""
        differing = [f"- {line}" for line in self.differences]
        heading = ["Not all nodes show the same:"] if differing else []
        unread = [f"- could not be read: {line}" for line in self.unread]
        return rendered([*self.preface, *heading, *differing, *unread, *tried], self.entries)


def draft(found: FoundCluster) -> Draft:
    """A first page. Raises ValueError if no node could be read."""
    if not found.shown:
        raise ValueError("no node could be read")
    cluster = Cluster(found)
    hardware = (accelerators(cluster), fabric(cluster))
    site = (management(cluster), storage(cluster), scheduler(cluster))
    firmware = agreed({node.name: machine_of(node).dmi for node in cluster.nodes}).value
    platform = platform_of(*hardware, firmware)
    if platform is None:
        valid = "How long a certificate is valid."
        certificate = Entry("certificate", "{valid_for: 7 days}", valid, gap=True)
        entries = (*_head(found), *hardware, *site, _criteria(cluster), certificate)
    else:
        own = {one.key: one for one in extending(platform, hardware, _promises(cluster))}
        criteria = own.pop("criteria")
        children = [*criteria.children, *gang(cluster)]
        if checked := tuple(promised_by_checks(cluster.found.shown, platform.spec)):
            children = _with_preflight(children, checked)
        criteria = replace(criteria, children=tuple(children))
        entries = (own.pop("extends"), *_head(found), *own.values(), *site, criteria)
        cluster.missing = [key for key in cluster.missing if not key.startswith(_OF_PROFILES)]
    return Draft(
        tuple(_preface(found)),
        entries,
        tuple(cluster.differences),
        tuple(cluster.missing),
        tuple(_unread(found)),
    )


def _unread(found: FoundCluster) -> Iterator[str]:
    """Parts that nodes could not read, with the nodes that share the reason."""
    named_by: dict[tuple[str, str], list[str]] = {}
    for node in found.shown:
        for part, why in machine_of(node).unread.items():
            # Without NVML, or permission to read the log, less is promised; a hang is a defect.
            if part not in _MAY_BE_UNREAD or why.startswith("no answer"):
                named_by.setdefault((part, why), []).append(node.name)
    for (part, why), nodes in named_by.items():
        yield f"{part} of {named(nodes)}: {why}"


def _preface(found: FoundCluster) -> Iterator[str]:
    names = [node.name for node in found.shown]
    yield (
        f"A first spec, made by --mnode-discover on {found.made_at} from {len(names)} "
        f"node{'s' * (len(names) != 1)}: {named(names)} (launcher {found.launcher}, "
        f"{found.reason})."
    )
    yield (
        "It describes what exists, which may differ from what was bought: a NIC that is missing on "
        "every node, or a link at half its rate, is written down as if it were correct. Compare "
        "each line with the order, correct it, and then set confirmed: true. Until then no run "
        "with this page certifies."
    )
    for node in found.silent:
        yield f"- {node.name} could not be read: {node.problem}"


def _head(found: FoundCluster) -> Iterator[Entry]:
    name = found.scheduler.get("cluster") or f"discovered {found.made_at.partition(' ')[0]}"
    yield Entry("name", scalar(name), "Name of the cluster.", gap=True)
    yield Entry("confirmed", "false", f"{CONFIRM}, line by line; then set true.")
    if found.emulated:
        why = "Emulated parts, which each certificate names."
        yield Entry("emulated", "", why, items=found.emulated)
    silent = f", {named([n.name for n in found.silent])} could not" if found.silent else ""
    seen = f"Number of nodes that this run requested; {len(found.shown)} could be read{silent}."
    yield Entry("nodes", str(len(found.nodes)), f"{seen} {CONFIRM}.")


def _criteria(cluster: Cluster) -> Entry:
    about = (
        "No node shows these bounds: healthy clusters of this kind meet them. Replace them by what "
        "was promised to you. What is left out is reported as not promised."
    )
    machine = _promises(cluster)
    entries = (Entry("mesh", "{}"),) if machine is None else bounds.criteria(machine)
    if checked := tuple(promised_by_checks(cluster.found.shown)):
        entries = tuple(_with_preflight(entries, checked))
    return Entry("criteria", "", about, (*entries, *gang(cluster)), gap=True)


def _with_preflight(entries: Sequence[Entry], checked: tuple[Entry, ...]) -> list[Entry]:
    """The criteria with further questions of preflight."""
    before = [child for one in entries if one.key == "preflight" for child in one.children]
    preflight = Entry("preflight", "", "", (*before, *checked))
    return [preflight, *(one for one in entries if one.key != "preflight")]


def promised_by_checks(nodes: Sequence[FoundNode], profile: Spec | None = None) -> Iterator[Entry]:
    """What checks promise of the rows that these nodes read for them: one entry for each key.

    profile: whose promises are left out of which no node shows anything.
    """
    done = set[str]()
    for one in catalogue("preflight"):
        rows = {node.name: node.rows.get(one.case(), ()) for node in nodes}
        promise = one.draft(rows) if one.drafts() and one.key not in done else None
        if promise is not None:
            done.add(one.key)
            text = yaml.safe_dump(promise, default_flow_style=True, sort_keys=False, width=1 << 20)
            seen = defaultdict[str, list[str]](list)
            for name, found in rows.items():
                for row in found:
                    seen[f"{row.metric} {row.device}".rstrip() + f" {row.shown}"].append(name)
            words = [f"{what} on {named(having)}" for what, having in seen.items()]
            key = one.key.removeprefix("preflight.")
            value = text.removesuffix("...\n").strip()
            yield Entry(key, value, f"{one.question()} Seen: {first_few(words)}.")
        elif one.drafts() and one.key not in done and profile is not None:
            shown = any(row.value is not None for found in rows.values() for row in found)
            if not shown and promise_of(one, profile) is not None:
                done.add(one.key)
                key = one.key.removeprefix("preflight.")
                yield Entry(key, "null", "Left out: no node shows it.")


def _promises(cluster: Cluster) -> bounds.Machine | None:
    """Facts on which bounds depend; None if no fabric was seen."""
    wire, managed = cluster.usual("fabric"), cluster.usual("management")
    if wire is None:
        return None
    machines = [machine_of(node) for node in cluster.nodes]
    shm, memlock, open_files = _limits(cluster)
    numa_nodes = cluster.fact("NUMA nodes", lambda one: len(one.numa.with_cpus) or None).value
    on_pci = [function for one in machines for function in one.pci.accelerators]
    shown = [accelerator for one in machines for accelerator in one.accelerators or ()]
    direct = gpudirect(cluster) if wire.kind not in ("ethernet", "cxi") else None
    return bounds.Machine(
        nodes=len(cluster.found.nodes),
        accelerators=any(map(has_accelerators, machines)),
        emulated=bool(cluster.found.emulated),
        fabric=wire,
        managed=managed is not None and managed.rate_mbits_s is not None,
        managed_mtu=managed is not None and managed.mtu_bytes is not None,
        numa_nodes=numa_nodes or 0,
        numa_known=all(function.numa_node is not None for function in on_pci),
        nvml=all(one.accelerators for one in machines),
        ecc=_usual(one.ecc_enabled for one in shown),
        persistence=_usual(one.persistence for one in shown),
        mig=_usual(one.mig_enabled for one in shown),
        remapped_rows=bool(shown)
        and all(None not in (one.remapped_rows_failed, one.remapped_rows_pending) for one in shown),
        pcie_links=all(map(_shows_pcie_links, machines)),
        kernel_log=all(one.kernel_log is not None for one in machines),
        gpudirect=direct.mechanism if direct is not None else "",
        shm_bytes=shm,
        memlock=memlock or "",
        open_files=open_files,
    )


def _usual(states: Iterable[bool | None]) -> bool | None:
    """The setting of most accelerators of all nodes."""
    return agreed({str(index): state for index, state in enumerate(states)}).value


def _shows_pcie_links(machine: Machine) -> bool:
    """Whether accelerators and RDMA devices have links, and every field of each link is known."""
    links = pci_links(machine, [device.name for device in machine.rdma or ()])
    return bool(links) and all(None not in astuple(link) for link in links)


def _limits(cluster: Cluster) -> tuple[int | None, str | None, int | None]:
    """Bytes of shared memory, locked memory as a page writes it, and the limit of open files.

    None if no node shows it, or no value is the most frequent. The minimum of all nodes is not
    used: one broken node would lower the limit for all.
    """
    sizes = alike(_shm_bytes(machine_of(node)) for node in cluster.nodes)
    shm = cluster.fact(
        "size of /dev/shm",
        lambda machine: None if (size := _shm_bytes(machine)) is None else sizes[size],
        lambda size: SIZE.text(size) if size else "less than 1 MiB",
    )
    memlock = cluster.fact("locked memory", _memlock)
    locked = None if memlock.value == _NONE else memlock.value
    files = cluster.fact("open files", lambda one: one.limits.open_files if one.limits else None)
    return shm.value, locked, files.value


def _shm_bytes(machine: Machine) -> int | None:
    """Size of /dev/shm, rounded down to GiB, or to MiB below 1 GiB."""
    size_bytes = machine.shm_bytes
    if size_bytes is None:
        return None
    unit = 1 << (30 if size_bytes >= 1 << 30 else 20)
    return size_bytes // unit * unit


def _memlock(machine: Machine) -> str | None:
    if machine.limits is None:
        return None
    limit = machine.limits.memlock_bytes
    if limit is None:
        return "unlimited"
    return SIZE.text(limit) if limit else _NONE


def storage(cluster: Cluster) -> Entry:
    """File systems that all nodes mount; the operator fills in what each is for."""
    # The source is no part of the key: a file server may give nodes different addresses.
    mounts: dict[tuple[str, str], dict[str, str]] = {}
    for node in cluster.nodes:
        for mount in _shared_mounts(machine_of(node)):
            mounts.setdefault((mount.path, mount.kind), {})[node.name] = mount.source
    for place, having in mounts.items():
        lacking = [
            node.name
            for node in cluster.nodes
            if node.name not in having and not _on_demand(machine_of(node), place[0])
        ]
        if lacking:
            mounted = f"{_mounted(*place, having)} is mounted on {named(list(having))}"
            cluster.differences.append(f"{mounted}, and not on {named(lacking)}")
    shared = [mount for mount, having in mounts.items() if len(having) == len(cluster.nodes)]
    if not shared:
        why = "Left out: no network file system is mounted on all nodes."
        form = "{datasets: /data, checkpoints: /checkpoints}"
        return Entry("storage", form, why, left_out=True, gap=True)
    seen = "; ".join(_mounted(*place, mounts[place]) for place in shared)
    why = (
        f"Left out: the use of each file system is unknown. Mounted on all nodes: {seen}. Name "
        "paths in them, uncomment, and promise storage: {} under criteria.preflight."
    )
    first = scalar(shared[0][0])
    form = mapped({"datasets": first, "checkpoints": first})
    return Entry("storage", form, why, left_out=True, gap=True)


def _shared_mounts(machine: Machine) -> list[Mount]:
    """Network file systems ordered by path; of several at one path the last, which is on top."""
    found = {mount.path: mount for mount in machine.mounts or () if mount.of_network}
    return [found[path] for path in sorted(found)]


def _on_demand(machine: Machine, path: str) -> bool:
    """Whether an automounter mounts what is at a path when a process uses it."""
    found = [mount.path for mount in machine.mounts or () if mount.kind == "autofs"]
    return any(f"{path}/".startswith(f"{one}/") for one in found)


def _mounted(path: str, kind: str, having: Mapping[str, str]) -> str:
    """Description of a file system. having: its source by node."""
    sources = list(dict.fromkeys(having.values()))
    if len(sources) == 1:
        return f"{path} ({kind} {sources[0]})"
    of = f"{len(sources)} sources: {named(sources, _MOST_SOURCES)}"
    return f"{path} ({kind} from {of}; check that they are one file system)"


def gang(cluster: Cluster) -> tuple[Entry, ...]:
    """The gang criterion, as a comment; empty without a scheduler."""
    if not scheduled(cluster):
        return ()
    why = "Left out: runs alone, and needs free nodes; see docs/gang.md."
    return (Entry("gang", "{}", why, left_out=True),)


def scheduler(cluster: Cluster) -> Entry:
    """The scheduler that allocates nodes, if the run or the nodes show it."""
    kind = cluster.fact("scheduler", lambda machine: machine.scheduler)
    used = cluster.found.scheduler
    names = {key: scalar(name) for key, name in used.items() if key not in ("kind", "cluster")}
    if answers := scheduled(cluster):
        how = "this run has an allocation" if used else f"{kind.seen}: it answers"
        promised = {"kind": answers, **({"names": mapped(names)} if names else {})}
        return Entry("scheduler", mapped(promised), f"Seen: {how}. {CONFIRM}.", gap=True)
    why = "Left out: this run has no allocation of a scheduler, and none answers on a node."
    return Entry("scheduler", "{kind: slurm}", why, left_out=True, gap=True)
