"""`--mnode-nodes=free`: the nodes that are free now, least recently tested first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from pytest_mnode.backends.backend import FreeNode, FreeNodes, Here
from pytest_mnode.backends.registry import chosen
from pytest_mnode.certificate.coverage import Coverage, NodeCoverage, merged, oldest_first
from pytest_mnode.certificate.kept import earlier_runs
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.node import count
from pytest_mnode.marks import FEWEST_NODES
from pytest_mnode.options import Settings
from pytest_mnode.path_rates import State
from pytest_mnode.spec import Spec, default_spec_path, load_spec

_FLAG = "--mnode-nodes=free"


def on_free_nodes(settings: Settings) -> Settings:
    """Settings of a run on the free nodes, with their number and, if they have any, their names.

    If the run makes its own nodes, their number is the spec's, or the default without the option.
    Raises UsageError if fewer than two nodes are free, ClusterError if free nodes are unknown.
    """
    most = settings.free_at_most
    assert most is not None
    path = settings.spec or default_spec_path()
    spec = load_spec(path)
    found = _free(settings, spec)
    if found is None:
        return replace(settings, nodes=None if spec.nodes is None else min(most, spec.nodes))
    free, others = found.nodes, found.others
    if len(free) < FEWEST_NODES:
        named = f": {free[0].name}" if free else ""
        raise UsageError(
            f"{_FLAG}: {count(len(free))} free{named}{others}; {FEWEST_NODES} are needed; try "
            "again later, or give a number to wait in the queue"
        )
    most = min(most, spec.nodes or most)
    facts, key = facts_of(spec, path), settings.history_key
    known = earlier_runs(settings.history_dir, facts, key=key).certificates
    coverage = None
    if known:
        *before, last = (one.coverage for one in known)
        coverage = merged(last, before, known[-1].run.end)
    chosen = _chosen(free, coverage, most) if coverage else free[:most]
    return replace(settings, nodes=len(chosen), on=tuple(node.name for node in chosen))


def _chosen(free: Sequence[FreeNode], coverage: Coverage, most: int) -> list[FreeNode]:
    """The nodes to test: never tested nodes first, then the least recently tested.

    If none of them has a measured path to most of the cluster, the last is replaced by one that
    has. Otherwise nightly runs on the same nodes would never measure a path to the others.
    """
    known = {node.name: node for node in coverage.nodes}
    new = NodeCoverage("", State.NOT_TESTED, None, None, "")
    by_name = {node.name: node for node in free}
    tested = [replace(known.get(node.hostname, new), name=node.name) for node in free]
    order = [by_name[node.name] for node in oldest_first(tested)]
    chosen = order[:most]
    largest = next(iter(coverage.parts), ())
    if len(largest) > 1 and not any(node.hostname in largest for node in chosen):
        linked = [node for node in order if node.hostname in largest]
        chosen[-1:] = linked[:1] or chosen[-1:]
    return chosen


def _free(settings: Settings, spec: Spec) -> FreeNodes | None:
    """Free nodes; None if the run makes its own nodes."""
    backend, why = chosen(settings)
    names = backend.names(Here(settings, os.environ))
    if names is not None:  # an allocation or a list of hosts: all of them
        return FreeNodes([FreeNode(name, name) for name in names], f" ({why})")
    try:
        return backend.free(settings, spec)
    except ClusterError as error:
        raise ClusterError(f"{_FLAG}: {error}") from None
