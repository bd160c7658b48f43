"""Has ranks call their handlers of atexit before their world ends, which it does by SIGKILL."""

from __future__ import annotations

import pickle

import cloudpickle

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.conductor import Conductor
from pytest_mnode.outcome.outcome import Outcome
from pytest_mnode.protocol.rank_messages import CallFunction
from pytest_mnode.protocol.world import WorldInfo
from pytest_mnode.rank import exit_handlers

LIMIT_S = 5.0


def may_run(outcome: Outcome) -> bool:
    """Whether all ranks of a test are there and have nothing to do."""
    states = outcome.states.values()
    return not outcome.quit and all(s.torn_down and not s.gone and not s.stuck_in for s in states)


def run_exit_handlers(client: Client, world: WorldInfo) -> list[str]:
    """Call them in all ranks of an idle world; returns lines on what they raised."""
    conductor = Conductor(client, world, LIMIT_S)
    blob = cloudpickle.dumps((exit_handlers.run, (), {}))
    outcome = conductor.run_function(
        CallFunction(conductor.ordinal, client.name, blob, group=False)
    )
    found: dict[str, list[int]] = {}
    for rank, state in outcome.states.items():
        if (end := state.returned) is None:
            found.setdefault(f"did not end within {LIMIT_S:g} s", []).append(rank)
        elif end.value is None:
            found.setdefault(f"failed: {end.summary}", []).append(rank)
        else:
            for line in pickle.loads(end.value):
                found.setdefault(f"raised {line}", []).append(rank)
    return [f"{outcome.places(ranks)}: a handler of atexit {what}" for what, ranks in found.items()]
