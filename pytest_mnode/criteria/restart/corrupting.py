"""A checkpoint that is damaged between the kill and the resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import watching
from pytest_mnode.criteria.restart.findings import Finding
from pytest_mnode.criteria.restart.judging import judge_resume
from pytest_mnode.criteria.restart.kills import uninterrupted
from pytest_mnode.criteria.restart.lives import History
from pytest_mnode.criteria.restart.planning import CHECKPOINT_EVERY, device_for, plan
from pytest_mnode.criteria.restart.warming import finished, killed_after, last_line
from pytest_mnode.errors import RankError
from pytest_mnode.spec.restart import RestartCriterion
from pytest_mnode.wrong import Wrong, listed

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec import Spec

_KILLED_AFTER = 2 * CHECKPOINT_EVERY + 1
DAMAGED = 2 * CHECKPOINT_EVERY
_SOURCE = "a checkpoint whose files are not what was written is refused, the one before is used"


def judged_with_a_damaged_checkpoint(
    promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> Sequence[Finding]:
    """Train in warm ranks, kill all, flip a bit of the newest checkpoint, resume, compare.

    Compared with the run that nobody killed, which ran under torchrun.
    """
    place = watching.shared_place(cluster, spec, base)
    if isinstance(place, str):
        return [Wrong("damaged checkpoints that were used", None, _SOURCE, note=place)]
    planned = plan(promise, cluster.nodes, cluster.procs_per_node, device_for(spec))
    whole = uninterrupted(planned, promise, cluster, place, base)
    at = (planned.nodes, planned.per_node)
    with watching.run_directory(cluster, planned.eye, place, "damaged") as directory:
        config = planned.whole(directory)
        killed_after(cluster, config, *at, _KILLED_AFTER)
        damaged = watching.flip_a_bit(cluster, planned.eye, directory, DAMAGED)
        came_to = finished(cluster, replace(config), *at)
        cut = watching.read_history(cluster, planned.eye, directory, base / "damaged")
    if isinstance(came_to, RankError):
        source = "the checkpoint before a damaged one is used"
        return [Wrong("runs that did not go on", 1, source, last_line(came_to))]
    terms = planned.terms("rank", promise)
    return [*refusal(cut, damaged), *judge_resume(whole, cut, terms)]


def refusal(cut: History, damaged: str) -> list[Wrong]:
    """Whether the damaged checkpoint, of step DAMAGED, was refused with a reason. Pure.

    damaged: what was done to it.
    """
    resumed = cut.lives[-1]
    used = [
        f"rank {rank} on {own.start.node} loaded step {own.start.loaded}, {damaged}"
        for rank, own in resumed.by_rank.items()
        if own.start.loaded == DAMAGED
    ]
    before = DAMAGED - CHECKPOINT_EVERY
    others = [
        f"rank {rank} on {own.start.node} loaded step {own.start.loaded}, step {before} was whole"
        for rank, own in resumed.by_rank.items()
        if own.start.loaded not in (DAMAGED, before)
    ]
    reasons = [text for own in resumed.by_rank.values() for text in own.start.refused]
    unsaid = [
        f"rank {rank} on {own.start.node}"
        for rank, own in resumed.by_rank.items()
        if not any(f"{DAMAGED:08d}" in text for text in own.start.refused)
    ]
    return [
        Wrong("damaged checkpoints that were used", len(used), _SOURCE, listed(used) or None),
        Wrong("checkpoints before it not used", len(others), _SOURCE, listed(others) or None),
        Wrong(
            "refusals without a reason on record",
            len(unsaid),
            _SOURCE,
            listed(unsaid) or None,
            listed(reasons, 1),
        ),
    ]
