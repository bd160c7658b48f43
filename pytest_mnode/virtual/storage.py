"""Storage of a virtual cluster: rows that its nodes would read, judged by the suite's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.storage import asked, in_ranks, rules
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.measurement import Measurement
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster

_FILE = "acceptance/test_storage.py"
_OVER_FLOOR = 1.2
"""Of a healthy path over its promises, as of a floor that it is put back for. [choice]"""
_ANY_RATE = 2e9
"""Bytes a second of a node, where no rate is promised: only shares of it are judged. [choice]"""
_DIFFER = 0.03
"""Relative standard deviation of repeats and nodes: servers differ more than links. [choice]"""
_LOSS, _SEEN_S = 0.1, 2e-3
"""What storage and collectives lose to each other, and when a file is seen. [choice]"""
Ask = Callable[[asked.Path], list[Measurement]]
_TESTS: tuple[tuple[str, str, Ask], ...] = (
    ("checkpoints_are_written_and_read_in_time", "checkpoint", asked.checkpoint),
    (
        "all_nodes_at_once_are_as_fast_as_each_alone",
        "checkpoint.together_at_least_fraction",
        asked.together,
    ),
    ("small_files_are_handled_in_time", "small_files", asked.small_files),
    ("random_reads_are_fast", "random_reads", asked.random_reads),
    (
        "storage_and_collectives_leave_each_other_their_rates",
        "beside_collectives",
        asked.beside_collectives,
    ),
    ("renamed_files_are_seen_in_time", "renamed_within_s", asked.renames),
    ("locks_exclude_other_nodes", "locks", asked.locks),
    ("a_replaced_file_stays_readable", "replaced_files", asked.replaced),
    ("a_full_file_system_is_an_error_and_no_loss", "limit_bytes", asked.exceeded),
)


def storage(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of `acceptance/test_storage.py`."""
    promised = cluster.spec.criteria.storage
    assert promised is not None
    for test, key, ask in _TESTS:
        if key in asked.OF_SEVERAL and len(cluster.nodes) < 2:
            continue
        if there := [k for k, one in promised.paths.items() if asked.has_promise(one, key)]:
            found = [m for path in there for m in ask(_Path.of(cluster, path))]
            yield case(f"{_FILE}::test_{test}", found, cluster.nodes)


@dataclass(frozen=True, slots=True)
class _Path(asked.Path):
    """A path whose experiments are drawn."""

    cluster: VirtualCluster

    @classmethod
    def of(cls, cluster: VirtualCluster, path: str) -> _Path:
        promise = cluster.spec.criteria.storage
        assert promise is not None
        return cls(cast("Any", cluster), promise, path, promise.paths[path], cluster)

    def tool(self) -> str:
        return "own"

    def rows(self, works: Sequence[in_ranks.Work], repeat: int, *_: Any, **__: Any) -> list[Row]:
        found = [row for work in works for row in self._drawn(work, repeat)]
        return [replace(one, device=self.path, repeat=repeat) for one in found]

    def judged(
        self, judge: asked.Judge, rows: list[Row], *, keep: bool = False
    ) -> list[Measurement]:
        del keep
        return [*judge(rules.Rates(self.path, self.cluster.nodes, rows))]

    def _drawn(self, work: Any, repeat: int) -> Iterator[Row]:
        """Rows of an experiment of `in_ranks`, by its name."""
        nodes, name = self.cluster.nodes, getattr(work, "func", work).__name__
        given: dict[str, Any] = getattr(work, "keywords", {})
        alone = nodes[repeat % len(nodes)] if given.get("alone") else ""
        for number, node in enumerate(nodes):
            if alone in ("", node):
                of_node = getattr(self, f"_{name}")(number, given)
                yield from (replace(one, node=node) for one in of_node)

    def _rate(self, node: int, *promised: float | None) -> float:
        """Of a node, that keeps all these promises if all nodes do."""
        usual = max((one for one in promised if one is not None), default=_ANY_RATE)
        share = float(self.cluster.storage[node])
        return self.cluster.around(_OVER_FLOOR * usual, _DIFFER) * share

    def _of_all(self, promised: float | None) -> float | None:
        return None if promised is None else promised / len(self.cluster.nodes)

    def _checkpoint(self, node: int, given: dict[str, Any]) -> Iterator[Row]:
        promise, alone = self.checkpoint, bool(given.get("alone"))
        for kind in ("write", "read"):
            key = f"{kind}_at_least_bytes_s"
            rate = self._rate(
                node, self._of_all(getattr(promise, key)), getattr(promise, f"node_{key}")
            )
            part = _OVER_FLOOR * (promise.together_at_least_fraction or 1) if alone else 1
            yield row(f"{kind} alone" if alone else kind, rate / part, "B/s")
        if not alone:
            yield self._wrong(node)

    def _wrong(self, node: int) -> Row:
        nodes = self.cluster.nodes
        writer = nodes[node if self.promise.local else (node + 1) % len(nodes)]
        count = 7 * (node in self.cluster.stale_files)
        return row("wrong pages", count, peer=writer, size_bytes=64 << 20)

    def _small_files(self, node: int, _: dict[str, Any]) -> Iterator[Row]:
        for step in ("create", "stat", "delete"):
            promised = getattr(self.promise.small_files, f"{step}_at_least_per_s")
            yield row(step, self._rate(node, self._of_all(promised)), "/s")

    def _random_reads(self, node: int, given: dict[str, Any]) -> Iterator[Row]:
        promise = self.promise.random_reads
        assert promise is not None
        reads = promise.reads_at_least_per_s
        in_bytes = None if reads is None else reads * given["block_bytes"]
        rate = self._rate(node, *map(self._of_all, (promise.at_least_bytes_s, in_bytes)))
        yield row("random read", rate, "B/s")
        yield self._wrong(node)

    def _beside_collectives(self, node: int, _: dict[str, Any]) -> Iterator[Row]:
        promise = self.promise.beside_collectives
        assert promise is not None
        for what, beside, limit in (
            ("write without collectives", "write beside", promise.storage_loss_at_most),
            ("all-reduces without storage", "all-reduces beside", promise.collective_loss_at_most),
        ):
            kept = 1 - (_LOSS if limit is None else min(_LOSS, limit / 2))
            yield row(what, self._rate(node), "/s")
            other = " collectives" if what.startswith("write") else " storage"
            yield row(f"{beside}{other}", kept * self._rate(node), "/s")

    def _renames(self, node: int, given: dict[str, Any]) -> Iterator[Row]:
        late_s = self.cluster.files_late_s.get(node, 0.0)
        for writer in range(given["rounds"]):
            peer = self.cluster.nodes[writer % len(self.cluster.nodes)]
            if peer != self.cluster.nodes[node]:
                yield row("renamed file seen", _SEEN_S + late_s, "s", peer=peer)
                yield row("renamed file with other content", 0, peer=peer)

    def _locks(self, node: int, given: dict[str, Any]) -> Iterator[Row]:
        for kind in given["kinds"]:
            if node:
                held = "granted" if {0, node} & self.cluster.local_locks else "refused"
                yield row(f"{kind} that another node holds", held, peer=self.cluster.nodes[0])
            yield row(f"{kind} of an unlocked file", "granted")

    def _replaced(self, node: int, _: dict[str, Any]) -> Iterator[Row]:
        if node:
            stale = node in self.cluster.stale_files
            found = "ESTALE Stale file handle" if stale else "whole"
            yield row("replaced file read on", found, peer=self.cluster.nodes[0])
            anew = "old or mixed" if stale else "new"
            yield row("replaced file opened anew", anew, peer=self.cluster.nodes[0])

    def _exceeded(self, node: int, _: dict[str, Any]) -> Iterator[Row]:
        if self.promise.local or not node:
            yield row("error of a checkpoint that exceeds the limit", "ENOSPC")
            yield row("checkpoint before it", "whole")
            yield row("error of the next checkpoint", "none")
