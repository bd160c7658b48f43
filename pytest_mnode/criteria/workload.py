"""The buyer's own job: started as users start it, and judged by what it prints."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

from pytest_mnode.criteria.goodput import PARTS, Ledger, RankNotes, ledger, read_notes
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.errors import MnodeError, TimeLimitError
from pytest_mnode.intervals import interval_of
from pytest_mnode.jobs import Job, observed
from pytest_mnode.jobs.torchrun import before_restart
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.nodes import NO_SHARED_DIR
from pytest_mnode.logs.aftermath import OF_A_FAILURE, Answer, Left, answer
from pytest_mnode.logs.causes import Cause
from pytest_mnode.logs.nccl_inspector import Calls, read_calls
from pytest_mnode.logs.training import FORMATS, Progress, Step, read_progress
from pytest_mnode.measurement import HeadlineMark, Measurement, at_least, at_most, equals, listed
from pytest_mnode.progress import progress

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec.inventory import Dtype
    from pytest_mnode.spec.workload import PartName, WorkloadCriterion

_KEY = "criteria.workload"
_RANKS_SHOWN = 8
_WHO = re.compile(r"\[?rank ?\d+\]?|\d+", re.IGNORECASE)
_BLOCKS = 4
"""Parts of a run whose medians give the interval of its rate: neighbouring steps are alike."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The command on a number of nodes. codes: exit status by node; {} if it had not ended in time,
    and why says so. said: what its output says. seconds: from its start to its end."""

    nodes: tuple[str, ...]
    ranks: int
    codes: Mapping[str, int]
    why: str
    said: Progress
    cause: Cause | None
    seconds: float
    ledger: Ledger | None = None
    unobserved: str = ""
    hung: bool = False
    places: Mapping[int, str] = field(default_factory=dict)
    killed_s: float | None = None
    resumed_s: float | None = None
    """The end of the first step after the kill."""
    calls: Sequence[Calls] = ()
    """Collectives, by NCCL's inspector where the job loads it."""
    suspects: Sequence[int] = ()
    """Ranks that others seem to wait for, where the cause names no culprit."""
    kept: str = ""
    """Where its output and dumps are kept, if it failed and the run has a report; or why not."""

    @property
    def failed(self) -> list[str]:
        """Nodes on which it did not end well."""
        return [node for node, code in self.codes.items() if code]


@dataclass(slots=True)
class Runs:
    """Runs of the command by number of nodes, each made once in a session. report: the folder where
    what a failed one leaves is kept; None for nowhere."""

    report: Path | None = None
    _done: dict[int, Ran] = field(default_factory=dict)
    _killed: Ran | None = None

    def of(self, cluster: Cluster, promise: WorkloadCriterion, per_node: int) -> list[Ran]:
        """A run on each promised number of nodes, the smallest first; none larger than the test."""
        numbers = promise.nodes or (len(cluster.nodes),)
        fit = [one for one in numbers if one <= len(cluster.nodes)]
        for number in fit:
            if number not in self._done:
                progress(f"the workload on {count(number)}")
                nodes, keep = cluster.nodes[:number], self._folder(number)
                self._done[number] = run(cluster, promise, nodes, per_node, keep=keep)
        return [self._done[number] for number in fit]

    def killed(self, cluster: Cluster, promise: WorkloadCriterion, per_node: int) -> Ran:
        """A run in which a rank is killed, on as many nodes as the largest other one."""
        number = max(min(len(cluster.nodes), one) for one in promise.nodes or (len(cluster.nodes),))
        if self._killed is None:
            progress(f"the workload on {count(number)}, of which a rank is killed")
            nodes, keep = cluster.nodes[:number], self._folder(f"{number}-killed")
            self._killed = run(cluster, promise, nodes, per_node, kill=True, keep=keep)
        return self._killed

    def _folder(self, which: object) -> Path | None:
        return self.report and self.report / f"workload-{which}"


def run(
    cluster: Cluster,
    promise: WorkloadCriterion,
    nodes: Sequence[str],
    per_node: int,
    *,
    kill: bool = False,
    keep: Path | None = None,
) -> Ran:
    """Run the command on these nodes, within its limit. kill: its last rank, as promised. keep: the
    folder for what it leaves if it fails."""
    with contextlib.ExitStack() as stack:
        notes, unobserved = None, "no part of the ledger is promised"
        if promise.observed:
            unobserved = "" if cluster.share_files else NO_SHARED_DIR
            notes = stack.enter_context(observed.notes(cluster)) if cluster.share_files else None
        given = {**cluster.given_env, **promise.env}
        job = Job(
            promise.command,
            nodes=tuple(nodes),
            procs_per_node=per_node,
            env=promise.env if notes is None else {**promise.env, **notes.env(given)},
            torchrun=promise.torchrun,
            restarts=promise.restarts,
        )
        return _run(cluster, promise, job, notes, unobserved, kill=kill, keep=keep)


def _run(
    cluster: Cluster,
    promise: WorkloadCriterion,
    job: Job,
    notes: observed.Notes | None,
    unobserved: str,
    *,
    kill: bool,
    keep: Path | None,
) -> Ran:
    nodes = cast("tuple[str, ...]", job.nodes)
    began_s, codes, why, output, hung = time.time(), {}, "", {}, False
    ranks, killed_s = len(nodes) * job.procs_per_node, list[float]()

    def kill_once() -> None:
        if kill and notes and promise.resume and not killed_s:
            if notes.steps() < promise.resume.after_step:
                return
            killed_s.append(time.time())
            running.kill(rank=ranks - 1)

    try:
        running = cluster.launch(job)
        try:
            if notes is None:
                result = running.wait(promise.within_s)
            else:
                result = notes.wait(running, promise.within_s, promise.stalled_after_s, kill_once)
            codes, output = result.returncodes, result.output
        except TimeLimitError as error:
            hung = isinstance(error, observed.StalledError)
            why = f"{error} (criteria.workload.{'stalled_after' if hung else 'within'})"
            output = {node: running.output(node) for node in nodes}
        finally:
            ended_s = time.time()
            running.close()
            ended_s = ended_s if codes or hung else time.time()  # till then it goes on
    except MnodeError as error:
        why, ended_s = why or str(error), time.time()
    patterns = FORMATS
    if promise.reads in FORMATS:
        patterns = {promise.reads: FORMATS[promise.reads]}
    elif promise.reads != "auto":
        patterns = {"own": promise.reads}
    files = notes.files() if notes else {}
    starts = read_notes(files)
    restarts = max(0, len(starts) - 1)
    said = read_progress(output.values(), patterns, ranks=ranks, restarts=restarts)
    places = {one.rank: one.node for ranks in starts for one in ranks}
    failed = why or any(codes.values())
    logs = output if failed else {node: before_restart(text) for node, text in output.items()}
    found = answer(Left.of_nodes(logs, files, places) if failed or starts[1:] else Left({}))
    return Ran(
        nodes,
        ranks,
        codes,
        why,
        said,
        cause_on(nodes, found),
        ended_s - began_s,
        None
        if notes is None
        else ledger(starts, began_s, ended_s, last_step=(counted(said) or (None,))[0], hung=hung),
        unobserved,
        hung,
        places,
        next(iter(killed_s), None),
        resumed(starts, killed_s[0]) if killed_s else None,
        read_calls(files[name].decode(errors="replace") for name in files if name[-4:] == ".log"),
        found.suspects,
        _keep(keep, output, files) if keep and failed else "",
    )


def cause_on(nodes: Collection[str], found: Answer) -> Cause | None:
    """The cause; without rank and node if it is no node's own, as all of several say the same."""
    if found.cause is None:
        return None
    cause = found.cause.cause
    every = [cause, *(one.cause for one in found.others)]
    alike = [one.host for one in every if _WHO.sub("", one.line) == _WHO.sub("", cause.line)]
    of_all = len(nodes) > 1 and set(alike).issuperset(nodes)
    return replace(cause, host=None, ranks=()) if of_all else cause


def _keep(folder: Path, output: Mapping[str, str], files: Mapping[str, bytes]) -> str:
    """Keep what a failed job left, as `why` reads it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for node, text in output.items():
            (folder / f"{node}.log").write_text(text, encoding="utf-8", errors="replace")
        for name in files:
            if name.startswith(OF_A_FAILURE):
                (folder / name).write_bytes(files[name])
    except OSError as error:
        return f"what it left could not be kept in {folder}: {error.strerror}"
    return f"what it left is kept in {folder}"


def resumed(starts: Sequence[Sequence[RankNotes]], killed_s: float) -> float | None:
    """When the first step ended of what began after the kill; None if none did."""
    for ranks in starts:
        ends = [one.steps[0] for one in ranks if one.steps and (one.began or 0.0) > killed_s]
        if ends:
            return max(ends)
    return None


def counted(said: Progress) -> tuple[int, int] | None:
    """Steps from the first to the last, by a log that may print only some: at least, at most.

    None if it numbers fewer than two, or those of each epoch anew. A log of every step is exact.
    Others may begin with the step 0 or 1, and have made steps after the last one that they print.
    """
    numbers = [one.number for one in said.steps]
    if len(numbers) < 2 or said.epochs > 1:
        return None
    first, last = numbers[0], numbers[-1]
    apart = max(after - before for before, after in pairwise(numbers))
    if apart == 1:
        return (last - first + 1,) * 2
    begins = min(first, 1) if first <= apart else first
    return last - begins + 1, last + apart - max(0, first - apart)


def judge_end(runs: Sequence[Ran]) -> Iterator[Measurement]:
    """Whether the command ended well on each number of nodes."""
    for ran in runs:
        name = f"nodes on which the workload failed, of {count(len(ran.nodes))}"
        source = "every process ends with status 0"
        cause = "".join(f"; {one}" for one in (ran.cause and ran.cause.text, ran.kept) if one)
        if ran.hung:
            culprit = _named(ran) or Culprit("one of its ranks", either=[ran.nodes])
            note = f"{ran.why}{cause}"
            yield Measurement.none_allowed(name, [culprit], source, note=note)
            continue
        if ran.why:
            yield Measurement.unknown(name, f"{ran.why}{cause}", source=source, culprit=_named(ran))
            continue
        note = f"{len(ran.said.steps)} steps read, {ran.seconds:.0f} s{cause}"
        if broken := _diverged(ran.said):
            note += f"; its loss is NaN or infinite from step {broken[0]} on"
        failed = _named(ran) or (Culprit(", ".join(ran.failed), either=[ran.failed]))
        bad = [failed] if ran.failed else []
        yield Measurement.none_allowed(name, bad, source, count=len(ran.failed), note=note)


def _named(ran: Ran) -> Culprit | None:
    """The culprit that the output names, if it names a node of the run; None of what is known from
    those who only saw it, unless ranks are suspected."""
    cause = ran.cause
    if cause is None or not (ran.suspects if cause.by_victim else cause.culprit):
        return None
    if cause.by_victim:
        suspected = replace(cause, ranks=tuple(ran.suspects), host=None, device=None, peer=None)
        among = {ran.places[rank] for rank in ran.suspects if rank in ran.places}
        return Culprit(f"perhaps {suspected.culprit}", either=[among or ran.nodes])
    nodes = {cause.host, *(ran.places.get(rank) for rank in cause.ranks)}
    named = [one for one in ran.nodes if one in nodes]
    return Culprit(cause.culprit, named, parts=Parts(ranks=cause.ranks))


def judge_rates(
    runs: Sequence[Ran],
    promise: WorkloadCriterion,
    accelerators: str,
    peaks_tflops: Mapping[Dtype, float] = MappingProxyType({}),
) -> Iterator[Measurement]:
    """Rate, MFU and efficiency of the command. accelerators: what a rate is of, in words.
    peaks_tflops: of one of them, by data type."""
    largest = runs[-1]
    peak = promise.peak_tflops or peaks_tflops.get(promise.dtype)
    rates: tuple[tuple[str, str, float | None, Callable[[Step], float | None]], ...] = (
        ("tokens_per_s_at_least", "tokens/s", promise.tokens_per_s_at_least, _tokens),
        (
            "samples_per_s_at_least",
            "samples/s",
            promise.samples_per_s_at_least,
            _samples_of(largest),
        ),
        ("mfu_at_least", "", promise.mfu_at_least, lambda step: _mfu(step, promise, peak)),
    )
    for order, (key, unit, limit, value) in enumerate(rates):
        if limit is not None:
            name = f"MFU of {accelerators}" if not unit else f"{unit} of {accelerators}"
            mark = HeadlineMark(
                "MFU" if not unit else "",
                f"of {accelerators} on {count(len(largest.nodes))}",
                order=order,
            )
            found = _rate(largest, promise, name, unit, value)
            if not unit and (why := _no_mfu(largest, found, promise, peak)):
                found = Measurement.unknown(name, why)
            bound = at_least(limit).of(f"workload.{key}", limit)
            yield replace(found, expected=bound, source=f"{_KEY}.{key} {limit:g}", headline=mark)
    if promise.efficiency_at_least is not None:
        yield from _efficiencies(runs, promise, promise.efficiency_at_least)


def _tokens(step: Step) -> float | None:
    return step.tokens_per_s


def _samples(step: Step, ranks: int) -> float | None:
    return None if step.samples_per_s is None else step.samples_per_s / ranks


def _mfu(step: Step, promise: WorkloadCriterion, peak_tflops: float | None) -> float | None:
    tflops = step.tflops
    if tflops is None and promise.parameters and step.tokens_per_s is not None:
        tflops = 6 * promise.parameters * step.tokens_per_s / 1e12  # Kaplan et al., 2020: 6·N·D
    if step.mfu is not None or tflops is None or peak_tflops is None:
        return step.mfu
    return tflops / peak_tflops


def _no_mfu(
    ran: Ran, found: Measurement, promise: WorkloadCriterion, peak_tflops: float | None
) -> str:
    """Why there is none, or none that can be; "" if it stands as it was found."""
    if found.value is not None and found.value > 1:
        of = "" if peak_tflops is None else f" of a peak of {peak_tflops:g} TFLOP/s"
        return (
            f"{found.value:.3g}{of} is more than all: its lines give the rate of several "
            f"accelerators, or {_KEY}.peak_tflops, dtype or parameters are not the job's"
        )
    rated = any(one.tflops or (promise.parameters and one.tokens_per_s) for one in ran.said.steps)
    if found.value is None and rated and peak_tflops is None and not ran.why:
        return f"no peak is known for {promise.dtype}: give {_KEY}.peak_tflops"
    return ""


def _counted(ran: Ran, promise: WorkloadCriterion) -> tuple[Step, ...]:
    steps = ran.said.steps
    return tuple(one for one in steps if one.number >= steps[0].number + promise.warmup)


def _rate(
    ran: Ran,
    promise: WorkloadCriterion,
    name: str,
    unit: str,
    value: Callable[[Step], float | None],
) -> Measurement:
    """The median over the steps that count, with the interval of the medians of parts of them."""
    known = [
        v
        for one in _counted(ran, promise)
        if (v := value(one)) is not None and v > 0 and math.isfinite(v)
    ]
    if not known:
        return Measurement.unknown(name, _silent(ran, promise, unit or "MFU"), unit=unit)
    return _median_of(known, name, unit, f"after {promise.warmup}")


def _median_of(known: Sequence[float], name: str, unit: str, which: str) -> Measurement:
    size = max(1, len(known) // _BLOCKS)
    parts = [
        median(known[at : at + size]) for at in range(0, size * min(_BLOCKS, len(known)), size)
    ]
    rate, around = median(known), interval_of(parts)
    interval = (around.including(rate).low, around.including(rate).high) if around else None
    note = f"median of {len(known)} steps, {which}"
    return Measurement(name, rate, unit, note=note, interval=interval)


def _noted(ran: Ran, promise: WorkloadCriterion, name: str) -> Measurement:
    """Steps per second as its ranks noted them, of a job that prints no time."""
    took = ran.ledger.took[max(0, promise.warmup - 1) :] if ran.ledger else ()
    if not (known := [1 / one for one in took if one > 0]):
        return Measurement.unknown(name, _silent(ran, promise, "rate or time"))
    return _median_of(known, name, "", f"after {promise.warmup}, as its ranks noted them")


def _silent(ran: Ran, promise: WorkloadCriterion, what: str) -> str:
    if ran.why:
        return ran.why
    if not ran.said.steps:
        first = listed(repr(one[:80]) for one in ran.said.first)
        begins = f"; it begins {first}" if first else ", which is empty"
        return f"no step was read in its output{begins}; name its format by {_KEY}.reads"
    if not _counted(ran, promise):
        return f"{len(ran.said.steps)} steps, and warmup: {promise.warmup} do not count"
    if what.replace("/s", "_per_s") in ran.said.unclear:
        return (
            f"its lines say {what} without saying whether of a rank or of the job; name it by "
            f"{_KEY}.reads: tokens_per_s of a rank, job_tokens_per_s or samples_per_s of the job"
        )
    return f"its steps have no {what} ({ran.said.format}); {_KEY}.reads may have a group for it"


def _efficiencies(
    runs: Sequence[Ran], promise: WorkloadCriterion, limit: float
) -> Iterator[Measurement]:
    base, *others = runs
    if not others:
        why = f"it ran on {count(len(base.nodes))} only: the test has fewer than the next number"
        yield Measurement.unknown("efficiency", why, source=f"{_KEY}.efficiency_at_least {limit:g}")
    source = f"{_KEY}.efficiency_at_least {limit:g}, against {count(len(base.nodes))}"
    bound = at_least(limit).of("workload.efficiency_at_least", limit)
    for ran in others:
        nodes = count(len(ran.nodes))
        name, mark = f"efficiency on {nodes}", HeadlineMark("efficiency", f"on {nodes}", order=3)
        why = (
            _silent(ran, promise, "rate or time") if base.said.steps else _silent(base, promise, "")
        )
        found = Measurement.unknown(name, why)
        kinds = (lambda _: _tokens, _samples_of, lambda _: _speed)
        pairs = [
            [_rate(each, promise, name, "", kind(each)) for each in (base, ran)] for kind in kinds
        ]
        if not (base.why or ran.why):
            pairs.append([_noted(each, promise, name) for each in (base, ran)])
        for one, other in pairs:
            if one.value and other.value:
                found = replace(other, value=other.value / one.value, interval=None)
                if one.interval and other.interval:
                    ends = other.interval[0] / one.interval[1], other.interval[1] / one.interval[0]
                    found = replace(found, interval=ends)
                break
        yield replace(found, expected=bound, source=source, headline=mark)


def _samples_of(ran: Ran) -> Callable[[Step], float | None]:
    return lambda step: _samples(step, ran.ranks)


def _speed(step: Step) -> float | None:
    return 1 / step.seconds if step.seconds else None


def judge_goodput(ran: Ran, promise: WorkloadCriterion) -> Iterator[Measurement]:
    """The ledger of the largest run: its goodput, and each of its parts."""
    book, source = ran.ledger, f"{_KEY}.goodput_at_least"
    bound = None
    if promise.goodput_at_least is not None:
        bound = at_least(promise.goodput_at_least)
        bound = bound.of("workload.goodput_at_least", promise.goodput_at_least)
    why = _unseen(ran, "goodput")
    if book is None or book.goodput is None or why:
        yield Measurement.unknown("goodput", why, expected=bound, source=source)
    else:
        note = f"{book.wall:.1f} s: " + ", ".join(
            f"{name} {seconds:.1f} s" for name, seconds in book.parts.items() if seconds >= 0.05
        )
        goodput, spread = book.goodput, _spread(ran, book)
        interval = (goodput, goodput + spread)
        found = Measurement("goodput", goodput, "", bound, source, note=note, interval=interval)
        yield replace(found, headline=HeadlineMark("goodput", order=4))
    for name in PARTS:
        limit = promise.at_most.get(name)
        expected = None if limit is None else at_most(limit).of(f"workload.at_most.{name}", limit)
        title, source = f"{name}, of the wall time", f"{_KEY}.at_most.{name}"
        why = _unseen(ran, name)
        if book is None or why:
            if expected is not None:
                yield Measurement.unknown(title, why, expected=expected, source=source)
        elif book.parts[name] or expected is not None:
            value = book.parts[name] / book.wall
            spread = _spread(ran, book) if name == "lost steps" else 0.0
            yield Measurement(
                title,
                value,
                "",
                expected,
                source,
                _culprit(ran, book, name),
                note=f"{book.parts[name]:.2f} s{_evidence(name, ran, book)}",
                interval=(value - spread, value) if spread else None,
            )


def _unseen(ran: Ran, name: PartName | Literal["goodput"]) -> str:
    """Why a part of the ledger is not known; "" if it is."""
    book = ran.ledger
    if book is None or not book.steps:
        return ran.unobserved or "no rank noted a step: it imports no torch, or has a PYTHONPATH"
    if name in ("lost steps", "goodput") and book.starts > 1 and not _twice(book.steps, ran.said):
        return "it began again, and its log does not number the steps that its ranks make"
    return book.unseen(name)


def _spread(ran: Ran, book: Ledger) -> float:
    """Fraction of the wall time in steps that may be lost or not, by the log."""
    least, most = _twice(book.steps, ran.said) or (0, 0)
    return book.parts["lost steps"] / book.wall * (1 - least / most) if most else 0.0


def judge_resume(ran: Ran, promise: WorkloadCriterion) -> Iterator[Measurement]:
    """Whether the job went on after a rank was killed, and what it lost."""
    asked = promise.resume
    assert asked is not None
    unit, judged = "s", at_most(asked.within_s).of("workload.resume.within", asked.within_s)
    name, source = "time from the kill to a new step", f"{_KEY}.resume.within"
    why, took = ran.why or ran.unobserved, None
    if ran.ledger:
        why = why or ran.ledger.unseen("restarting")
    if ran.killed_s is None:
        why = why or f"it ended before step {asked.after_step}, after which a rank is killed"
    elif ran.failed or ran.hung:
        cause = f"; {ran.cause.text}" if ran.cause else ""
        among = Culprit(
            ", ".join(ran.failed) or "one of its ranks", either=[ran.failed or ran.nodes]
        )
        note = f"{why or 'it failed after the kill'}{cause}"
        bad = [_named(ran) or among]
        yield Measurement.none_allowed("jobs that did not resume", bad, source, note=note)
        return
    elif ran.resumed_s is None or ran.resumed_s < ran.killed_s:
        why = why or "it made no step after the kill"
    else:
        took = ran.resumed_s - ran.killed_s
    if took is None or why:
        yield Measurement.unknown(name, why, unit=unit, expected=judged, source=source)
        return
    yield Measurement(name, took, unit, judged, source)
    yield _lost(ran, asked.lost_steps_at_most)
    if promise.loss is not None:
        yield from judge_loss(ran, promise)


def _lost(ran: Ran, most: int) -> Measurement:
    """Steps that were made twice: those that ranks noted beyond those that the log counts."""
    name, source = "steps lost", f"{_KEY}.resume.lost_steps_at_most"
    bound = at_most(most).of("workload.resume.lost_steps_at_most", most)
    steps = ran.ledger.steps if ran.ledger else 0
    if (span := _twice(steps, ran.said)) is None:
        why = f"its log does not number the steps from 2 on that its ranks make ({steps} noted)"
        return Measurement.unknown(name, why, expected=bound, source=source)
    interval = span if span[0] < span[1] else None
    return Measurement(name, span[1], "", bound, source, interval=interval)


def _twice(noted: int, said: Progress) -> tuple[int, int] | None:
    """Of the steps that ranks noted, those made twice: at least, at most."""
    span = counted(said)
    if span is None or noted < span[0]:
        return None
    return max(0, noted - span[1]), noted - span[0]


def _culprit(ran: Ran, book: Ledger, name: PartName) -> Culprit | None:
    """Who makes a part of the ledger as long as it is."""
    if name == "restarting":
        return _named(ran)
    if name == "communicating" and book.slow_link:
        ends = sorted(book.slow_link)
        if len(ends) == 1:
            return Culprit(f"link of {ends[0]}", ends)
        return Culprit(f"link of {' or '.join(ends)}", either=[ends])
    return _slow(ran, book.slow.get(name))


def _slow(ran: Ran, rank: int | None) -> Culprit | None:
    if rank is None:
        return None
    node = ran.places.get(rank, "")
    parts = Parts(ranks=(rank,))
    return Culprit(f"rank {rank} on {node}", filter(None, [node]), parts=parts)


def _evidence(name: PartName, ran: Ran, book: Ledger) -> str:
    """What a part is known by, where that is not all steps of all ranks."""
    if name in ("stepping", "communicating", "slow rank"):
        note = f"; by {book.traces} traces of two steps"
        if not book.traces:
            note = "; no trace: communication is within stepping"
        elif book.hidden is not None:
            note += f"; hidden besides: {book.hidden:.3g} s a step"
        if name != "stepping":
            note += _by_rank(book.traced)
        if name != "stepping" and ran.calls:
            one, *_ = ran.calls
            late = f", {one.late} comes last" if one.late else ""
            note += (
                f"; NCCL: {one.name} of {one.size_bytes / 1e6:.3g} MB over {one.ranks} ranks at "
                f"{one.busbw_gbytes_s:.3g} GB/s, median of {one.calls}{late}"
            )
        return note
    if name == "lost steps" and book.lost:
        return f"; {book.lost} steps were made twice, over {book.starts} starts"
    return ""


def _by_rank(traced: Mapping[int, tuple[float, float]]) -> str:
    """Exposed and hidden communication of ranks, those that wait least first: they are waited for.
    Of many, both ends."""
    ranks = sorted(traced, key=lambda rank: traced[rank])
    if len(ranks) > _RANKS_SHOWN:
        ranks = [*ranks[: _RANKS_SHOWN // 2], *ranks[-_RANKS_SHOWN // 2 :]]
    ms = (f"rank {r} {1e3 * traced[r][0]:.3g}+{1e3 * traced[r][1]:.3g}" for r in ranks)
    return f"; exposed+hidden, ms a step: {', '.join(ms)}" if ranks else ""


def judge_loss(ran: Ran, promise: WorkloadCriterion) -> Iterator[Measurement]:
    """The losses of the largest run against those of the reference."""
    assert promise.loss is not None
    said = {one.number: one.loss for one in ran.said.steps}
    for step, reference in promise.loss.curve:
        source = f"{_KEY}.loss of step {step}: {reference:g} ± {promise.loss.within:g}"
        bound = equals(reference, promise.loss.within)
        name = f"loss of step {step}"
        if (loss := said.get(step)) is None:
            why = ran.why or f"its output has no loss of step {step}"
            yield Measurement.unknown(name, why, expected=bound, source=source)
        elif math.isnan(loss):
            note = "NaN or infinite, on a rank at least"
            yield Measurement.none_allowed(f"{name}: no number", (), source, count=1, note=note)
        else:
            yield Measurement(name, loss, "", bound, source)
    if broken := _diverged(ran.said):
        name, source = "steps at the end without a finite loss", f"{_KEY}.loss"
        note = f"NaN or infinite from step {broken[0]} on"
        yield Measurement.none_allowed(name, (), source, count=len(broken), note=note)


def _diverged(said: Progress) -> list[int]:
    """The last steps, if their losses are NaN or infinite."""
    known = [(one.number, one.loss) for one in said.steps if one.loss is not None]
    finite = [at for at, (_, loss) in enumerate(known) if math.isfinite(loss)]
    return [number for number, _ in known[finite[-1] + 1 if finite else 0 :]]
