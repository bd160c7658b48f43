"""Helpers of the placement tests: ranks on a machine, and what the checks say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_mnode.checks.placement.cpus import (
    RanksHaveCoresOfTheirOwn,
    RanksRunBesideTheirAccelerator,
)
from pytest_mnode.checks.placement.memory import MemoryIsBesideTheAccelerator
from pytest_mnode.checks.placement.nic import RanksSendOverTheNearestNic, nic_rows
from pytest_mnode.checks.placement_check import Here, PlacementCheck
from pytest_mnode.criteria.placement.near import PARTS, Home, RankReading
from pytest_mnode.evidence.row import RankRows, Row, of_rank
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Kind
from pytest_mnode.machine.process import Thread
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec, profile_spec
from pytest_mnode.spec.devices import Near

GIB = 1 << 30
SPEC = profile_spec("rack")
PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def read(root: Path) -> Machine:
    return Machine.read(root, PARTS)


def placed(cpus: str | None, accelerator: str | None, **more: Any) -> RankReading:
    """A rank of any machine, whose only thread may run where its process may. numa_node: of its
    device, if that has no PCI address."""
    if "numa_node" in more:
        more["other"] = Home(numa_node=more.pop("numa_node"))
    allowed = parse_cpulist(cpus)
    known: dict[str, Any] = {"cpus": allowed, "threads": (thread("python", allowed),)}
    return RankReading(machine=Machine(), accelerator=accelerator, **known | more)


def thread(name: str, cpus: frozenset[int] | None, tid: int = 100) -> Thread:
    return Thread(tid=tid, name=name, cpus_allowed=cpus, last_cpu=None)


def spec_with(within: Near) -> Spec:
    """The rack's, with another promise of what is near."""
    numa = SPEC.criteria.numa
    assert numa is not None
    criteria = SPEC.criteria.model_copy(update={"numa": numa.model_copy(update={"near": within})})
    return SPEC.model_copy(update={"criteria": criteria})


def rows(check: PlacementCheck, machine: Machine, *ranks: RankReading) -> list[Row]:
    """What ranks of this machine, from 0 on, read for a check; each tells of its node."""
    read = (check.rows_of_rank(replace(one, machine=machine), first=True) for one in ranks)
    return [row for number, of in enumerate(read) for row in of_rank(of, number, "node0")]


def answers(
    kind: type[PlacementCheck],
    promise: Any,
    machine: Machine,
    *ranks: RankReading,
    within: Near = "socket",
) -> list[Measurement]:
    check = kind(promise, spec_with(within))
    return check.answers(rows(check, machine, *ranks))[1]


def judge_cpus(machine: Machine, rank: RankReading, within: Near = "socket") -> Measurement:
    return answers(RanksRunBesideTheirAccelerator, "near", machine, rank, within=within)[0]


def judge_memory(machine: Machine, rank: RankReading, within: Near = "socket") -> Measurement:
    return answers(MemoryIsBesideTheAccelerator, 0.9, machine, rank, within=within)[0]


judge_cores = partial(answers, RanksHaveCoresOfTheirOwn, "own")


def judge_nics(
    machine: Machine,
    rank: RankReading,
    candidates: Sequence[str],
    beside: Sequence[str | None] = (),
) -> Measurement:
    """beside: addresses of the node's accelerators."""
    found = nic_rows(replace(rank, machine=machine, beside=tuple(beside)), candidates)
    of = RankRows(0, "node0", tuple(found))
    return RanksSendOverTheNearestNic("nearest").judge_rank(of, Here(Machine(), [of]))


def nearest_nic(machine: Machine, rank: RankReading) -> Measurement:
    """The judgement of a rank's NIC among all NICs that are up and of the kind that it uses."""
    devices = {device.name for device in machine.rdma or ()}
    used = rank.nics or ()
    if any(name.partition(":")[0] in devices for name in used):
        by_port = any(":" in name for name in used)
        up = [port for port in machine.ports if port.active is not False]
        names = [port.name if by_port else port.device for port in up]
    else:
        physical = (Kind.PHYSICAL, Kind.IPOIB)
        nics = machine.interfaces or ()
        names = [nic.name for nic in nics if nic.kind in physical and nic.up is not False]
    return judge_nics(machine, rank, names)


def verdicts(machine: Machine, rank: RankReading) -> tuple[Verdict | None, ...]:
    """Of the rank's CPUs, memory and NIC."""
    found = [judge(machine, rank) for judge in (judge_cpus, judge_memory, nearest_nic)]
    return tuple(one.verdict for one in found)
