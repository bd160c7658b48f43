"""Resumes a checkpoint on other numbers of ranks than the number that saved it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import run_files, warm_runs
from pytest_mnode.criteria.restart.comparing import Parameters, compared_parameters
from pytest_mnode.criteria.restart.history import History
from pytest_mnode.criteria.restart.judging import Terms, completed, judge_resume
from pytest_mnode.criteria.restart.plan import (
    config_for,
    resharded_tolerance,
    terms_of,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import RankError
from pytest_mnode.measurement import Measurement
from pytest_mnode.processes import last_line
from pytest_mnode.progress import progress
from pytest_mnode.reference_job.config import device_for
from pytest_mnode.spec.restart import RestartCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec import Spec

_KILLED_AFTER = 10
_DID_NOT_CONTINUE = "runs that did not continue"
_SOURCE = "checkpoints are loaded by any number of ranks"


@dataclass(frozen=True, slots=True)
class Size:
    """Nodes, and the number of ranks on each."""

    nodes: tuple[str, ...]
    per_node: int

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.per_node


def sizes(nodes: Sequence[str], per_node: int, doubled: bool) -> tuple[Size, list[Size]]:
    """The size that saves a checkpoint, and the sizes that resume it: half and twice as many ranks.

    doubled: whether a node can have twice as many ranks. If not, because ranks would share
    accelerators, half of the nodes save, and all of them and a quarter resume.
    """
    names = tuple(nodes)
    half = Size(names[: max(1, len(names) // 2)], per_node)
    if doubled:
        return Size(names, per_node), [half, Size(names, 2 * per_node)]
    quarter = Size(names[: max(1, len(half.nodes) // 2)], per_node)
    smaller = [quarter] if quarter.ranks < half.ranks else []
    return half, [*smaller, Size(names, per_node)]


def judge_other_sizes(
    promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> list[Measurement]:
    """Save on some ranks, kill them, and resume on half and twice as many, in warm ranks.

    The result is compared with an uninterrupted run of the first size; without dropout, because
    each rank draws its own masks.
    """
    shared = run_files.shared_directory(cluster, spec, base)
    if isinstance(shared, str):
        why = "resuming on other ranks needs the files of the ranks that saved"
        return [Measurement.unknown(f"resharding: {_DID_NOT_CONTINUE}", shared, source=why)]
    saved_on, resumed_on = sizes(
        cluster.nodes, cluster.procs_per_node, not spec.accelerators.per_node
    )
    batch = 2 * max(size.ranks for size in (saved_on, *resumed_on))
    config = config_for(promise, batch, device_for(spec.accelerators.per_node))
    config = replace(config, steps=promise.steps, dropout=0.0, reshard=True, pause_s=0.0)
    terms = terms_of(config, resharded_tolerance(promise))
    node, at = cluster.nodes[0], (saved_on.nodes, saved_on.per_node)
    found: list[Measurement] = []
    with (
        run_files.run_directory(cluster, node, shared, "whole") as whole_at,
        run_files.run_directory(cluster, node, shared, "saved") as saved_at,
    ):
        expected = warm_runs.finished(cluster, replace(config, directory=whole_at), *at)
        whole = run_files.read_history(cluster, node, whole_at, base / "reshard-whole")
        warm_runs.killed_after(cluster, replace(config, directory=saved_at), *at, _KILLED_AFTER)
        for number, size in enumerate(resumed_on):
            progress(f"{saved_on.ranks} to {size.ranks} ranks", number, len(resumed_on))
            with run_files.run_directory(cluster, node, shared, "resharded") as resumed_at:
                run_files.copy_run(cluster, node, saved_at, resumed_at)
                moved = replace(config, directory=resumed_at)
                final = warm_runs.finished(cluster, moved, size.nodes, size.per_node)
                into = base / f"resharded-{size.ranks}"
                cut = run_files.read_history(cluster, node, resumed_at, into)
            label = f"{saved_on.ranks} to {size.ranks} ranks"
            of_size = judge_size(expected, whole, final, cut, terms)
            found += [replace(one, name=f"{label}: {one.name}") for one in of_size]
    return found


def judge_size(
    expected: Parameters | RankError,
    whole: History,
    final: Parameters | RankError,
    cut: History,
    terms: Terms,
) -> list[Measurement]:
    """Judge a run that continued on another number of ranks, by one that was not interrupted."""
    continued = _continued(final, expected)
    if isinstance(final, RankError) or isinstance(expected, RankError):
        return [continued]
    saved = max(completed(cut.incarnations[0]), default=0)
    loaded = cut.incarnations[-1].loaded
    culprit = f"the resume: it continued from step {loaded}, and step {saved} was saved"
    lost = Measurement.none_allowed(
        "steps lost",
        [Culprit(culprit)],
        terms.tolerance.source,
        count=abs(saved - loaded),
        note=f"from {saved}",
    )
    parameters = compared_parameters(expected, final, terms.tolerance)
    return [continued, lost, *judge_resume(whole, cut, terms), parameters]


def _continued(final: Parameters | RankError, expected: Parameters | RankError) -> Measurement:
    if isinstance(expected, RankError):
        why = f"the run to compare with failed: {last_line(str(expected))}"
        return Measurement.unknown(_DID_NOT_CONTINUE, why, source=_SOURCE)
    failed = [Culprit(last_line(str(final)))] if isinstance(final, RankError) else []
    return Measurement.none_allowed(_DID_NOT_CONTINUE, failed, _SOURCE)
