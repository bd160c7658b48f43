"""Where ranks of a virtual cluster run, allocate and send from: beside their accelerators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_mnode.certificate import CaseResult
from pytest_mnode.checks.placement_check import PlacementCheck
from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.placement.near import COPIES, COPY_RATIO, Home, RankReading
from pytest_mnode.evidence.row import Row, of_rank, row
from pytest_mnode.machine.process import Thread
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.machines import cores_of, links_of
from pytest_mnode.virtual.ports import ports

_FILE = "acceptance/test_numa.py"
_FAR = 0.6
"""Of memory of the other socket, as a share of the near one's rate. [choice]"""


def numa(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of `acceptance/test_numa.py`."""
    promised, names = cluster.spec.criteria.numa, cluster.nodes
    assert promised is not None
    for check in promised.asked(cluster.spec):
        if isinstance(check, PlacementCheck) and check.sends and len(names) < 2:
            continue
        test = f"{_FILE}::{check.case()}"
        yield case(test, check.rule(measured(cluster, check)), names, question=check.question())
    yield ports(cluster, _FILE)


def measured(cluster: VirtualCluster, check: WorldCheck) -> list[Row]:
    """The rows of all ranks."""
    repeats = cluster.spec.criteria.numa.copy_repeats if cluster.spec.criteria.numa else 0
    return [
        one
        for rank in range(cluster.ranks)
        for one in of_rank(
            check.rows_of_rank(_placed(cluster, rank), first=rank % cluster.per_node == 0)
            if isinstance(check, PlacementCheck)
            else _copies(cluster, repeats),
            rank,
            cluster.nodes[rank // cluster.per_node],
        )
    ]


def _placed(cluster: VirtualCluster, rank: int) -> RankReading:
    """A rank with an equal part of the cores of its accelerator's socket."""
    each, nics = cluster.per_node, links_of(cluster.spec.fabric)
    node, local = divmod(rank, each)
    machine = cluster.machines[node].machine
    own = local * 2 // each
    socket = 1 - own if node in cluster.unbound else own
    beside = [i for i in range(each) if i * 2 // each == own]
    cores = sorted(cores_of(socket))[beside.index(local) :: len(beside)]
    nic = local * len(nics) // each
    if node in cluster.crossed and len(nics) > 1:
        nic = max(1, nic)
    cards = [one.address for one in machine.pci.accelerators]
    address = cards[local] if cards else None
    return RankReading(
        machine=machine,
        other=Home.accelerator(machine, address, own),
        accelerator=address,
        beside=(*cards[:each],) or (None,),
        cpus=frozenset(cores),
        threads=(Thread(1, "main", frozenset(cores), cores[0]),),
        memory_bytes={socket: 1 << 30},
        nics=(f"{nics[nic]}:1" if cluster.spec.fabric.protocol else nics[nic],),
        machine_id=cluster.nodes[node],
    )


def _copies(cluster: VirtualCluster, repeats: int) -> list[Row]:
    near = 1 - 0.01 * np.abs(cluster.rng.standard_normal(repeats))
    ratios = enumerate((near / _FAR).tolist())
    rates = (row(name, rate, "GB/s") for name, rate in zip(COPIES, (1.0, _FAR), strict=False))
    return [*rates, *(row(COPY_RATIO, ratio, repeat=number) for number, ratio in ratios)]
