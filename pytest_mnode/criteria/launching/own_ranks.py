"""Compares the settings of the run's ranks with those of a user's job on the same node.

What the run measures holds for users only as far as these agree. Each side reports the settings by
the program of our own job files (`settings` of fixtures/jobs/contract.py).
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.contract import MASKS, Expected, added_to
from pytest_mnode.criteria.launching.rendezvous import first_error
from pytest_mnode.criteria.launching.reports import by_node
from pytest_mnode.criteria.launching.starting import Started
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError
from pytest_mnode.measurement import Measurement, all_of, equals, listed, with_suspects
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

_GIVEN = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID"),
    *("OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
"""Variables that the run gives its ranks (Node.collective_env, controller.agents, torchrun)."""
_MOST = 16


def settings_of_rank(program: str) -> dict[str, str]:
    """The settings of this rank. program: path of the jobs' program."""
    found: dict[str, str] = runpy.run_path(program)["settings"]()
    return found


def measured_settings(
    cluster: Cluster, spec: Spec, started: Started | Measurement, program: Path
) -> list[Measurement]:
    """How many settings differ, node by node; nothing of a job that was not started.

    program: the jobs' own, at the same path on the nodes. Judged if the spec promises it.
    """
    if isinstance(started, Measurement):
        return []
    promise = spec.criteria.launch
    judged = promise is not None and promise.environment is not None
    name, source = f"{started.what}: settings unlike the run's ranks", "criteria.launch.environment"
    try:
        with cluster.world() as world:
            found = world.run(settings_of_rank, str(program), timeout=cluster.limits.reported_s)
            first_ranks = found[:: world.size // len(world.nodes)]
            of_nodes = dict(zip(world.nodes, first_ranks, strict=True))
    except MnodeError as error:
        why = f"ranks of the run: {first_error(str(error))}"
        return [Measurement(name, None, "", equals(0) if judged else None, source, note=why)]
    return [judged_settings(started, of_nodes, cluster.given_env, name, judged=judged)]


def judged_settings(
    started: Started,
    of_nodes: Mapping[str, Mapping[str, str]],
    given: Mapping[str, str],
    name: str,
    *,
    judged: bool = True,
) -> Measurement:
    """The measurement; recorded only, unless it is `judged`.

    of_nodes: settings of a rank of the run, by node. given: variables that the user set for the
    run. A node of which either side is unknown makes it inconclusive, where nothing else differs.
    """
    of_jobs = {n: some[0].settings for n, some in by_node(started.outcome.reports).items()}
    unknown = [n for n in started.expected.nodes if not (of_jobs.get(n) and of_nodes.get(n))]
    found = list(_different(started.expected, of_nodes, of_jobs, given))
    value = None if unknown and not found else len(found)
    note = f"settings of {', '.join(unknown)} are not known" if unknown else ""
    several = listed(found, _MOST) if len(found) > 1 or (found and not judged) else ""
    note = "; ".join(filter(None, [several, note]))
    bound, source = equals(0) if judged else None, "criteria.launch.environment"
    culprit = with_suspects(all_of(found, _MOST), (Culprit(node, node) for node in unknown))
    return Measurement(name, value, "", bound, source, culprit, note)


def _different(
    expected: Expected,
    of_nodes: Mapping[str, Mapping[str, str]],
    of_jobs: Mapping[str, Mapping[str, str]],
    given: Mapping[str, str],
) -> Iterator[Culprit]:
    """Each setting that differs, with node and both values."""
    for node in expected.nodes:
        ours, theirs = of_nodes.get(node), of_jobs.get(node)
        if not ours or not theirs:
            continue
        # Which accelerators a rank sees differs by rank, and is judged by itself.
        wanted = {*expected.own, *expected.pins.get(node, {}), *given, *_GIVEN, *MASKS}
        for name in sorted({*ours, *theirs} - wanted):
            if ours.get(name) != theirs.get(name) and not name.startswith(added_to(expected)):
                both = f"{_shown(ours, name)} in the run, {_shown(theirs, name)} in a job"
                yield Culprit(f"{node}: {name}: {both}", node)


def _shown(settings: Mapping[str, str], name: str) -> str:
    return settings.get(name) or ("empty" if name in settings else "not set")
