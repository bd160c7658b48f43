"""NVLink domains of a world: paths inside one are NVLink's, those across are the NICs'."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_mnode.machine.nvlink import NO_CLUSTER, nvidia_smi, parse_fabric
from pytest_mnode.spec.alpha_beta import Platform

if TYPE_CHECKING:
    import torch

    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec


def domains_of(world: World, spec: Spec, device: torch.device) -> Sequence[int]:
    """By node, its NVLink domain: as its first GPU is registered, else in the spec's order. All
    ranks call this. Ranks on CPUs have no NVLink."""
    each = spec.accelerators.nodes_of_a_domain
    if each == 1 or device.type == "cpu":
        return range(len(world.nodes))
    from pytest_mnode.measuring.ranks import gathered

    mine = None
    if world.local_rank == 0:
        with contextlib.suppress(OSError):
            gpu = next(iter(parse_fabric(nvidia_smi("-q"))), None)
            if gpu is not None and gpu.cluster is not None:
                mine = world.node if gpu.cluster == NO_CLUSTER else f"{gpu.cluster} {gpu.clique}"
    first = gathered(mine)[:: world.local_size]
    if None in first:
        return [node // each for node in range(len(world.nodes))]
    return [first.index(one) for one in first]


def nvlink_gbits_s(spec: Spec) -> float | None:
    """What NVLink carries from one accelerator, as a ring inside a domain uses it; None if neither
    the spec nor the model's name says it."""
    nvlink = Platform.of(spec).nvlink
    return None if nvlink is None else 8e-9 * nvlink.ring * nvlink.bytes_s
