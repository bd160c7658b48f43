"""Does the system let a rank have enough: shared memory, locked memory, open files, disk?"""

from __future__ import annotations

from pytest_mnode.criteria.preflight.facts import NodeSurvey, PlaceFacts, Survey
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    Subject,
    silence,
    unknown,
)
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import Limits
from pytest_mnode.spec.quantity import SIZE

SHM = "/dev/shm"
UNLIMITED_BYTES = float((1 << 63) - 1)
"""No limit as a number, so that a bound can be kept by it: the most a process could address."""


def _limits(spec: Spec) -> Limits:
    promise = spec.criteria.preflight
    return (promise.limits if promise else None) or Limits.model_validate({})


def _place(node: NodeSurvey, key: str) -> PlaceFacts | None:
    places = node.facts.places if node.facts else ()
    return next((place for place in places if place.key == key), None)


def shared_memory(survey: Survey, spec: Spec, name: str) -> Answer:
    """Size of /dev/shm, and how much of it is free: NCCL and data loaders die without."""
    promised = _limits(spec)
    me = survey.node(name)
    found: list[Measurement] = []
    for key, attribute, least in (
        ("shm", "size_bytes", promised.shm_bytes),
        ("shm_free", "free_bytes", promised.shm_free_bytes),
    ):
        if least is not None:
            label = f"{SHM} {'size' if key == 'shm' else 'free'}"
            source = f"preflight.limits.{key} {SIZE.text(least)}"
            subject = Subject(label, "B", at_least(least), source)
            found.append(_room(me, SHM, attribute, subject))
    return tuple(found) or NotPromised(f"room in {SHM}")


def disk(survey: Survey, spec: Spec, name: str) -> Answer:
    """One measurement a path: how much is free there for a user without privileges."""
    promise = spec.criteria.preflight
    if promise is None or promise.disk is None:
        return NotPromised("free room on disks")
    me = survey.node(name)
    return tuple(
        _room(
            me,
            f"disk {promised.path}",
            "free_bytes",
            Subject(
                f"{promised.path} free",
                "B",
                at_least(promised.free_bytes),
                f"preflight.disk {promised.path} {SIZE.text(promised.free_bytes)}",
            ),
        )
        for promised in promise.disk
    )


def _room(me: NodeSurvey, key: str, attribute: str, subject: Subject) -> Measurement:
    place = _place(me, key)
    if place is None:
        return subject.unknown(silence(me))
    value: int | None = getattr(place, attribute)
    if value is None:
        why = place.problem or "its size cannot be read"
        return subject.unknown(f"{me.name} {place.path}: {why}")
    on = f"on {place.file_system}" if place.file_system else ""
    return subject.measured(value, f"{me.name} {place.path}", on)


def locked_memory(survey: Survey, spec: Spec, name: str) -> Answer:
    """RLIMIT_MEMLOCK of a process on this node; RDMA cannot register buffers beyond it."""
    least = _limits(spec).memlock_bytes
    if least is None:
        return NotPromised("locked memory")
    unlimited = least == "unlimited"
    wanted = UNLIMITED_BYTES if isinstance(least, str) else float(least)
    source = f"preflight.limits.memlock {least if isinstance(least, str) else SIZE.text(least)}"
    me = survey.node(name)
    label = "memory that a process may lock"
    if me.facts is None:
        return unknown(label, "B", at_least(wanted), source, silence(me))
    limit = me.facts.limits.memlock_bytes
    value = UNLIMITED_BYTES if limit is None else float(limit)
    note = "unlimited" if limit is None else f"{name}: {limit} B, not unlimited" * unlimited
    culprit = f"{name} memlock (ulimit -l, LimitMEMLOCK=)"
    return (Measurement(label, value, "B", at_least(wanted), source, culprit, note),)


def open_files(survey: Survey, spec: Spec, name: str) -> Answer:
    """RLIMIT_NOFILE of a process on this node; every peer and every shard takes some."""
    least = _limits(spec).open_files
    if least is None:
        return NotPromised("open files")
    source, me = "preflight.limits.open_files", survey.node(name)
    label = "files that a process may have open"
    if me.facts is None:
        return unknown(label, "", at_least(least), source, silence(me))
    limit = me.facts.limits.open_files
    value = UNLIMITED_BYTES if limit is None else float(limit)
    culprit = f"{name} nofile (ulimit -n, LimitNOFILE=)"
    return (Measurement(label, value, "", at_least(least), source, culprit),)
