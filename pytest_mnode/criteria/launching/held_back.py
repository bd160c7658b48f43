"""A rank that does not come, on purpose, and what the others say of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.absent import gist
from pytest_mnode.errors import MnodeError

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.launch import AbsentPromise

_NAMED = re.compile(r"\branks? ([\d,-]+) of \d+( \([^()]*\))? never came")
"""As `absent` says it. Who came after the others had given up says so of itself before that."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a rank that came was told, "" where it met as if all were there, and after how long."""

    rank: int
    node: str
    text: str
    seconds: float

    @property
    def names(self) -> frozenset[int]:
        """Ranks that it says never came."""
        found = _NAMED.search(self.text)
        return frozenset(_ranks(found[1])) if found else frozenset()


def come_or_not(absent: int, limit_s: float, backend: str | None, *, world: World) -> Said | None:
    """In every rank: meet, or where it is the one held back, do not; None then."""
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
    return Said(world.rank, world.node, text, time.perf_counter() - began)


def record_absent(cluster: Cluster, promise: AbsentPromise, spec: Spec, measure: Measure) -> None:
    """Hold the last rank back, have the others meet, and judge what they say of it."""
    absent = len(cluster.nodes) - 1
    backend = None if spec.accelerators.per_node else "gloo"
    limit_s = 2 * promise.limit_s + promise.said_within_s + 60
    failed, found = "", []
    try:
        with cluster.world(procs_per_node=1, fresh=True) as world:
            found = world.run(come_or_not, absent, promise.limit_s, backend, timeout=limit_s)
    except MnodeError as error:
        failed = gist(str(error))
    said = [one for one in found if one is not None]
    judge_absent(said, absent, cluster.nodes, promise, measure, failed=failed)


def judge_absent(
    said: Sequence[Said],
    absent: int,
    nodes: Sequence[str],
    promise: AbsentPromise,
    measure: Measure,
    *,
    failed: str = "",
) -> None:
    """Record how many ranks, one a node, named the one that was held back, and how soon.

    failed: why nothing is known of what they said.
    """
    right = [one for one in said if one.names == {absent}]
    wrong = [one for one in said if one not in right]
    measure(
        "ranks that named the one that never came",
        None if failed else len(right),
        equals=len(nodes) - 1,
        source=f"rank {absent} on {nodes[absent]} was held back",
        culprit=f"rank {wrong[0].rank} on {wrong[0].node}" if wrong else None,
        note=failed or (f"it said: {wrong[0].text or 'nothing, and went on'}" if wrong else ""),
    )
    last = max(said, key=lambda one: one.seconds, default=None)
    measure(
        "time from the limit of initialisation to the error",
        last.seconds - promise.limit_s if last else None,
        "s",
        at_most=promise.said_within_s,
        source=f"criteria.launch.absent.said_within {promise.said_within_s:g} s",
        culprit=f"rank {last.rank} on {last.node}" if last else None,
        note=failed or (said[0].text if said else ""),
    )


def _ranks(text: str) -> list[int]:
    """Numbers of "0-1,3"."""
    found: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
