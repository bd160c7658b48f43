"""What checkpoints of the reference job cost: time and bytes, of the run that nobody killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import watching
from pytest_mnode.criteria.restart.findings import Figure, Finding
from pytest_mnode.criteria.restart.kills import uninterrupted
from pytest_mnode.criteria.restart.lives import History
from pytest_mnode.criteria.restart.planning import CHECKPOINT_EVERY, device_for, plan
from pytest_mnode.spec.restart import RestartCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec import Spec

TIME, SIZE = "time of a checkpoint, the longest", "size of a checkpoint"
_SOURCE = "criteria.restart.checkpoint_within"


def judged_checkpoints(
    promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> Sequence[Finding]:
    """Time and size of the checkpoints of the run that nobody killed."""
    place = watching.shared_place(cluster, spec, base)
    if isinstance(place, str):
        return [Figure(TIME, None, "s", promise.checkpoint_within_s, source=_SOURCE, note=place)]
    planned = plan(promise, cluster.nodes, cluster.procs_per_node, device_for(spec))
    whole = uninterrupted(planned, promise, cluster, place, base)
    return costs(whole, planned.config.steps // CHECKPOINT_EVERY, promise.checkpoint_within_s)


def costs(whole: History, expected: int, within_s: float | None) -> list[Finding]:
    """The longest time, of all ranks, and the size of all files. Pure. expected: how many."""
    written = [
        (record, own.start.node)
        for life in whole.lives
        for own in life.by_rank.values()
        for record in own.checkpoints
    ]
    steps = {record.step for record, _ in written}
    if len(steps) < expected:
        why = f"{len(steps)} of {expected} checkpoints were written"
        return [Figure(TIME, None, "s", within_s, source=_SOURCE, note=why)]
    longest, node = max(written, key=lambda pair: pair[0].seconds)
    largest = max(record.bytes for record, _ in written)
    note = f"{len(steps)} of them, step {longest.step} the longest"
    culprit = f"rank {longest.rank} on {node}, step {longest.step}"
    source = _SOURCE if within_s is not None else ""
    return [
        Figure(TIME, longest.seconds, "s", within_s, source=source, culprit=culprit, note=note),
        Figure(SIZE, largest / 1e6, "MB", note="all files of all ranks"),
    ]
