"""What a job should have measured and did not, in words. Pure."""

from __future__ import annotations

from pytest_mnode.criteria.scaling.facts import Facts
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.spec import Spec


def lacking(facts: Facts, plan: Plan, count: int) -> str:
    """Of the turns over `count` nodes, and of those over one, which all are compared with."""
    return _of(facts, plan, count) or _of(facts, plan, 1)


def nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


def elsewhere(facts: Facts, spec: Spec) -> str:
    """What the job was trained on, where that is not what the spec has."""
    there = spec.accelerators.per_node
    if (facts.device != "cpu") == bool(there):
        return ""
    has = f"{there} accelerators a node" if there else "no accelerators"
    return f"trained on {facts.device}, spec has {has}"


def _of(facts: Facts, plan: Plan, count: int) -> str:
    over = facts.over(count)
    if not over:
        return f"no steps were timed over {nodes(count)}"
    rounds = {one.round for one in over}
    if len(rounds) < plan.rounds:
        return f"over {nodes(count)} {len(rounds)} rounds of {plan.rounds} were measured"
    for one in over:
        if len(one.steps[0]) < plan.steps:
            return (
                f"{len(one.steps[0])} steps of {plan.steps} were timed over "
                f"{'+'.join(one.nodes)} in round {one.round + 1}"
            )
    had = {(one.round, one.nodes) for one in over}
    for turn in (t for number in range(facts.rounds) for t in plan.turns(number)):
        for group in turn.groups if turn.count == count else ():
            names = tuple(plan.nodes[node] for node in group)
            if (turn.round, names) not in had:
                return f"round {turn.round + 1} lacks {'+'.join(names)}"
    return ""
