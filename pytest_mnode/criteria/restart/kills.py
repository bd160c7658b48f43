"""Kills of the reference job, each judged beside the run that nobody killed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import watching
from pytest_mnode.criteria.restart.evidence import Struck
from pytest_mnode.criteria.restart.findings import Finding
from pytest_mnode.criteria.restart.judging import judge
from pytest_mnode.criteria.restart.lives import History, history_of
from pytest_mnode.criteria.restart.planning import Plan, device_for, ordeal_of, plan
from pytest_mnode.criteria.restart.striking import START_LIMIT_S, Ordeal, how_ended, launched
from pytest_mnode.criteria.restart.warming import Parameters, parameters_differ, saved_parameters
from pytest_mnode.errors import RankError, TimeLimitError
from pytest_mnode.jobs import JobEvent
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.records import read_records
from pytest_mnode.spec.restart import Kill, RestartCriterion
from pytest_mnode.wrong import Wrong

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec


@dataclass(frozen=True, slots=True)
class Killed:
    """What came of one kill: findings, and lines for whoever reads the log."""

    findings: Sequence[Finding]
    lines: Sequence[str]

    def record(self, measure: Measure) -> None:
        """Have every finding judged with the test."""
        for finding in self.findings:
            finding.record(measure)


@dataclass(frozen=True, slots=True)
class _Done:
    """A run that was killed, with all that was seen of it, and the run that was not."""

    planned: Plan
    whole: History
    history: History
    struck: Mapping[Kill, Struck]
    events: Sequence[JobEvent]
    parameters: Parameters | None


_DONE: dict[tuple[str, ...], _Done] = {}
"""Runs of this session by its directory, the promise and the kills: each is judged kill by kill."""


def judged_before(kill: Kill, promise: RestartCriterion, base: Path) -> Killed | None:
    """What came of a kill that fell on a run with another one that was judged; else None.

    It needs no nodes, for one of them may be gone for good.
    """
    done = _DONE.get(_key(kill, promise, base))
    return None if done is None else _judged(kill, promise, base, done)


def judged_kill(
    kill: Kill, promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> Killed:
    """Kill the reference job, see it come back, and compare it with one that was not killed.

    base: a directory of this session on this machine. The run that is not killed is made once for
    it, and so is each run that is killed twice.
    """
    place = watching.shared_place(cluster, spec, base)
    if isinstance(place, str):
        why = "a job goes on from a directory that all nodes share"
        return Killed(
            [Wrong("kills that the job did not come back from", None, why, note=place)], []
        )
    planned = plan(promise, cluster.nodes, cluster.procs_per_node, device_for(spec))
    whole = uninterrupted(planned, promise, cluster, place, base)
    kills = ordeal_of(kill, promise)
    key = _key(kill, promise, base)
    if key not in _DONE:
        with watching.run_directory(cluster, planned.eye, place, "killed") as directory:
            into = base / f"killed-{'-'.join(kills)}-{planned.digest()}"
            ordeal = Ordeal(kills, promise, planned, cluster, directory, into)
            history = ordeal.run()
            config = replace(planned.config, directory=directory)
            ended = None if planned.exact(promise) else _parameters(cluster, config, planned)
            _DONE[key] = _Done(planned, whole, history, ordeal.struck, ordeal.events, ended)
    return _judged(kill, promise, base, _DONE[key])


def _key(kill: Kill, promise: RestartCriterion, base: Path) -> tuple[str, ...]:
    return (str(base), promise.model_dump_json(), *ordeal_of(kill, promise))


def _judged(kill: Kill, promise: RestartCriterion, base: Path, done: _Done) -> Killed:
    struck, terms = done.struck[kill], done.planned.terms(kill, promise)
    findings = judge(done.whole, done.history, struck, terms)
    if struck.lives is None and not terms.like.exact:
        expected = _kept_parameters(base, done.planned)
        like = terms.like
        findings.append(
            parameters_differ(expected, done.parameters or {}, like.tolerance, like.source)
        )
    return Killed(findings, [struck.what, *map(str, done.events)])


def _parameters(cluster: Cluster, config: JobConfig, planned: Plan) -> Parameters | None:
    """Final ones, from the newest checkpoint of a run; None where there is none to be had."""
    with contextlib.suppress(RankError):
        return saved_parameters(cluster, config, planned.eye)
    return None


def _kept_parameters(base: Path, planned: Plan) -> Parameters:
    import numpy as np

    path = base / f"whole-{planned.digest()}" / "parameters.npz"
    return dict(np.load(path)) if path.exists() else {}


def uninterrupted(
    planned: Plan, promise: RestartCriterion, cluster: Cluster, place: Path, base: Path
) -> History:
    """The run that nobody kills, by the same torchrun; made once in a session.

    Where it did not end well, how it ended is among what is stray of it.
    """
    kept = base / f"whole-{planned.digest()}"
    ended = kept / "made"
    if not ended.exists():
        with watching.run_directory(cluster, planned.eye, place, "whole") as directory:
            config = planned.whole(directory)
            with contextlib.closing(launched(planned, promise, cluster, config)) as job:
                result = None
                with contextlib.suppress(TimeLimitError):
                    result = job.wait(START_LIMIT_S)
                how = "" if result is not None and result.ok else how_ended(job, result)
                watching.read_history(cluster, planned.eye, directory, kept)
            if not planned.exact(promise):
                import numpy as np

                values = _parameters(cluster, config, planned) or {}
                np.savez(kept / "parameters.npz", **values)
        ended.write_text(how)
    history = history_of(read_records(kept))
    stray = (ended.read_text(), *history.stray)
    return replace(history, stray=tuple(filter(None, stray)))
