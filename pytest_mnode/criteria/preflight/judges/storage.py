"""Judges of storage: whether its paths are readable, writable and the same on all nodes."""

from __future__ import annotations

from pytest_mnode.criteria.preflight.answers import DirectoryFacts, NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import (
    Subject,
    listed,
    no_answer,
    promises,
)
from pytest_mnode.criteria.preflight.orders import STORED
from pytest_mnode.evidence.rules import difference, unlike
from pytest_mnode.machine.mounts import LOCAL_FILE_SYSTEMS
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import StoragePromise


def _promised(spec: Spec) -> tuple[StoragePromise, dict[str, str]] | None:
    """The storage promise, and the storage paths by key; None if the spec lacks either."""
    promise = promises(spec).storage
    if promise is None or spec.storage is None:
        return None
    paths: dict[str, str] = {
        key: path for key in STORED if (path := getattr(spec.storage, key)) is not None
    }
    return promise, paths


def usable(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Whether each path can be read, and written to if the spec says so."""
    promised = _promised(spec)
    if promised is None:
        return []
    promise, paths = promised
    me = survey.node(name)
    found = []
    for key, path in paths.items():
        uses = ("read", "written to") if key in promise.writable else ("read",)
        for use in uses:
            subject = Subject(f"{key} can be {use}", "", equals(1), f"storage.{key} {path}")
            found.append(can_be_used(me, key, use, subject))
    return found


def can_be_used(me: NodeSurvey, key: str, use: str, subject: Subject) -> Measurement:
    """Whether a node's directory can be "read" or "written to"."""
    one = me.directory(key)
    if one is None:
        return subject.unknown(no_answer(me))
    problem = one.problem or (one.write_problem if use != "read" else "")
    if problem and (why := _why_undecided(one, problem)):
        return subject.unknown(f"{me.name} {one.path}: {why}")
    on = f" on {one.file_system}" if one.file_system else ""
    culprit = f"{me.name} {one.path}: {problem}" if problem else None
    return subject.measured(not problem, culprit, f"{me.name}: {problem or 'yes'}{on}")


def _why_undecided(directory: DirectoryFacts, problem: str) -> str:
    """Why a problem does not prove that jobs lack access to a directory; "" if it does."""
    if directory.timed_out:
        return problem  # a server may be slow once, for all nodes at the same time
    if directory.refuses_root:
        return f"{problem} as root (root_squash?): rerun as an ordinary user"
    return ""


def shared(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement per shared path: other nodes' new files that are missing or different here.

    If no node may write, the source of the mount is compared, and `sample` compares its files.
    """
    promised = _promised(spec)
    if promised is None or len(survey.nodes) == 1:
        return []
    promise, paths = promised
    me = survey.node(name)
    return [_shared(survey, me, key, path) for key, path in paths.items() if key in promise.shared]


def _shared(survey: Survey, me: NodeSurvey, key: str, path: str) -> Measurement:
    source = f"storage.{key} {path}"
    label = f"{key}: files of other nodes that are missing, unreadable or different"
    subject = Subject(label, "", equals(0), source)
    one = me.directory(key)
    if one is None or me.paths is None:
        return subject.unknown(no_answer(me))
    if one.problem:
        return subject.unknown(f"{me.name}: {one.problem}")
    directories = {node.name: node.directory(key) for node in survey.others(me)}
    if any(other is not None and other.token is not None for other in directories.values()):
        checked = [seen for seen in me.paths.seen if seen.directory == key]
        if not checked:
            return subject.unknown(f"{me.name} did not check the files in time")
        unseen = [
            f"the file of {survey.nodes[seen.index].name} ({seen.problem})"
            for seen in checked
            if seen.problem
        ]
        culprit = f"{me.name} {path} is {one.file_system or 'another file system'}"
        note = f"{me.name}: {listed(unseen)}" if unseen else f"all {len(checked)} files can be read"
        return subject.measured(len(unseen), culprit, note)
    mount = Subject(f"{key}: mount unlike that of other nodes", "", equals(0), source)
    return _same_mount(survey, me, one, mount)


def _same_mount(
    survey: Survey, me: NodeSurvey, one: DirectoryFacts, subject: Subject
) -> Measurement:
    systems = {
        node.name: found.file_system
        for node in survey.nodes
        if (found := node.directory(one.key)) is not None and found.file_system is not None
    }
    if me.name not in systems or len(systems) < 2:
        why = "no file could be written there, and its mount cannot be compared"
        return subject.unknown(f"{me.name}: {why}")
    kind, _, _ = systems[me.name].partition(" ")
    odd = difference({node: _export(mount) for node, mount in systems.items()}, me.name)
    note = f"{systems[me.name]}, {odd.usual} on {odd.who}" if odd else systems[me.name]
    boots = {node.machine.boot_id for node in survey.nodes if node.name in systems}
    one_machine = len(boots) == 1 and None not in boots
    if odd is None and kind in LOCAL_FILE_SYSTEMS and not one_machine:
        why = f"{kind} is not shared between machines, and no file could be written to test it"
        return subject.unknown(f"{me.name}: {note}: {why}")
    if odd is None and len(set(systems.values())) > 1:
        if not one.samples:
            why = "server addresses differ between nodes, and there are no files to compare"
            return subject.unknown(f"{me.name}: {note}, {why}")
        note += "; server addresses differ between nodes; the file sample decides"
    culprit = unlike(f"{me.name} {one.path}", me.name, [odd] if odd else [])
    return subject.measured(odd is not None, culprit, f"{me.name}: {note}")


def _export(mount: str) -> str:
    """A mount without its server's address, because nodes may have different addresses of it."""
    kind, _, source = mount.partition(" ")
    _, server, path = source.partition(":/")
    return f"{kind} {server}{path}" if server else mount


def sample(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Number of sampled files of the datasets that differ from those on most nodes."""
    promised = _promised(spec)
    if promised is None or "datasets" not in promised[1] or len(survey.nodes) == 1:
        return []
    path = promised[1]["datasets"]
    subject = Subject(
        "files of the datasets that differ", "", equals(0), f"storage.datasets {path}"
    )
    me = survey.node(name)
    mine = me.directory("datasets")
    if mine is None or mine.problem:
        return [subject.unknown(no_answer(me) if mine is None else f"{name}: {mine.problem}")]
    digests = {
        node.name: {s.name: f"{s.digest} of {s.size_bytes} B" for s in found.samples}
        for node in survey.nodes
        if (found := node.directory("datasets")) is not None and not found.problem
    }
    files = sorted({file for samples in digests.values() for file in samples})
    if not files:
        return [subject.unknown("there is no file to compare")]
    if len(digests) < 2:
        return [subject.unknown(f"only {name} can read the datasets")]
    differing = {}
    for file in files:
        values = {
            node: samples.get(file, "not among the sampled files")
            for node, samples in digests.items()
        }
        if (odd := difference(values, name)) is not None:
            differing[f"{file}: {values[name]}, {odd.usual} on {odd.who}"] = odd
    note = listed([*differing], 2) or f"{len(files)} compared"
    culprit = unlike(f"{name} {path}", name, differing.values())
    return [subject.measured(len(differing), culprit, f"{name}: {note}")]
