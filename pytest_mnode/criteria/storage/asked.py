"""Has ranks measure storage, repeats until values are decided, and keeps the rows as evidence."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.criteria.launching.rendezvous import first_error
from pytest_mnode.criteria.storage import in_ranks, rules, semantics
from pytest_mnode.criteria.storage.files import PAGE
from pytest_mnode.criteria.storage.meeting import PREFIX, Directory, guarded
from pytest_mnode.criteria.storage.tools import PROGRAMS
from pytest_mnode.detection import wants_more
from pytest_mnode.errors import MnodeError
from pytest_mnode.evidence.file import record_rows
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.measure import Measure
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.progress import progress
from pytest_mnode.skipping import not_promised, promised
from pytest_mnode.spec.storage import CheckpointPromise, PathPromise, StorageCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec import Spec

_START_S = 60.0
"""Time for what has no size: to meet, to make and remove a directory, and its few files."""
_SEEN_S = 60.0
"""How long a new directory may be unseen where nothing is promised: as long as NFS keeps names."""
_ROUNDS = 4
"""[choice] Renames, each by the next node."""
_FILES_A_SECOND = 50.0
"""[choice] Small files of a node a second that are given up below."""

OF_SEVERAL = (
    "checkpoint.together_at_least_fraction",
    *("renamed_within_s", "locks", "replaced_files"),
)
"""Promises that one node alone cannot keep or break."""
Judge = Callable[[rules.Rates], Iterable[Measurement]]
_COMMON_TOOL = pytest.StashKey[str]()


@dataclass(frozen=True, slots=True)
class Asked:
    """The `storage` fixture: asks one question of each path that promises it."""

    item: pytest.Item
    take_cluster: Callable[[], Cluster]
    spec: Spec
    measure: Measure

    def __call__(self, key: str, ask: Callable[[Path], Iterable[Measurement]]) -> None:
        """Record what `ask` measures on each path whose promise has this key."""
        promise: StorageCriterion = promised(self.spec, "storage")
        paths = [
            Path(self, promise, path, one)
            for path, one in promise.paths.items()
            if has_promise(one, key)
        ]
        if not paths:
            not_promised(f"storage.paths: {key}", key="storage.paths")
        if key in OF_SEVERAL and len(self.take_cluster().nodes) < 2:
            not_promised(f"storage.paths: {key}, and one node has no other")
        for one in paths:
            self.measure.record(ask(one))


def has_promise(promise: PathPromise, key: str) -> bool:
    """Whether a path promises this key, such as checkpoint.together_at_least_fraction."""
    found: Any = promise
    for name in key.split("."):
        found = getattr(found, name) if found else None
    return found is not None and found != ()


@dataclass(frozen=True, slots=True)
class Path:
    """One path, and what is promised of it."""

    asked: Asked
    storage: StorageCriterion
    path: str
    promise: PathPromise

    @property
    def checkpoint(self) -> CheckpointPromise:
        assert self.promise.checkpoint is not None
        return self.promise.checkpoint

    @property
    def ranks_per_node(self) -> int:
        return self.asked.spec.accelerators.per_node

    @property
    def node_bytes(self) -> int:
        """Bytes of a node's checkpoint."""
        return self.checkpoint.node_bytes(self.ranks_per_node)

    def once(self, judge: Judge, work: in_ranks.Work) -> list[Measurement]:
        """Findings of one experiment."""
        return self.judged(judge, self.rows([work], 0), keep=True)

    def repeated(
        self,
        judge: Judge,
        works: Sequence[in_ranks.Work],
        repeats: int,
        need_bytes: int,
        own_s: float = 0.0,
        *,
        group: bool = False,
    ) -> list[Measurement]:
        """Findings of experiments that are repeated while a bound is within its interval.

        need_bytes: what each node writes at most. own_s: time that they take beside writing.
        """
        rows: list[Row] = []
        for number in range(4 * repeats):
            progress(self.path, number, repeats)
            rows += self.rows(works, number, need_bytes, own_s, group=group)
            found = self.judged(judge, rows)
            failed = any(one.value is None for one in rows)
            undecided = any(one.verdict is Verdict.INCONCLUSIVE for one in found)
            more = wants_more(number + 1, repeats, decided=not undecided)
            if failed or (number + 1 >= repeats and not more):
                break
        return self.judged(judge, rows, keep=True)

    def rows(
        self,
        works: Sequence[in_ranks.Work],
        repeat: int,
        need_bytes: int = 0,
        own_s: float = 0.0,
        *,
        group: bool = False,
    ) -> list[Row]:
        rows: list[Row] = []
        for work in works:
            place = self._place(need_bytes, own_s)
            limit_s = 4 * place.limit_s + place.seen_s  # of all steps of an experiment
            # Of nodes that end with this process, ranks end before they can remove anything.
            ours = guarded(pathlib.Path(place.path, place.name), place.limit_s)
            try:
                with ours, self.asked.take_cluster().world(procs_per_node=1) as world:
                    every: list[list[Row]] = world.run(
                        in_ranks.run, work, place, repeat, timeout=limit_s, group=group
                    )
            except MnodeError as error:
                why = first_error(str(error))
                return [*rows, row(in_ranks.UNUSABLE, why=why, device=self.path, repeat=repeat)]
            rows += [one for of_rank in every for one in of_rank]
        return rows

    def _place(self, need_bytes: int, own_s: float) -> Directory:
        within_s = self.promise.renamed_within_s
        moving_s = need_bytes / self.storage.give_up_below_bytes_s
        seed = secrets.randbits(30)
        return Directory(
            self.path,
            f"{PREFIX}{seed:08x}",
            not self.promise.local,
            need_bytes,
            self.storage.free_at_most_fraction,
            2 * within_s if within_s else _SEEN_S,
            _START_S + moving_s + own_s,
            seed,
        )

    def judged(self, judge: Judge, rows: list[Row], *, keep: bool = False) -> list[Measurement]:
        item = self.asked.item
        if keep:
            record_rows(item.config, item.name, rows)
        return [*judge(rules.Rates(self.path, self.asked.take_cluster().nodes, rows))]

    def tool(self) -> str:
        """What measures rates on all nodes."""
        if self.storage.tool is not None:
            return self.storage.tool
        stash = self.asked.item.session.stash
        if _COMMON_TOOL not in stash:
            with self.asked.take_cluster().world(procs_per_node=1) as world:
                every: list[list[str]] = world.run(in_ranks.installed)
            common = [name for name in PROGRAMS if all(name in some for some in every)]
            stash[_COMMON_TOOL] = common[0] if common else "own"
        return stash[_COMMON_TOOL]


def checkpoint(of: Path) -> list[Measurement]:
    """Write and read by all nodes."""
    promise = of.checkpoint
    whole = promise.whole_node_bytes(of.ranks_per_node)
    judge = partial(
        rules.judge_checkpoint, promise=promise, whole_bytes=whole, node_bytes=of.node_bytes
    )
    work = partial(in_ranks.checkpoint, tool=of.tool(), threads=promise.threads)
    return of.repeated(judge, [work], promise.repeats, of.node_bytes)


def together(of: Path) -> list[Measurement]:
    """All nodes at once, and one alone."""
    promise = of.checkpoint
    work = partial(in_ranks.checkpoint, tool=of.tool(), threads=promise.threads)
    judge = partial(rules.judge_together, promise=promise)
    return of.repeated(judge, [work, partial(work, alone=True)], promise.repeats, of.node_bytes)


def small_files(of: Path) -> list[Measurement]:
    """Create, stat and delete."""
    promise = of.promise.small_files
    assert promise is not None
    work = partial(in_ranks.small_files, files=promise.files, threads=promise.threads)
    judge = partial(rules.judge_small_files, promise=promise)
    own_s = promise.files / _FILES_A_SECOND
    return of.repeated(judge, [work], promise.repeats, PAGE * promise.files, own_s)


def random_reads(of: Path) -> list[Measurement]:
    """Reads at random places."""
    promise = of.promise.random_reads
    assert promise is not None
    work = partial(
        in_ranks.random_reads,
        tool=of.tool(),
        threads=promise.threads,
        block_bytes=promise.block_bytes,
        duration_s=promise.duration_s,
    )
    each = promise.size_bytes // promise.threads // promise.block_bytes * promise.block_bytes
    judge = partial(rules.judge_random_reads, promise=promise)
    need = each * promise.threads
    return of.repeated(judge, [work], promise.repeats, need, promise.duration_s)


def beside_collectives(of: Path) -> list[Measurement]:
    """A checkpoint and all-reduces, each by itself and both at once."""
    promise = of.promise.beside_collectives
    assert promise is not None
    work = partial(
        in_ranks.beside_collectives,
        tool=of.tool(),
        threads=of.checkpoint.threads,
        size_bytes=promise.size_bytes,
    )
    judge = partial(rules.judge_beside, promise=promise)
    return of.repeated(judge, [work], promise.repeats, of.node_bytes, group=True)


def renames(of: Path) -> list[Measurement]:
    """Files that each node in turn renames."""
    judge = partial(semantics.judge_renames, promise=of.promise)
    return of.once(judge, partial(in_ranks.renames, rounds=_ROUNDS))


def locks(of: Path) -> list[Measurement]:
    """Each kind of lock."""
    kinds = of.promise.locks
    judge = partial(semantics.judge_locks, kinds=kinds)
    return of.once(judge, partial(in_ranks.locks, kinds=kinds))


def replaced(of: Path) -> list[Measurement]:
    """A file that is replaced under its readers."""
    return of.once(semantics.judge_replaced, in_ranks.replaced)


def exceeded(of: Path) -> list[Measurement]:
    """A checkpoint beyond the limit."""
    limit = of.promise.limit_bytes
    assert limit is not None
    return of.once(semantics.judge_exceeded, partial(in_ranks.exceeded, limit_bytes=limit))
