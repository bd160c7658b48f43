"""The buyer's own job: started as users start it, and judged by what it prints."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal, cast

from pytest_mnode.criteria.goodput import PARTS, Ledger, RankNotes, ledger, read_notes
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.errors import MnodeError, TimeLimitError
from pytest_mnode.intervals import interval_of
from pytest_mnode.jobs import Job, observed
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.nodes import NO_SHARED_DIR
from pytest_mnode.logs.causes import ENDINGS, Cause, first_cause
from pytest_mnode.logs.flight_recorder import dump_causes, read_dump
from pytest_mnode.logs.nccl_inspector import Calls, read_calls
from pytest_mnode.logs.stacks import located
from pytest_mnode.logs.training import FORMATS, Progress, Step, read_progress
from pytest_mnode.measurement import HeadlineMark, Measurement, at_least, at_most, equals, listed
from pytest_mnode.progress import progress

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.spec.workload import PartName, WorkloadCriterion

_KEY = "criteria.workload"
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

    @property
    def failed(self) -> list[str]:
        """Nodes on which it did not end well."""
        return [node for node, code in self.codes.items() if code]


@dataclass(slots=True)
class Runs:
    """Runs of the command by number of nodes, each made once in a session."""

    _done: dict[int, Ran] = field(default_factory=dict)
    _killed: Ran | None = None

    def of(self, cluster: Cluster, promise: WorkloadCriterion, per_node: int) -> list[Ran]:
        """A run on each promised number of nodes, the smallest first; none larger than the test."""
        numbers = promise.nodes or (len(cluster.nodes),)
        fit = [one for one in numbers if one <= len(cluster.nodes)]
        for number in fit:
            if number not in self._done:
                progress(f"the workload on {count(number)}")
                self._done[number] = run(cluster, promise, cluster.nodes[:number], per_node)
        return [self._done[number] for number in fit]

    def killed(self, cluster: Cluster, promise: WorkloadCriterion, per_node: int) -> Ran:
        """A run in which a rank is killed, on as many nodes as the largest other one."""
        number = max(min(len(cluster.nodes), one) for one in promise.nodes or (len(cluster.nodes),))
        if self._killed is None:
            progress(f"the workload on {count(number)}, of which a rank is killed")
            self._killed = run(cluster, promise, cluster.nodes[:number], per_node, kill=True)
        return self._killed


def run(
    cluster: Cluster,
    promise: WorkloadCriterion,
    nodes: Sequence[str],
    per_node: int,
    *,
    kill: bool = False,
) -> Ran:
    """Run the command on these nodes, within its limit. kill: its last rank, as promised."""
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
        return _run(cluster, promise, job, notes, unobserved, kill=kill)


def _run(
    cluster: Cluster,
    promise: WorkloadCriterion,
    job: Job,
    notes: observed.Notes | None,
    unobserved: str,
    *,
    kill: bool,
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
    return Ran(
        nodes,
        ranks,
        codes,
        why,
        said,
        _cause(output, files, places) if why or any(codes.values()) or starts[1:] else None,
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
    )


def resumed(starts: Sequence[Sequence[RankNotes]], killed_s: float) -> float | None:
    """When the first step ended of what began after the kill; None if none did."""
    for ranks in starts:
        ends = [one.steps[0] for one in ranks if one.steps and (one.began or 0.0) > killed_s]
        if ends:
            return max(ends)
    return None


def _cause(
    output: Mapping[str, str], files: Mapping[str, bytes], places: Mapping[int, str]
) -> Cause | None:
    """Why it failed: a root cause that its output names, else what dumps of its ranks say."""
    dumps = [one for name, content in files.items() if (one := read_dump(name, content))]
    found = first_cause(output)
    waits = next(iter(dump_causes(dumps)), None)
    if waits is None or (found is not None and found.root and found.name not in ENDINGS):
        return found
    hosts = {places.get(rank) for rank in waits.ranks}
    names = [f"stack_rank_{rank}.txt" for rank in waits.ranks]
    stacks = {name: files[name].decode(errors="replace") for name in names if name in files}
    return replace(located(waits, stacks), host=hosts.pop() if len(hosts) == 1 else None)


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
        cause = f"; {ran.cause.text}" if ran.cause else ""
        if ran.hung:
            culprit = _named(ran) or Culprit("one of its ranks", either=[ran.nodes])
            note = f"{ran.why}{cause}"
            yield Measurement.none_allowed(name, [culprit], source, note=note)
            continue
        if ran.why:
            yield Measurement.unknown(name, f"{ran.why}{cause}", source=source, culprit=_named(ran))
            continue
        note = f"{len(ran.said.steps)} steps read, {ran.seconds:.0f} s{cause}"
        failed = _named(ran) or (Culprit(", ".join(ran.failed), either=[ran.failed]))
        bad = [failed] if ran.failed else []
        yield Measurement.none_allowed(name, bad, source, count=len(ran.failed), note=note)


def _named(ran: Ran) -> Culprit | None:
    """The culprit that the output names, if it names a node of the run."""
    cause = ran.cause
    if cause is None or not cause.culprit:
        return None
    nodes = {cause.host, *(ran.places.get(rank) for rank in cause.ranks)}
    named = [one for one in ran.nodes if one in nodes]
    return Culprit(cause.culprit, named, parts=Parts(ranks=cause.ranks))


def judge_rates(
    runs: Sequence[Ran], promise: WorkloadCriterion, accelerators: str
) -> Iterator[Measurement]:
    """Rate, MFU and efficiency of the command. accelerators: what a rate is of, in words."""
    largest = runs[-1]
    rates: tuple[tuple[str, str, float | None, Callable[[Step], float | None]], ...] = (
        ("tokens_per_s_at_least", "tokens/s", promise.tokens_per_s_at_least, _tokens),
        (
            "samples_per_s_at_least",
            "samples/s",
            promise.samples_per_s_at_least,
            _samples_of(largest),
        ),
        ("mfu_at_least", "", promise.mfu_at_least, lambda step: _mfu(step, promise)),
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
            bound = at_least(limit).of(f"workload.{key}", limit)
            yield replace(found, expected=bound, source=f"{_KEY}.{key} {limit:g}", headline=mark)
    if promise.efficiency_at_least is not None:
        yield from _efficiencies(runs, promise, promise.efficiency_at_least)


def _tokens(step: Step) -> float | None:
    return step.tokens_per_s


def _samples(step: Step, ranks: int) -> float | None:
    return None if step.samples_per_s is None else step.samples_per_s / ranks


def _mfu(step: Step, promise: WorkloadCriterion) -> float | None:
    tflops = step.tflops
    if tflops is None and promise.parameters and step.tokens_per_s is not None:
        tflops = 6 * promise.parameters * step.tokens_per_s / 1e12  # Kaplan et al., 2020: 6·N·D
    if step.mfu is not None or tflops is None or promise.peak_tflops is None:
        return step.mfu
    return tflops / promise.peak_tflops


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
    size = max(1, len(known) // _BLOCKS)
    parts = [
        median(known[at : at + size]) for at in range(0, size * min(_BLOCKS, len(known)), size)
    ]
    rate, around = median(known), interval_of(parts)
    interval = (around.including(rate).low, around.including(rate).high) if around else None
    note = f"median of {len(known)} steps, after {promise.warmup}"
    return Measurement(name, rate, unit, note=note, interval=interval)


def _silent(ran: Ran, promise: WorkloadCriterion, what: str) -> str:
    if ran.why:
        return ran.why
    if not ran.said.steps:
        first = listed(repr(one[:80]) for one in ran.said.first)
        begins = f"; it begins {first}" if first else ", which is empty"
        return f"no step was read in its output{begins}; name its format by {_KEY}.reads"
    if not _counted(ran, promise):
        return f"{len(ran.said.steps)} steps, and warmup: {promise.warmup} do not count"
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
        for kind in (lambda _: _tokens, _samples_of, lambda _: _speed):
            one, other = (_rate(each, promise, name, "", kind(each)) for each in (base, ran))
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
