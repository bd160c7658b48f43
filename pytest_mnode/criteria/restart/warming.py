"""Parts of runs in warm ranks, driven from the controller: no interpreter is started for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_mnode.criteria.restart import warm
from pytest_mnode.criteria.restart.findings import Figure
from pytest_mnode.errors import RankError
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.wrong import listed

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

Parameters = Mapping[str, Any]
"""Arrays by name."""
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
    """Those of a run's newest checkpoint."""
    with cluster.world([node], 1) as world:
        return world.run(warm.final_parameters, config, group=True, timeout=_LIMIT_S)[0]  # type: ignore[no-any-return]


def parameters_differ(one: Parameters, other: Parameters, tolerance: float, source: str) -> Figure:
    """The largest difference of final parameters, as a part of the largest of them."""
    import numpy as np

    name = "final parameters, largest difference"
    if one.keys() != other.keys() or not one:
        which = sorted(one.keys() ^ other.keys())
        return Figure(name, None, "", tolerance, source=source, note=f"only in one: {which}")
    if any(one[key].shape != other[key].shape for key in one):
        return Figure(name, None, "", tolerance, source=source, note="of other shapes")
    odd = [
        key for key in one if not (np.isfinite(one[key]).all() and np.isfinite(other[key]).all())
    ]
    if odd:
        # No difference can be told from what is no number; by as much as all is too much anyway.
        note = f"not finite: {listed(odd)}"
        return Figure(name, 1.0, "", tolerance, source=source, culprit=odd[0], note=note)
    largest = max((float(np.abs(value).max(initial=0.0)) for value in one.values()), default=0.0)
    far = {key: float(np.abs(one[key] - other[key]).max(initial=0.0)) for key in one}
    worst = max(far, key=lambda key: far[key])
    note = f"of {largest:.4g}, the largest of all; in {worst}"
    value = far[worst] / (largest or 1.0)
    return Figure(name, value, "", tolerance, source=source, culprit=worst, note=note)


def last_line(error: RankError) -> str:
    """What a rank's error came to."""
    return next((x.strip() for x in reversed(str(error).splitlines()) if x.strip()), "")
