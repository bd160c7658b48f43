"""Storage: whether its paths are readable, writable and the same on all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import Directory, DirectoryFacts, NodeSurvey, Survey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows, Subject, difference, listed, unlike
from pytest_mnode.machine.mounts import LOCAL_FILE_SYSTEMS
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec.fields import Bytes, Section, Some
from pytest_mnode.spec.inventory import Inventory

StoragePath = Literal["datasets", "checkpoints", "scratch"]
_DATASETS = "datasets"


class StoragePromise(Section):
    """The paths of `storage` are the same files on all nodes."""

    shared: tuple[StoragePath, ...] = ("datasets", "checkpoints")
    """Which of them are one file system for all nodes."""
    writable: tuple[StoragePath, ...] = ("checkpoints", "scratch")
    """Which of them a job may write to."""
    sample_files: Some = 8
    """Number of files of the datasets that are compared, the first by name."""
    sample_size_bytes: Bytes = Field(1 << 20, alias="sample_size")
    """Size of the head of each file that is read."""


class _OfStorage(SurveyCheck):
    promise: StoragePromise
    read_by = frozenset(("sample_files", "sample_size", "shared", "writable", "storage."))

    def directories(self) -> Iterator[Directory]:
        """All of them for each check, so that a node visits a path once."""
        promise = self.promise
        if self.spec.storage is None:
            return
        for key in ("datasets", "checkpoints", "scratch"):
            path = getattr(self.spec.storage, key)
            sampled = key == _DATASETS
            if path is not None:
                yield Directory(
                    key,
                    path,
                    key in promise.writable,
                    promise.sample_files if sampled else 0,
                    promise.sample_size_bytes if sampled else 0,
                    key in promise.shared,
                )


@check("preflight.storage")
class StorageCanBeUsed(_OfStorage):
    """Can this node read the promised paths, and write where a job must write?"""

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        for one in self.directories():
            for use in ("read", "written to") if one.writable else ("read",):
                source = f"storage.{one.key} {one.path}"
                subject = Subject(f"{one.key} can be {use}", "", equals(1), source)
                yield can_be_used(evidence.node(node), one.key, use, subject)

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        if cluster.storage is None:
            yield ": given, but storage names no path"
        elif _DATASETS in self.promise.writable:
            yield ".writable: datasets: preflight will write a file there"


@check("preflight.storage")
class StorageIsShared(_OfStorage):
    """Does this node see on shared paths what the other nodes write there?

    If no node may write, the source of the mount is compared, and the files of datasets are.
    """

    of_paths = True

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        """Other nodes' new files that are missing or different here, for each path."""
        for one in self.directories():
            if one.shared and len(evidence.nodes) > 1:
                yield _shared(evidence, evidence.node(node), one)


@check("preflight.storage")
class DatasetsAreTheSame(_OfStorage):
    """Does this node read the same datasets as the others?"""

    def unread(self, node: NodeSurvey) -> str:
        found = node.directory(_DATASETS)
        return node.why() or ("not inspected" if found is None else found.problem)

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        found = node.directory(_DATASETS)
        for one in found.samples if found else ():
            yield row("file", f"{one.digest} of {one.size_bytes} B", device=one.name)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        for one in self.directories():
            if one.key == _DATASETS and len(rows.by_node) > 1:
                yield rows.same("file", what=one.path, absent="not among the sampled files")


def can_be_used(me: NodeSurvey, key: str, use: str, subject: Subject) -> Measurement:
    """Whether a node's directory can be "read" or "written to"."""
    one = me.directory(key)
    if one is None:
        return subject.unknown(f"{me.name}: {me.why() or 'not inspected'}")
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


def _shared(survey: Survey, me: NodeSurvey, promised: Directory) -> Measurement:
    key, path = promised.key, promised.path
    source = f"storage.{key} {path}"
    label = f"{key}: files of other nodes that are missing, unreadable or different"
    subject = Subject(label, "", equals(0), source)
    one = me.directory(key)
    if one is None or me.paths is None:
        return subject.unknown(f"{me.name}: {me.why() or me.problem or 'not inspected'}")
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
