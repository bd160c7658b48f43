"""Runs in warm ranks, driven from the controller: no interpreter is started for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import warm
from pytest_mnode.criteria.restart.comparing import Parameters
from pytest_mnode.errors import RankError
from pytest_mnode.reference_job.config import JobConfig

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

_LIMIT_S = 120.0


def killed_after(
    cluster: Cluster, config: JobConfig, nodes: Sequence[str], procs: int, step: int
) -> None:
    """Train to this step, and kill all ranks with SIGKILL. Raises RankError where they fail."""
    world = cluster.world(nodes, procs)
    try:
        world.run(warm.train, config, step, group=True, timeout=_LIMIT_S)
    except RankError as error:
        if "SIGKILL" not in str(error):
            raise
    finally:
        world.close()


def finished(
    cluster: Cluster, config: JobConfig, nodes: Sequence[str], procs: int
) -> Parameters | RankError:
    """Resume and train to the end: the final parameters, or why that failed."""
    with cluster.world(nodes, procs) as world:
        try:
            return world.run(warm.train, config, group=True, timeout=_LIMIT_S)[0]  # type: ignore[no-any-return]
        except RankError as error:
            return error


def saved_parameters(cluster: Cluster, config: JobConfig, node: str) -> Parameters:
    """The parameters of a run's newest checkpoint."""
    with cluster.world([node], 1) as world:
        return world.run(warm.final_parameters, config, group=True, timeout=_LIMIT_S)[0]  # type: ignore[no-any-return]


def last_line(error: RankError) -> str:
    """The last line of a rank's error."""
    return next((x.strip() for x in reversed(str(error).splitlines()) if x.strip()), "")
