"""Judges whether nodes see each other's files, locks and errors as programs need it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pytest_mnode.criteria.storage.in_ranks import WAITED
from pytest_mnode.criteria.storage.meeting import UNSEEN
from pytest_mnode.criteria.storage.rules import MOST_NAMED, Rates, Subject
from pytest_mnode.evidence.edges import Edges
from pytest_mnode.measurement import (
    HeadlineMark,
    Measurement,
    all_of,
    at_most,
    equals,
    listed,
    with_suspects,
)
from pytest_mnode.spec.storage import PathPromise


def judge_renames(rates: Rates, promise: PathPromise) -> Iterator[Measurement]:
    """How late the last node sees a renamed file, and files with content of nobody."""
    within = promise.renamed_within_s
    assert within is not None
    asked = rates.asked(
        "renamed file seen by all other nodes", "renamed_within", within, at_most, "s"
    )
    of = partial(Measurement, f"{rates.path}: {asked.name}", unit="s", expected=asked.bound)
    unseen = {one.node: UNSEEN for one in rates.rows if one.why == UNSEEN}
    if unseen:
        waited = max(float(one.value or 0) for one in rates.rows if one.metric == WAITED)
        culprit = with_suspects(rates.star(unseen), rates.unread())
        yield of(waited, source=asked.source, culprit=culprit)
        return
    late = [one for one in rates.rows if one.metric == "renamed file seen"]
    if why := rates.missing("renamed file seen"):
        yield asked.unknown(why)
        return
    index = {node: number for number, node in enumerate(rates.nodes)}
    seen_s = dict[tuple[int, int], float]()  # of the latest of its looks
    for one in late:
        path = index[one.peer], index[one.node]
        seen_s[path] = max(seen_s.get(path, 0.0), float(one.value or 0))
    edges = Edges.judged(rates.nodes, seen_s, lambda value: value > within)
    words = {
        "sending": "others see its files late",
        "receiving": "it sees files of others late",
        "both ways": "it sees files of others late, and others its own",
    }
    named = [
        rates.blamed(rates.nodes[node], words[way]) for node, way in edges.blamed.nodes.items()
    ]
    blamed = all_of([*named, edges.paths(edges.blamed.paths)], MOST_NAMED)
    mark = HeadlineMark("renamed files seen after", order=2)
    note, worst = f"{len(late)} looks", max(seen_s.values())
    yield of(worst, source=asked.source, culprit=blamed, note=note, headline=mark)
    odd = [
        one for one in rates.rows if one.metric == "renamed file with other content" and one.value
    ]
    yield Measurement.none_allowed(
        f"{rates.path}: renamed files seen with other content than before or after",
        [rates.blamed(one.node, f"file of {one.peer}") for one in odd],
        "a rename is atomic",
    )


def judge_texts(
    rates: Rates, name: str, right: Mapping[str, str], source: str, say: str
) -> Measurement:
    """Rows whose text must be one: none may have another. right: the text by metric."""
    every = [one for one in rates.rows if one.metric in right]
    why = rates.missing(*right)
    wrong = [one for one in every if one.value is not None and one.value != right[one.metric]]
    bad = [rates.blamed(one.node, f"{one.metric}: {one.value}") for one in wrong if not one.peer]
    of_first = {one.node: f"{one.metric}: {one.value}" for one in wrong if one.peer}
    bad += filter(None, [rates.star(of_first)])
    if why and not bad:
        return Subject(rates, name, equals(0), source).unknown(why)
    mark = HeadlineMark(after=say, of=len(every), right=len(every) - len(wrong), order=2)
    return Measurement.none_allowed(
        *(f"{rates.path}: {name}", bad, source),
        count=len(wrong),
        unsure=why,
        unread=rates.unread(*right),
        note=f"{len(every)} tried",
        headline=mark,
    )


def judge_locks(rates: Rates, kinds: Sequence[str]) -> Iterator[Measurement]:
    """Whether locks exclude other nodes, and are given again once they are free."""
    for kind in kinds:
        held, free = f"{kind} that another node holds", f"{kind} of an unlocked file"
        source = f"criteria.{rates.key}.locks {kind}"
        right = {free: "granted"} | ({held: "refused"} if len(rates.nodes) > 1 else {})
        yield judge_texts(rates, f"{kind} that did not hold", right, source, "locks held")


def judge_replaced(rates: Rates) -> Iterator[Measurement]:
    """Whether an open file that another node replaces stays as it was, and is new if reopened."""
    right = {"replaced file read on": "whole", "replaced file opened anew": "new"}
    source = f"criteria.{rates.key}.replaced_files readable"
    name = "readers of a replaced file that failed"
    yield judge_texts(rates, name, right, source, "replaced files readable")


def judge_exceeded(rates: Rates) -> Iterator[Measurement]:
    """Whether a checkpoint beyond the limit ends with an error, and costs no other."""
    source = f"criteria.{rates.key}.limit"
    metric = "error of a checkpoint that exceeds the limit"
    name = "checkpoints beyond the limit without an error"
    why = rates.missing(metric)
    said = [one for one in rates.rows if one.metric == metric and one.value is not None]
    silent = [one for one in said if not str(one.value).startswith(("ENOSPC", "EDQUOT"))]
    if why and not silent:
        yield Subject(rates, name, equals(0), source).unknown(why)
        return
    note = listed(f"{one.node}: {one.value}" for one in said)
    blamed = [rates.blamed(one.node, f"error: {one.value}") for one in silent]
    yield Measurement.none_allowed(
        f"{rates.path}: {name}", blamed, source, unsure=why, unread=rates.unread(metric), note=note
    )
    kept = {"checkpoint before it": "whole", "error of the next checkpoint": "none"}
    what = "checkpoints lost by one beyond the limit"
    yield judge_texts(rates, what, kept, source, "full file systems survived")
