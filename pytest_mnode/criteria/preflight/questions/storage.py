"""Are the paths of storage there, writable, and the same files on all nodes?"""

from __future__ import annotations

from typing import Literal

from pytest_mnode.criteria.preflight.facts import NodeSurvey, PlaceFacts, Survey
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    difference,
    listed,
    silence,
    unknown,
)
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import StoragePromise

PLACES: tuple[Literal["datasets", "checkpoints", "scratch"], ...] = (
    "datasets",
    "checkpoints",
    "scratch",
)


def _promised(spec: Spec) -> tuple[StoragePromise, dict[str, str]] | None:
    """What is promised of which paths, by key."""
    promise = spec.criteria.preflight
    if promise is None or promise.storage is None or spec.storage is None:
        return None
    paths: dict[str, str] = {
        key: path for key in PLACES if (path := getattr(spec.storage, key)) is not None
    }
    return (promise.storage, paths) if paths else None


def _place(node: NodeSurvey, key: str) -> PlaceFacts | None:
    places = node.facts.places if node.facts else ()
    return next((place for place in places if place.key == key), None)


def usable(survey: Survey, spec: Spec, name: str) -> Answer:
    """Two measurements a path at most: whether it can be read, and written to where it must be."""
    promised = _promised(spec)
    if promised is None:
        return NotPromised("paths that can be read and written to")
    promise, paths = promised
    me = survey.node(name)
    found: list[Measurement] = []
    for key, path in paths.items():
        for what, asked in (("read", True), ("written to", key in promise.writable)):
            if not asked:
                continue
            label, source = f"{key} can be {what}", f"storage.{key} {path}"
            place = _place(me, key)
            if place is None:
                found += unknown(label, "", equals(1), source, silence(me))
                continue
            problem = place.problem or (place.write_problem if what != "read" else "")
            if problem and (why := _untold(me, place, problem)):
                found += unknown(label, "", equals(1), source, f"{name} {path}: {why}")
                continue
            on = f" on {place.file_system}" if place.file_system else ""
            culprit = f"{name} {path}: {problem}" if problem else None
            note = f"{name}: {problem or 'yes'}{on}"
            found.append(Measurement(label, not problem, "", equals(1), source, culprit, note))
    return tuple(found)


def _untold(me: NodeSurvey, place: PlaceFacts, problem: str) -> str:
    """Why a problem says nothing of a job's own way to a place; "" where it does."""
    if me.facts is not None and place.key in me.facts.unread:
        return problem  # a server may be slow once, for all nodes at the same time
    if place.refuses_root:
        why = "to root, whom a file server may take for nobody (root_squash): ask as a user"
        return f"{problem} {why}"
    return ""


def shared(survey: Survey, spec: Spec, name: str) -> Answer:
    """One measurement a shared path: others' fresh files that are not seen here as they are.

    Where nobody may write, the mount's source is compared, and the sample of its files.
    """
    promised = _promised(spec)
    if promised is None or not set(promised[0].shared) & promised[1].keys():
        return NotPromised("paths that all nodes share")
    if len(survey.nodes) == 1:
        return NotPromised("one node shares with no other")
    promise, paths = promised
    me = survey.node(name)
    return tuple(
        _shared(survey, me, key, path) for key, path in paths.items() if key in promise.shared
    )


def _shared(survey: Survey, me: NodeSurvey, key: str, path: str) -> Measurement:
    source = f"storage.{key} {path}"
    place = _place(me, key)
    left = {
        node.name
        for node in survey.nodes
        if (found := _place(node, key)) is not None and found.token is not None
    }
    label = f"{key}: files that other nodes left and that are not seen"
    if place is None or me.paths is None or place.problem:
        why = silence(me) if place is None or me.paths is None else f"{me.name}: {place.problem}"
        return unknown(label, "", equals(0), source, why)[0]
    if left - {me.name}:
        unseen = {
            survey.nodes[seen.index].name: seen.problem
            for seen in me.paths.seen
            if seen.place == key and seen.problem
        }
        asked = [seen for seen in me.paths.seen if seen.place == key]
        if not asked:
            return unknown(label, "", equals(0), source, f"{me.name} did not look in time")[0]
        who = [f"that of {other} ({problem})" for other, problem in unseen.items()]
        return Measurement(
            label,
            len(unseen),
            "",
            equals(0),
            source,
            f"{me.name} {path} is {place.file_system or 'another file system'}",
            f"{me.name}: {listed(who)}" if who else f"all {len(asked)} are seen",
        )
    systems = {
        node.name: found.file_system
        for node in survey.nodes
        if (found := _place(node, key)) is not None and found.file_system is not None
    }
    label = f"{key}: mount unlike that of other nodes"
    if me.name not in systems or len(systems) < 2:
        why = f"{me.name}: no file could be left there, and its mount cannot be compared"
        return unknown(label, "", equals(0), source, why)[0]
    odd = difference({node: _export(mount) for node, mount in systems.items()}, me.name)
    note = f"{systems[me.name]}, {odd.usual} on {odd.who}" if odd else systems[me.name]
    if odd is None and len(set(systems.values())) > 1:
        if not place.samples:
            why = f"{me.name}: {note}, by other addresses elsewhere, and without files to compare"
            return unknown(label, "", equals(0), source, why)[0]
        note += ", by other addresses elsewhere: whether it is one file system, its files show"
    return Measurement(
        label, odd is not None, "", equals(0), source, f"{me.name} {path}", f"{me.name}: {note}"
    )


def _export(mount: str) -> str:
    """A mount without the address of its server, of which each node may have been given another."""
    kind, _, source = mount.partition(" ")
    _, server, path = source.partition(":/")
    return f"{kind} {server}{path}" if server else mount


def sample(survey: Survey, spec: Spec, name: str) -> Answer:
    """How many files of a sample of the datasets are not what they are on most nodes."""
    promised = _promised(spec)
    if promised is None or "datasets" not in promised[1]:
        return NotPromised("the same datasets on all nodes")
    if len(survey.nodes) == 1:
        return NotPromised("one node has no other to compare datasets with")
    label, source = (
        "files of the datasets that differ",
        f"storage.datasets {promised[1]['datasets']}",
    )
    me, mine = survey.node(name), _place(survey.node(name), "datasets")
    if mine is None or mine.problem:
        why = silence(me) if mine is None else f"{name}: {mine.problem}"
        return unknown(label, "", equals(0), source, why)
    told = {
        node.name: {s.name: f"{s.digest} of {s.size_bytes} B" for s in place.samples}
        for node in survey.nodes
        if (place := _place(node, "datasets")) is not None and not place.problem
    }
    files = sorted({file for samples in told.values() for file in samples})
    if not files:
        return unknown(label, "", equals(0), source, "there is no file to compare")
    if len(told) < 2:
        return unknown(label, "", equals(0), source, f"only {name} can read them")
    found = []
    for file in files:
        values = {node: samples.get(file, "not among the first") for node, samples in told.items()}
        if (odd := difference(values, name)) is not None:
            found.append(f"{file}: {values[name]}, {odd.usual} on {odd.who}")
    culprit = f"{name} {promised[1]['datasets']}"
    note = listed(found, 2) or f"{len(files)} compared"
    return (Measurement(label, len(found), "", equals(0), source, culprit, f"{name}: {note}"),)
