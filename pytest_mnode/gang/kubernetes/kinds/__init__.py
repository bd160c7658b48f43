"""Kinds of gangs on Kubernetes: a module of a few pure functions for each kind."""

from __future__ import annotations

from pytest_mnode.gang.kubernetes.kinds.coscheduling import Coscheduling
from pytest_mnode.gang.kubernetes.kinds.jobset import JobSet
from pytest_mnode.gang.kubernetes.kinds.kueue import Kueue
from pytest_mnode.gang.kubernetes.kinds.native import Native
from pytest_mnode.gang.kubernetes.kinds.plain import Plain
from pytest_mnode.gang.kubernetes.kinds.pytorchjob import PyTorchJob
from pytest_mnode.gang.kubernetes.kinds.trainjob import TrainJob
from pytest_mnode.gang.kubernetes.kinds.volcano import Volcano

KINDS: dict[str, Plain] = {
    kind.name: kind
    for kind in (
        *(Plain(), Native(), Kueue(), Volcano()),
        *(Coscheduling(), JobSet(), TrainJob(), PyTorchJob()),
    )
}
"""Kinds of gangs, by the spec's `scheduler.engine`."""

__all__ = ["KINDS", "Plain"]
