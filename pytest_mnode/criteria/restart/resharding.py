"""A checkpoint of one number of ranks, gone on from with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import watching
from pytest_mnode.criteria.restart.findings import Finding
from pytest_mnode.criteria.restart.judging import Terms, judge_resume
from pytest_mnode.criteria.restart.planning import config_for, device_for, like_resharded
from pytest_mnode.criteria.restart.resuming import completed
from pytest_mnode.criteria.restart.warming import (
    Parameters,
    finished,
    killed_after,
    last_line,
    parameters_differ,
)
from pytest_mnode.errors import RankError
from pytest_mnode.spec.restart import RestartCriterion
from pytest_mnode.wrong import Wrong

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

_KILLED_AFTER = 10


@dataclass(frozen=True, slots=True)
class Size:
    """Ranks on nodes."""

    nodes: tuple[str, ...]
    per_node: int

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.per_node


@dataclass(frozen=True, slots=True)
class Resharded:
    """What came of going on with another number of ranks; `sizes` says which."""

    sizes: str
    findings: Sequence[Finding]

    def record(self, measure: Measure) -> None:
        """Have every finding judged with the test, under its sizes."""
        for finding in self.findings:
            replace(finding, name=f"{self.sizes}: {finding.name}").record(measure)


def sizes(nodes: Sequence[str], per_node: int, doubled: bool) -> tuple[Size, list[Size]]:
    """What a checkpoint is saved on, and what it is resumed on: half, and twice as many.

    doubled: whether a node can have twice as many ranks; where it cannot, for they would share
    accelerators, what is saved on half of the nodes is resumed on all, and on a quarter.
    """
    names = tuple(nodes)
    half = Size(names[: max(1, len(names) // 2)], per_node)
    if doubled:
        return Size(names, per_node), [half, Size(names, 2 * per_node)]
    quarter = Size(names[: max(1, len(half.nodes) // 2)], per_node)
    smaller = [quarter] if quarter.ranks < half.ranks else []
    return half, [*smaller, Size(names, per_node)]


def judged_on_other_sizes(
    promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> list[Resharded]:
    """Save on some ranks, kill them, and go on with half and twice as many, in warm ranks.

    Compared with a run of the first size that nobody killed; without dropout, whose masks are
    each rank's own.
    """
    place = watching.shared_place(cluster, spec, base)
    if isinstance(place, str):
        why = "ranks of another number need the files of those that saved"
        return [Resharded("resharding", [Wrong("runs that did not go on", None, why, note=place)])]
    saved_on, resumed_on = sizes(
        cluster.nodes, cluster.procs_per_node, not spec.accelerators.per_node
    )
    batch = 2 * max(size.ranks for size in (saved_on, *resumed_on))
    config = config_for(promise, batch, device_for(spec))
    config = replace(config, dropout=0.0, reshard=True, pause_s=0.0)
    eye, at = cluster.nodes[0], (saved_on.nodes, saved_on.per_node)
    found = []
    with (
        watching.run_directory(cluster, eye, place, "whole") as whole_at,
        watching.run_directory(cluster, eye, place, "saved") as saved_at,
    ):
        expected = finished(cluster, replace(config, directory=whole_at), *at)
        whole = watching.read_history(cluster, eye, whole_at, base / "reshard-whole")
        killed_after(cluster, replace(config, directory=saved_at), *at, _KILLED_AFTER)
        for size in resumed_on:
            with watching.run_directory(cluster, eye, place, "resharded") as there:
                watching.copy_run(cluster, eye, saved_at, there)
                moved = replace(config, directory=there)
                came_to = finished(cluster, moved, size.nodes, size.per_node)
                into = base / f"resharded-{size.ranks}"
                cut = watching.read_history(cluster, eye, there, into)
            named = f"{saved_on.ranks} to {size.ranks} ranks"
            like = like_resharded(promise)
            terms = Terms(config.steps, config.samples, config.global_batch, like)
            findings: list[Finding] = [_went_on(came_to, expected)]
            if isinstance(came_to, RankError) or isinstance(expected, RankError):
                found.append(Resharded(named, findings))
                continue
            resumed = cut.lives[-1]
            saved = max(completed(cut.lives[0]), default=0)
            culprit = f"the resume: went on from step {resumed.loaded}, and {saved} was saved"
            lost = abs(saved - resumed.loaded)
            findings.append(
                Wrong("steps lost", lost, like.source, culprit if lost else None, f"from {saved}")
            )
            findings += judge_resume(whole, cut, terms)
            findings.append(parameters_differ(expected, came_to, like.tolerance, like.source))
            found.append(Resharded(named, findings))
    return found


def _went_on(came_to: Parameters | RankError, expected: Parameters | RankError) -> Wrong:
    name, source = "runs that did not go on", "checkpoints are loaded by any number of ranks"
    if isinstance(expected, RankError):
        why = f"the run to compare with failed: {last_line(expected)}"
        return Wrong(name, None, source, note=why)
    if isinstance(came_to, RankError):
        return Wrong(name, 1, source, last_line(came_to))
    return Wrong(name, 0, source)
