"""Where ranks are in a test that runs or did not end: which ranks wait, and which are absent."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_mnode.machine import tcp
from pytest_mnode.measurement import listed
from pytest_mnode.outcome.call_record import group_text
from pytest_mnode.outcome.calls import ahead, unjoined
from pytest_mnode.outcome.describe import MOST_SHOWN, ranks_by, ranks_text, waiting_text
from pytest_mnode.outcome.outcome import Failure, Outcome, RankState
from pytest_mnode.outcome.stacks import (
    POINT_TO_POINT,
    WAIT,
    Where,
    tidy,
    where_of_dump,
    without_native_frames,
)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A connection of a rank whose other end, at an address of these nodes, does not answer."""

    rank: int
    node: str
    peer: tcp.Endpoint
    peer_nodes: tuple[str, ...]

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset((self.node, *self.peer_nodes))

    def __str__(self) -> str:
        peer = f"{tcp.text(self.peer)} on {listed(self.peer_nodes, 3, ',')}"
        return f"rank {self.rank} on {self.node} gets no TCP acknowledgement from {peer}"


def owners_of(outcome: Outcome) -> dict[str, dict[str, None]]:
    """The nodes of each address that a rank which was stopped had."""
    owners: dict[str, dict[str, None]] = {}
    for state in outcome.states.values():
        for address in state.tcp.addresses:
            owners.setdefault(address, {})[state.node] = None
    return owners


def unanswered(outcome: Outcome) -> list[Unanswered]:
    """By rank. Connections to other machines than the nodes are left out."""
    owners = owners_of(outcome)
    return [
        Unanswered(rank, state.node, peer, tuple(owners[peer[0]]))
        for rank, state in sorted(outcome.states.items())
        for peer in state.tcp.silent
        if peer[0] in owners
    ]


def suspects(found: list[Unanswered]) -> frozenset[str]:
    """The nodes that every one of several pairs has in common, or else all of their nodes."""
    pairs = {one.nodes for one in found} or {frozenset()}
    common = frozenset.intersection(*pairs)
    return common if len(common) == 1 else frozenset.union(*pairs)


_OF_ONE_PROCESS = re.compile(r"(?:(?:Current thread|Thread) )?0x[0-9a-fA-F]+")
"""What differs between equal stacks; the thread that got the signal is the current one."""
_LAST = 1e300
"""Time of a failure that has not ended: later than all others."""


def stuck_failures(outcome: Outcome, explained: bool) -> list[Failure]:
    """Failures of stuck ranks: ranks absent from a collective before those that wait in it.

    explained: whether an earlier failure explains why ranks are stuck.
    """
    at = {r: where_of_dump(s.stack or "") for r, s in outcome.states.items() if s.stuck_in}
    for rank, call in unjoined(outcome.calls).items():
        if rank in at and at[rank].collective is None:
            at[rank] = replace(at[rank], collective=call.op, begun_at=call.place)
    for rank, (group, _) in ahead(outcome.counts).items():
        if rank in at and at[rank].collective is None:
            at[rank] = replace(at[rank], collective=f"a collective of {group_text(group)}")
    failures = [] if explained else _cut_off(outcome, at)
    cut_off = {rank for failure in failures for rank in failure.ranks}
    explained = explained or bool(cut_off)
    others = [rank for rank in at if rank not in cut_off]
    paired = [rank for rank in others if at[rank].collective in POINT_TO_POINT]
    waiting = [rank for rank in others if at[rank].collective and rank not in paired]
    absent = [rank for rank in others if not at[rank].collective]
    left = [] if explained else _left(outcome)
    if left and waiting:
        line = f"left the test without entering {_awaited_call(at, waiting)}"
        failures.append(Failure(left, "call", line, text=line, time=_LAST))
    # If ranks were stopped because another rank failed, that rank is the culprit, even if its error
    # looks like a lost peer.
    after = not (outcome.timed_out or outcome.deadlocked or outcome.stalled)
    if not (after or absent or (left and waiting)):
        # Nobody knows which rank owes them the message, but the others wait for these ranks.
        absent, paired = paired, []
    waits_for_it = explained or after or bool(absent or left)
    for ranks, victims in ((absent, explained), ([*waiting, *paired], waits_for_it)):
        by_place = ranks_by({rank: f"{at[rank].collective} {at[rank]}" for rank in ranks})
        failures += [
            _failure(outcome, same, at, waiting, left=left, victim=victims)
            for same in by_place.values()
        ]
    return failures


def _cut_off(outcome: Outcome, at: Mapping[int, Where]) -> list[Failure]:
    """Failure of the stuck ranks on nodes that do not answer each other; none if all answer."""
    found = unanswered(outcome)
    nodes = suspects(found)
    ranks = [rank for rank in at if outcome.states[rank].node in nodes]
    if not ranks:
        return []
    state, here = outcome.states[ranks[0]], at[ranks[0]]
    doing = _waits(here, ranks) if here.collective else f"{_are(ranks)} at {here}"
    line = f"{_limit(outcome)}: {listed(map(str, found))}; {doing}"
    text = "\n\n".join([line, *stacks_of(outcome, ranks), *_outputs(outcome, ranks)])
    return [Failure(ranks, state.stuck_in, line, text=text, time=_LAST, of_a_pair=len(nodes) > 1)]


def _left(outcome: Outcome) -> list[int]:
    """Ranks that ended the body of a test that others still wait in."""
    if not (outcome.timed_out or outcome.deadlocked):
        return []
    return [r for r, s in outcome.states.items() if s.body_done and not s.stuck_in and not s.gone]


def _awaited_call(at: dict[int, Where], waiting: Sequence[int]) -> str:
    first = at[waiting[0]]
    place = first.begun_at or (first.frame.place if first.frame else "")
    at_place = f" ({place})" if place else ""
    return f"the {_name(first)}{at_place} that {waiting_text(waiting)} in"


def _name(where: Where) -> str:
    return "collective" if where.collective == WAIT else str(where.collective).removeprefix("a ")


def _failure(
    outcome: Outcome,
    ranks: list[int],
    at: dict[int, Where],
    waiting: list[int],
    *,
    left: list[int],
    victim: bool,
) -> Failure:
    state, here = outcome.states[ranks[0]], at[ranks[0]]
    limit = _limit(outcome)
    others = _elsewhere(at, waiting, left, here)
    if not state.stack:
        line = f"{limit}, and no stack could be read" + (f": {state.state}" if state.state else "")
    elif here.collective:
        line = f"{limit}: {_waits(here, ranks)}" + (f", {others}" if others else "")
    elif waiting:
        line = f"{limit}: did not enter {_awaited_call(at, waiting)}; {_are(ranks)} at {here}"
    else:
        line = f"{limit}: {_are(ranks)} at {here}"
    kernel = [] if here.frame or here.reports or here.finishes else _kernel(outcome, ranks)
    if kernel and not state.state:
        line += f"; its {state.kernel.partition(chr(10))[0]}"
    stacks = [*stacks_of(outcome, ranks), *_stacks_of_children(outcome, ranks)]
    text = "\n\n".join([line, *stacks, *kernel, *_outputs(outcome, ranks)])
    return Failure(ranks, state.stuck_in, line, text=text, time=_LAST, victim=victim)


def _limit(outcome: Outcome) -> str:
    """Why stuck ranks were ended."""
    if outcome.stalled:
        return f"no rank called torch.distributed for {outcome.limit_s:.3g} s"
    if outcome.timed_out:
        return f"no end within {outcome.limit_s:g} s"
    if outcome.deadlocked:
        return "stopped, because the calls of the ranks differ"
    return f"stopped {outcome.grace_s:g} s after the first failure"


def _are(ranks: Sequence[int]) -> str:
    return "they are" if len(ranks) > 1 else "it is"


def _waits(here: Where, ranks: Sequence[int]) -> str:
    wait = "wait" if len(ranks) > 1 else "waits"
    if here.begun_at is not None:
        return f"{wait} for the {here.collective} of {here.begun_at} at {here}"
    return f"{wait} {'' if here.collective == WAIT else f'in {here.collective} '}at {here}"


def _elsewhere(
    at: dict[int, Where], waiting: Sequence[int], left: Sequence[int], here: Where
) -> str:
    """Text of the ranks that wait in another collective than `here`, or do not answer it."""
    by_collective = ranks_by({rank: str(at[rank].collective) for rank in waiting})
    by_collective.pop(str(here.collective), None)
    parts = [f"{ranks_text(ranks)} in {name}" for name, ranks in by_collective.items()]
    if left and here.collective in POINT_TO_POINT:
        parts.append(f"{ranks_text(left)} ended the test")
    return f"but {', '.join(parts)}" if parts else ""


def stacks_of(outcome: Outcome, ranks: Sequence[int]) -> list[str]:
    """Stacks headed by their ranks, equal ones merged."""
    texts = ((rank, _tidied(outcome.states[rank].stack or "none")) for rank in ranks)
    return _equal_once("stack", "stacks", texts, lambda text: _OF_ONE_PROCESS.sub("", text))


def _stacks_of_children(outcome: Outcome, ranks: Sequence[int]) -> list[str]:
    texts = ((rank, _tidied(outcome.states[rank].children)) for rank in ranks)
    what = "stacks of child processes"
    return _equal_once(what, what, texts, lambda text: _OF_ONE_PROCESS.sub("", text))


def _kernel(outcome: Outcome, ranks: Sequence[int]) -> list[str]:
    """Where threads are in the kernel, for ranks whose Python stack has no frame of the test."""
    states = ((rank, outcome.states[rank]) for rank in ranks)
    texts = ((r, "\n".join(filter(None, (s.kernel, s.native)))) for r, s in states if s.kernel)
    return _equal_once("threads", "threads", texts)


def _outputs(outcome: Outcome, ranks: Sequence[int]) -> list[str]:
    """Outputs of ranks whose reports, which would contain them, will never arrive."""
    outputs = ((rank, outcome.states[rank].output) for rank in ranks)
    texts = ((rank, without_native_frames(output).rstrip()) for rank, output in outputs)
    return _equal_once("end of the output", "outputs", texts)


def _equal_once(
    heading: str,
    what: str,
    texts: Iterable[tuple[int, str]],
    key: Callable[[str], str] = str,
) -> list[str]:
    """Texts headed by their ranks, those with equal keys merged; then the ranks not shown."""
    found: dict[str, tuple[list[int], str]] = {}
    for rank, text in texts:
        if text:
            found.setdefault(key(text), ([], text))[0].append(rank)
    every = list(found.values())
    hidden = {rank for ranks, _ in every[MOST_SHOWN:] for rank in ranks}
    more = [f"further {what}, of {ranks_text(hidden)}, are not shown"] if hidden else []
    return [*(f"{heading} of {ranks_text(r)}:\n{text}" for r, text in every[:MOST_SHOWN]), *more]


_tidied = functools.lru_cache(1024)(tidy)
"""Many ranks have the same stack."""


def whereabouts(outcome: Outcome) -> list[str]:
    """Lines with the ranks at each place and their stacks; at most MOST_SHOWN places."""
    groups = ranks_by({rank: _place(state, [rank]) for rank, state in outcome.states.items()})
    lines: list[str] = []
    for ranks in list(groups.values())[:MOST_SHOWN]:
        lines.append(f"[{outcome.places(ranks)}] {_place(outcome.states[ranks[0]], ranks)}")
        if outcome.states[ranks[0]].stack:
            lines += "\n".join(stacks_of(outcome, ranks)).splitlines()
    if hidden := [rank for ranks in list(groups.values())[MOST_SHOWN:] for rank in ranks]:
        lines.append(f"further places, of {ranks_text(hidden)}, are not shown")
    return lines


def awaited(outcome: Outcome, absent: Collection[int]) -> str:
    """Text of the ranks that have not ended this phase, or, if none has, of those that others wait
    for in a collective."""
    states = outcome.states
    there = [s for s in states.values() if not s.gone and not s.stuck_in]
    body = [s for s in there if not (s.body_done or s.torn_down)]
    waiting = [s.rank for s in body or there if s.torn_down is None]
    if len(waiting) == len(states):
        waiting = [rank for rank in waiting if rank in absent] or waiting
    if not waiting or len(waiting) == len(states):
        return f"{len(waiting)} ranks" if len(waiting) > 1 else ""
    return outcome.places(waiting)


def _place(state: RankState, ranks: Sequence[int]) -> str:
    """One line, equal for ranks that do the same: `ranks`, of which this is one."""
    has, be = ("have", "are") if len(ranks) > 1 else ("has", "is")
    if state.gone:
        return f"{be} gone"
    if state.torn_down is not None:
        return f"{has} ended"
    if not state.stack:
        return f"no stack could be read{': ' if state.state else ''}{state.state}"
    if state.body_done:
        wait = "wait" if len(ranks) > 1 else "waits"
        return f"{has} ended the body of the test, and {wait} for the other ranks"
    here = where_of_dump(state.stack)
    return _waits(here, ranks) if here.collective else f"at {here}"
