"""Judges of the system: whether all nodes are the same, and limits of memory, files and disk."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import (
    Subject,
    listed,
    networks_of,
    no_answer,
    promises,
    why_unread,
)
from pytest_mnode.criteria.preflight.judges.storage import can_be_used
from pytest_mnode.criteria.preflight.orders import SHM, TEMPORARY
from pytest_mnode.evidence.rules import difference, unlike
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.software import NOT_THERE, UNREADABLE
from pytest_mnode.measurement import Measurement, at_least, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import Limits, Part
from pytest_mnode.spec.quantity import SIZE

PARTS: tuple[Part, ...] = (
    *("code", "python", "torch", "packages", "nccl", "driver", "firmware", "kernel", "sysctl"),
)
_READ_FROM = {"firmware": "rdma", "sysctl": "settings", "code": "programs, read in time"}
"""The part of the machine that a part of the spec is read from, if that is not `software`."""
_NONE = "none"
_OF_INTERFACE = "net.ipv4.conf."
_UNLIMITED_BYTES = float((1 << 63) - 1)
"""Value of an absent limit, which every bound accepts: the most that a process could address."""


def same(survey: Survey, spec: Spec, name: str, part: Part) -> list[Measurement]:
    """Number of items of a part (files, packages, versions) that differ from most nodes."""
    if part not in (promises(spec).same or ()) or len(survey.nodes) == 1:
        return []
    me = survey.node(name)
    subject = Subject(f"{part} unlike that of other nodes", "", equals(0), "preflight.same")
    read = {node.name: items_of(node, spec, part) for node in survey.nodes}
    known = {node: items for node, items in read.items() if items is not None}
    if name not in known:
        return [subject.unknown(why_unread(me, _READ_FROM.get(part, "software")))]
    if not any(known.values()) or len(known) == 1:
        alone = f"the {part} is known only for {name}"
        why = alone if any(known.values()) else f"no node has any {part}, or none can be read"
        return [subject.unknown(why)]
    items = sorted({item for mine in known.values() for item in mine})
    odd, found, compared = {}, [], 0
    for item in items:
        values = {
            node: mine.get(item, _NONE)
            for node, mine in known.items()
            if part != "sysctl" or item in mine  # a setting that a namespace hides is unknown
        }
        if name not in values or len(values) == 1:
            continue
        compared += 1
        if (other := difference(values, name)) is not None:
            what = "" if item == part else f"{item} "
            odd[item] = f"{what}{values[name]}, {other.usual} on {other.who}"
            found.append(other)
    unread = [i for i, v in known[name].items() if v.startswith((NOT_THERE, UNREADABLE))]
    if (unread and not odd) or not compared:
        # Equal error texts on all nodes do not prove that the files are equal.
        why = listed([f"{item} is {known[name][item]}" for item in unread], 3)
        return [subject.unknown(f"{name}: {why or f'no {part} that another node also reports'}")]
    note = listed(list(odd.values()), 3) or f"{compared} compared on {len(known)} nodes"
    if compared < len(items):
        note += f"; {len(items) - compared} unreadable here or absent on all other nodes"
    if missing := len(survey.nodes) - len(known):
        note += f"; nothing is known about {missing} nodes"
    culprit = unlike(f"{name} {part}", name, found)
    return [subject.measured(len(odd), culprit, f"{name}: {note}")]


def items_of(node: NodeSurvey, spec: Spec, part: Part) -> Mapping[str, str] | None:
    """Items of a part, compared one by one; empty if the node has none, None if not read."""
    machine, software = node.machine, node.machine.software
    match part:
        case "code":
            return node.facts.code if node.facts else None
        case "firmware":
            if machine.rdma is not None:
                return {one.name: one.firmware for one in machine.rdma if one.firmware}
            return None
        case "sysctl":
            return None if machine.settings is None else _settings(machine, machine.settings, spec)
    if software is None:
        return None
    found: Mapping[str, str] | str | None = getattr(software, part)
    return {part: found} if isinstance(found, str) else found or {}


def _settings(machine: Machine, settings: Mapping[str, str], spec: Spec) -> Mapping[str, str]:
    """Settings and offloads, without those of interfaces that are on no network of the spec."""
    networks = networks_of(spec).values()
    ours = {one.name: one for net in networks for one in machine.matching(net.interfaces)}
    offloads = {
        f"{name} {offload}": "enabled" if is_on else "disabled"
        for name, one in ours.items()
        for offload, is_on in one.offloads.items()
    }
    return offloads | {
        name: value
        for name, value in settings.items()
        if not name.startswith(_OF_INTERFACE)
        or name.removeprefix(_OF_INTERFACE).rpartition(".")[0] in {"all", *ours}
    }


def _limits(spec: Spec) -> Limits:
    return promises(spec).limits or Limits.model_validate({})


def shared_memory(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Size of /dev/shm and its free space, without which NCCL and data loaders crash."""
    promise, me = _limits(spec), survey.node(name)
    found = []
    for key, label, attribute, least in (
        ("shm", f"{SHM} size", "size_bytes", promise.shm_bytes),
        ("shm_free", f"{SHM} free", "free_bytes", promise.shm_free_bytes),
    ):
        if least is not None:
            source = f"preflight.limits.{key} {SIZE.text(least)}"
            bound = at_least(least).of(f"criteria.preflight.limits.{key}", least)
            found.append(_room(me, SHM, attribute, Subject(label, "B", bound, source)))
    return found


def disk(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement per path: space that is free for a user without privileges."""
    found = []
    for one in promises(spec).disk or ():
        source = f"preflight.disk {one.path} {SIZE.text(one.free_bytes)}"
        subject = Subject(f"{one.path} free", "B", at_least(one.free_bytes), source)
        found.append(_room(survey.node(name), f"disk {one.path}", "free_bytes", subject))
    return found


def temporary(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Whether a process of this node can write temporary files, without which no rank starts."""
    if promises(spec).environment is None:
        return []
    source = "TMPDIR of the node, or /tmp: torch, compilers and data loaders write there"
    subject = Subject("temporary files can be written", "", equals(1), source)
    return [can_be_used(survey.node(name), TEMPORARY, "written to", subject)]


def _room(me: NodeSurvey, key: str, attribute: str, subject: Subject) -> Measurement:
    directory = me.directory(key)
    if directory is None:
        return subject.unknown(no_answer(me))
    value: int | None = getattr(directory, attribute)
    where = f"{me.name} {directory.path}"
    if value is None:
        return subject.unknown(f"{where}: {directory.problem or 'its size cannot be read'}")
    on = f"on {directory.file_system}" if directory.file_system else ""
    return subject.measured(value, where, on)


def locked_memory(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Memory that a process on this node may lock, and its CAP_IPC_LOCK, which lifts the limit.

    RDMA registers no buffer beyond RLIMIT_MEMLOCK. For root of a machine the limit counts, because
    root's capabilities prove nothing about other users.
    """
    promise, me = _limits(spec), survey.node(name)
    found = [] if promise.memlock_bytes is None else [_memlock(me, promise.memlock_bytes)]
    if promise.ipc_lock:
        label, source = "processes with CAP_IPC_LOCK", "preflight.limits.ipc_lock true"
        subject = Subject(label, "", equals(1), source)
        limits = me.machine.limits
        if limits is None:
            found.append(subject.unknown(why_unread(me, "limits")))
        elif limits.ipc_lock is None:
            found.append(subject.unknown(f"{name}: its capabilities cannot be read"))
        else:
            culprit = f"{name} CAP_IPC_LOCK (securityContext.capabilities.add: [IPC_LOCK])"
            found.append(subject.measured(limits.ipc_lock, culprit))
    return found


def _memlock(me: NodeSurvey, least: int | str) -> Measurement:
    unlimited = isinstance(least, str)
    text = least if isinstance(least, str) else SIZE.text(least)
    bound = at_least(_UNLIMITED_BYTES if isinstance(least, str) else least)
    bound = bound.of("criteria.preflight.limits.memlock", least)
    source = f"preflight.limits.memlock {text}"
    subject = Subject("memory that a process may lock", "B", bound, source)
    limits = me.machine.limits
    if limits is None:
        return subject.unknown(why_unread(me, "limits"))
    limit = limits.memlock_bytes
    culprit = f"{me.name} memlock (ulimit -l, LimitMEMLOCK=, or IPC_LOCK of a container)"
    if limit is None:
        return subject.measured(_UNLIMITED_BYTES, culprit, "unlimited")
    if limits.ipc_lock and not limits.admin:
        note = f"{me.name}: CAP_IPC_LOCK, which lifts its limit of {limit} B"
        return subject.measured(_UNLIMITED_BYTES, culprit, note)
    note = f"{me.name}: {limit} B, not unlimited" if unlimited else ""
    return subject.measured(limit, culprit, note)


def open_files(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """RLIMIT_NOFILE of a process on this node; every peer and every shard needs open files."""
    least, me = _limits(spec).open_files, survey.node(name)
    if least is None:
        return []
    label, source = "files that a process may have open", "preflight.limits.open_files"
    bound = at_least(least).of("criteria.preflight.limits.open_files", least)
    subject = Subject(label, "", bound, source)
    limits = me.machine.limits
    if limits is None:
        return [subject.unknown(why_unread(me, "limits"))]
    value = _UNLIMITED_BYTES if limits.open_files is None else limits.open_files
    return [subject.measured(value, f"{name} nofile (ulimit -n, LimitNOFILE=)")]
