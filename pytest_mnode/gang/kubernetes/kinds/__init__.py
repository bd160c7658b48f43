"""Kinds of gangs on Kubernetes: a class of a few pure functions for each kind."""

from __future__ import annotations

from pytest_mnode.gang.kubernetes.kinds.kueue import JobSet, Kueue
from pytest_mnode.gang.kubernetes.kinds.operators import PyTorchJob, TrainJob, Volcano
from pytest_mnode.gang.kubernetes.kinds.plain import Plain
from pytest_mnode.gang.kubernetes.kinds.pod_groups import Coscheduling, Native

KINDS: dict[str, Plain] = {
    kind.name: kind
    for kind in (
        *(Plain(), Native(), Kueue(), Volcano()),
        *(Coscheduling(), JobSet(), TrainJob(), PyTorchJob()),
    )
}
"""Kinds of gangs, by the spec's `scheduler.engine`."""

__all__ = ["KINDS", "Plain"]
