"""Runs the restart experiments on a cluster; each run is made once per session. A checkpoint is
also resumed on other numbers of ranks than the number that saved it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.charts import Moment, Span, Timeline
from pytest_mnode.criteria.restart import run_files, warm_runs
from pytest_mnode.criteria.restart.comparing import Parameters, compared_parameters
from pytest_mnode.criteria.restart.history import History, Incarnation, history_of
from pytest_mnode.criteria.restart.judging import (
    KillReport,
    Terms,
    checkpoint_bound,
    checkpoint_costs,
    completed,
    judge,
    judge_resume,
)
from pytest_mnode.criteria.restart.kill_run import KillRun
from pytest_mnode.criteria.restart.plan import (
    CHECKPOINT_EVERY,
    Plan,
    config_for,
    kills_in_order,
    plan,
    resharded_tolerance,
    terms_of,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import RankError
from pytest_mnode.jobs import JobEvent
from pytest_mnode.measurement import Measurement
from pytest_mnode.processes import last_line
from pytest_mnode.progress import progress
from pytest_mnode.reference_job.config import device_for
from pytest_mnode.reference_job.records import read_records
from pytest_mnode.spec.restart import Kill, RestartCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec import Spec


_BY_SCHEDULERS: tuple[Kill, ...] = ("node", "preemption")
"""Kills after which the scheduler starts the job again, and not torchrun."""
_MOST_LANES = 16
_CHECKPOINTS = "checkpoints"
_KEPT, _REDONE, _LOADING, _SAVING = "trains", "trains, lost by the kill", "loads", "saves"


@dataclass(frozen=True, slots=True)
class Killed:
    """A kill, the killed run (`history`), and the uninterrupted run (`whole`).

    parameters: final parameters of the killed run; None if digests are compared.
    """

    plan: Plan
    whole: History
    history: History
    report: KillReport
    events: Sequence[JobEvent]
    parameters: Parameters | None

    @property
    def lines(self) -> list[str]:
        """The kill and the events of the job, for the log."""
        return [self.report.what, *map(str, self.events)]

    def timeline(self, kill: Kill) -> list[Timeline]:
        """Chart of the kill and the recovery, for the certificate; empty if there was no kill."""
        shown = kill_timeline(kill, self.history, self.report, self.events)
        return [] if shown is None else [shown]


_KILLED: dict[tuple[str, str], dict[Kill, Killed]] = {}
"""Kills of this session, by session directory and promise."""


def killed_before(kill: Kill, promise: RestartCriterion, base: Path) -> Killed | None:
    """A kill that the run of an earlier test included; None if there is none.

    It needs no nodes, because one of them may be lost for good.
    """
    return _KILLED.get((str(base), promise.model_dump_json()), {}).get(kill)


def kill_in_run(
    kill: Kill, promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> Killed | str:
    """Run the reference job, and kill it in every promised way, one after the other.

    A kill that the job does not survive ends its run; the kills that are left get another run.
    base: a directory of this session on this machine. A str says why no run is possible.
    """
    shared = run_files.shared_directory(cluster, spec, base)
    if isinstance(shared, str):
        return shared
    kills, why = kills_in_order(promise, spec), cluster.why_not_submitted
    if why and kill in _BY_SCHEDULERS:
        return f"{why}: whether it starts the job again was not tried"
    kills = tuple(one for one in kills if not (why and one in _BY_SCHEDULERS))
    planned = plan(
        promise, cluster.nodes, cluster.procs_per_node, device_for(spec.accelerators.per_node)
    )
    whole = uninterrupted(planned, promise, cluster, shared, base)
    done = _KILLED.setdefault((str(base), promise.model_dump_json()), {})
    while left := [one for one in kills if one not in done]:
        node = planned.observer_node
        with run_files.run_directory(cluster, node, shared, "killed") as directory:
            into = base / f"killed-{'-'.join(left)}-{planned.digest()}"
            run = KillRun(left, promise, planned, cluster, directory, into)
            history = run.run()
            config = replace(planned.config, directory=directory)
            parameters = None
            if not planned.exact(promise):
                with contextlib.suppress(RankError):
                    parameters = warm_runs.saved_parameters(cluster, config, node)
        for one, report in run.reports.items():
            done[one] = Killed(planned, whole, history, report, run.events, parameters)
    return done[kill]


def judge_killed(
    kill: Kill, promise: RestartCriterion, killed: Killed | str, base: Path
) -> list[Measurement]:
    """All measurements of one kill."""
    if isinstance(killed, str):
        name = "kills that the job did not come back from"
        source = "criteria.restart.kills"
        return [Measurement.unknown(name, killed, source=source)]
    terms = killed.plan.terms(kill, promise)
    found = judge(killed.whole, killed.history, killed.report, terms)
    judged = len(found) > 1  # one measurement alone says why there is nothing to judge
    if judged and killed.report.incarnations is None and not terms.tolerance.exact:
        import numpy as np

        path = _kept(base, killed.plan) / "parameters.npz"
        expected = dict(np.load(path)) if path.exists() else {}
        found.append(compared_parameters(expected, killed.parameters or {}, terms.tolerance))
    return found


def judge_checkpoints(
    promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> list[Measurement]:
    """Time and size of the checkpoints of the uninterrupted run."""
    within_s = promise.checkpoint_within_s
    shared = run_files.shared_directory(cluster, spec, base)
    if isinstance(shared, str):
        bound = checkpoint_bound(within_s)
        name, source = "time of a checkpoint, the longest", "criteria.restart.checkpoint_within"
        return [Measurement.unknown(name, shared, unit="s", expected=bound, source=source)]
    planned = plan(
        promise, cluster.nodes, cluster.procs_per_node, device_for(spec.accelerators.per_node)
    )
    whole = uninterrupted(planned, promise, cluster, shared, base)
    return checkpoint_costs(whole, planned.config.steps // CHECKPOINT_EVERY, within_s)


def uninterrupted(
    planned: Plan, promise: RestartCriterion, cluster: Cluster, shared: Path, base: Path
) -> History:
    """History of the uninterrupted run, which is made in warm ranks once per session.

    If the run failed, the reason is in `stray`.
    """
    kept = _kept(base, planned)
    reason = kept / "reason"
    if not reason.exists():
        node = planned.observer_node
        with run_files.run_directory(cluster, node, shared, "whole") as directory:
            config = planned.whole(directory)
            progress("uninterrupted run", 0, 0)
            final = warm_runs.finished(cluster, config, planned.nodes, planned.per_node)
            run_files.read_history(cluster, node, directory, kept)
        why = ""
        if isinstance(final, RankError):
            why = last_line(str(final))
        elif not planned.exact(promise):
            import numpy as np

            np.savez(kept / "parameters.npz", **final)
        reason.write_text(why)
    history = history_of(read_records(kept))
    stray = (reason.read_text(), *history.stray)
    return replace(history, stray=tuple(filter(None, stray)))


def _kept(base: Path, planned: Plan) -> Path:
    """The directory for the records and the final parameters of the uninterrupted run."""
    return base / f"whole-{planned.digest()}"


def kill_timeline(
    kill: str, history: History, report: KillReport, events: Sequence[JobEvent]
) -> Timeline | None:
    """Timeline of ranks from the killed start to the start after it; of many ranks, the first.

    Times are by the clocks of the nodes, which differ a little. None if there was no kill.
    """
    last = report.incarnations or len(history.incarnations)
    shown = history.incarnations[report.incarnation : last]
    if report.missed or not shown:
        return None
    began = min(own.start.time for one in shown for own in one.by_rank.values())
    until = max((span.end_s for one in shown for span in _spans(one, history, 0.0)), default=began)
    spans = [span for one in shown for span in _spans(one, history, began)]
    happened = [(report.at, f"{report.what} (clock of {report.clock})")]
    happened += [
        (event.time_s, " ".join(filter(None, (event.what, event.node, event.detail))))
        for event in events
        if event.what not in ("signalled", "submitted", "started")
        and report.at <= event.time_s <= until
    ]
    ranks = {span.lane for span in spans} - {_CHECKPOINTS}
    lanes = sorted(ranks, key=lambda lane: int(lane.split()[1]))[:_MOST_LANES]
    lanes += [_CHECKPOINTS] if any(span.lane == _CHECKPOINTS for span in spans) else []
    return Timeline(
        f"Kill of {kill} and resume, by the clocks of the nodes",
        tuple(lanes),
        tuple(span for span in spans if span.lane in lanes),
        tuple(Moment(round(at - began, 3), text) for at, text in sorted(happened)),
        (_KEPT, _REDONE, _LOADING, _SAVING),
    )


def _spans(one: Incarnation, history: History, began: float) -> Iterator[Span]:
    """What the ranks of one start did, in seconds since `began`."""
    kept = history.kept_until(one)

    def span(lane: str, start: float, end: float, state: str, text: str) -> Span:
        return Span(lane, round(start - began, 3), round(end - began, 3), state, text)

    for rank, own in one.by_rank.items():
        lane, ready = f"rank {rank}", own.start.time
        loaded = f"step {own.start.loaded}" if own.start.loaded else ""
        yield span(lane, ready - own.start.load_s, ready, _LOADING, loaded)
        for state, steps in (
            (_KEPT, [s for s in own.steps if s.step <= kept]),
            (_REDONE, [s for s in own.steps if s.step > kept]),
        ):
            if steps:
                text = f"{steps[0].step}–{steps[-1].step}"
                yield span(lane, steps[0].began, steps[-1].ended, state, text)
        for saved in own.checkpoints:
            yield span(_CHECKPOINTS, saved.begun, saved.ended, _SAVING, f"step {saved.step}")


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
