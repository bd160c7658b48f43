"""Where ranks are while their test runs: for a user who asks, or who ends the run."""

from __future__ import annotations

from collections.abc import Collection

from pytest_mnode.outcome.describe import MOST_SHOWN, places, ranks_text
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.outcome.stacks import WAIT, where_of_dump
from pytest_mnode.outcome.stuck import stacks_of


def whereabouts(outcome: Outcome) -> list[str]:
    """Lines: ranks at the same place together, with their stacks; at most MOST_SHOWN places."""
    groups: dict[str, list[int]] = {}
    for rank, state in outcome.states.items():
        groups.setdefault(_place(state), []).append(rank)
    nodes = {rank: state.node for rank, state in outcome.states.items()}
    lines: list[str] = []
    for place, ranks in list(groups.items())[:MOST_SHOWN]:
        lines.append(f"[{places(ranks, nodes, len(nodes))}] {place}")
        if outcome.states[ranks[0]].stack:
            lines += "\n".join(stacks_of(outcome, ranks)).splitlines()
    if hidden := [rank for ranks in list(groups.values())[MOST_SHOWN:] for rank in ranks]:
        lines.append(f"further places, of {ranks_text(hidden)}, are not shown")
    return lines


def awaited(outcome: Outcome, absent: Collection[int]) -> str:
    """The ranks that are waited for: those that have not ended this phase, or, where none has,
    those that others wait for in a collective."""
    states = outcome.states
    there = [s for s in states.values() if not s.gone and not s.stuck_in]
    body = [s for s in there if not (s.body_done or s.returned or s.torn)]
    waiting = [s.rank for s in body or there if s.torn is None and s.returned is None]
    if len(waiting) == len(states):
        waiting = [rank for rank in waiting if rank in absent] or waiting
    if not waiting or len(waiting) == len(states):
        return f"{len(waiting)} ranks" if len(waiting) > 1 else ""
    return places(waiting, {rank: s.node for rank, s in states.items()}, len(states))


def _place(state: RankState) -> str:
    """One line, equal for ranks that do the same."""
    if state.gone:
        return "is gone"
    if state.torn is not None or state.returned is not None:
        return "has ended"
    if not state.stack:
        return f"gave no stack{': ' if state.state else ''}{state.state}"
    if state.body_done:
        return "has ended the body of the test, and waits for the other ranks"
    here = where_of_dump(state.stack)
    waits = {None: "", WAIT: "waits "}.get(here.collective, f"waits in {here.collective} ")
    return f"{waits}at {here}"
