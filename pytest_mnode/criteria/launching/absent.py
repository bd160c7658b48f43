"""A rank that is held back on purpose, and whether the others name it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.rendezvous import first_error
from pytest_mnode.errors import MnodeError
from pytest_mnode.measurement import Measurement, at_most, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.launch import AbsentPromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.rank.world import World

_NAMED = re.compile(r"\branks? ([\d,-]+) of \d+( \([^()]*\))? never came")
"""The line of `gathering`; what a late rank says of itself comes before that."""


@dataclass(frozen=True, slots=True)
class RankError:
    """The error of a rank that came, "" where it met as if all were there, and its time."""

    rank: int
    node: str
    text: str
    seconds: float

    @property
    def names(self) -> frozenset[int]:
        """Ranks that never came, by this error."""
        found = _NAMED.search(self.text)
        return frozenset(_ranks(found[1])) if found else frozenset()


def meet_without(
    absent: int, limit_s: float, backend: str | None, *, world: World
) -> RankError | None:
    """In every rank: meet, except for the rank that is held back; None there."""
    import torch.distributed as dist

    from pytest_mnode.criteria.launching.meeting import meet

    if world.rank == absent:
        return None
    began = time.perf_counter()
    text = ""
    try:
        meet(limit_s, backend)
    except MnodeError as error:
        text = str(error)
    else:
        dist.destroy_process_group()
    return RankError(world.rank, world.node, text, time.perf_counter() - began)


def measured_absence(cluster: Cluster, promise: AbsentPromise, spec: Spec) -> list[Measurement]:
    """Hold the last rank back, have the others meet, and judge their errors."""
    absent = len(cluster.nodes) - 1
    backend = None if spec.accelerators.per_node else "gloo"
    limit_s = 2 * promise.limit_s + promise.said_within_s + 60
    failed, found = "", []
    try:
        with cluster.world(procs_per_node=1, fresh=True) as world:
            found = world.run(meet_without, absent, promise.limit_s, backend, timeout=limit_s)
    except MnodeError as error:
        failed = first_error(str(error))
    errors = [one for one in found if one is not None]
    return judged_absence(errors, absent, cluster.nodes, promise, failed=failed)


def judged_absence(
    errors: Sequence[RankError],
    absent: int,
    nodes: Sequence[str],
    promise: AbsentPromise,
    *,
    failed: str = "",
) -> list[Measurement]:
    """How many ranks, one per node, named the rank that was held back, and how soon.

    failed: why no error is known.
    """
    wrong = [one for one in errors if one.names != {absent}]
    note = f"it said: {wrong[0].text or 'nothing, and went on'}" if wrong else ""
    last = max(errors, key=lambda one: one.seconds, default=None)
    return [
        Measurement(
            "ranks that named the one that never came",
            None if failed else len(errors) - len(wrong),
            "",
            equals(len(nodes) - 1),
            f"rank {absent} on {nodes[absent]} was held back",
            f"rank {wrong[0].rank} on {wrong[0].node}" if wrong else None,
            failed or note,
        ),
        Measurement(
            "time from the limit of initialisation to the error",
            last.seconds - promise.limit_s if last else None,
            "s",
            at_most(promise.said_within_s),
            f"criteria.launch.absent.said_within {promise.said_within_s:g} s",
            f"rank {last.rank} on {last.node}" if last else None,
            failed or (errors[0].text if errors else ""),
        ),
    ]


def _ranks(text: str) -> list[int]:
    """Numbers of "0-1,3"."""
    found: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
