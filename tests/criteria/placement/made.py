"""Helpers of the placement tests: machines, threads, and the NICs that a rank could use."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pytest_mnode.criteria.placement.binding import judge_cpus, judge_memory
from pytest_mnode.criteria.placement.nics import judge_nics
from pytest_mnode.criteria.placement.rank_placement import PARTS, RankPlacement
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Kind
from pytest_mnode.machine.process import Thread
from pytest_mnode.measurement import Measurement, Verdict

GIB = 1 << 30
PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
MEMORY = partial(judge_memory, least_fraction=0.9)


def read(root: Path) -> Machine:
    return Machine.read(root, PARTS)


def placed(cpus: str | None, accelerator: str | None, **more: Any) -> RankPlacement:
    """Rank 0 of node0, or another, whose only thread may run where its process may."""
    allowed = parse_cpulist(cpus)
    known: dict[str, Any] = {"rank": 0, "node": "node0", "threads": (thread("python", allowed),)}
    return RankPlacement(accelerator=accelerator, cpus=allowed, **known | more)


def thread(name: str, cpus: frozenset[int] | None, tid: int = 100) -> Thread:
    return Thread(tid=tid, name=name, cpus_allowed=cpus, last_cpu=None)


def nearest_nic(machine: Machine, rank: RankPlacement) -> Measurement:
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


def verdicts(machine: Machine, rank: RankPlacement) -> tuple[Verdict | None, ...]:
    """Of the rank's CPUs, memory and NIC."""
    found = [judge(machine, rank) for judge in (judge_cpus, MEMORY, nearest_nic)]
    return tuple(one.verdict for one in found)
