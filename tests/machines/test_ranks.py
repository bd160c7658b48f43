"""Ranks on guests: they meet, and each is beside its NIC or named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.machines import pages
from tests.machines.accepting import certified
from tests.machines.bed import Machines

MESH = (
    "test_mesh.py::test_every_rank_meets_every_other",
    "test_mesh.py::test_sum_is_right",
)
CPUS = "test_ranks_run_beside_their_accelerator"
MEMORY = "test_memory_is_beside_the_accelerator"
NIC = "test_ranks_send_over_the_nearest_nic"
CORES = "test_ranks_have_cores_of_their_own"
# fab0 is beside NUMA node 1, whose only CPU is 1. The rank of node1 is moved, that of node0 stays;
# or its traffic is moved to fab1, which is beside NUMA node 0 and on the same link.
MISPLACED = f"""
import os
import subprocess
import pytest

CASES = {{
    "other node": ({{0}}, 0, "{CPUS} {MEMORY}"),
    "unbound": ({{0, 1}}, 1, "{CPUS}"),
    "far memory": ({{1}}, 0, "{MEMORY}"),
    "far NIC": ({{1}}, 1, "{NIC}"),
}}

def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.endswith("test_numa"):
        name = metafunc.function.__name__
        cases = [case for case, (_, _, names) in CASES.items() if name in names.split()]
        metafunc.parametrize("place", ["beside", *cases], indirect=True)

@pytest.fixture(autouse=True)
def place(request, world):
    case = getattr(request, "param", "beside")
    if case == "beside" or world.node != "node1":
        yield
        return
    from pytest_mnode.rank import mempolicy
    cpus, memory, _ = CASES[case]
    os.sched_setaffinity(0, cpus)
    mempolicy.prefer(memory)
    if case == "far NIC":
        subprocess.run(["ip", "route", "add", "PEER", "dev", "fab1"], check=True)
    yield
    if case == "far NIC":
        subprocess.run(["ip", "route", "del", "PEER", "dev", "fab1"], check=True)
    os.sched_setaffinity(0, {{1}})
    mempolicy.prefer(1)
"""


def page() -> dict[str, Any]:
    """TCP over fab0 for ranks on CPUs."""
    page = pages.one_rail()
    page["fabric"] |= {"kind": "ethernet", "interfaces": ["fab0"]}
    page["criteria"] = {
        "mesh": {},
        "numa": {"cpus": "near", "memory_near_fraction": 0.9, "nic": "nearest", "cores": "own"},
    }
    return page


def test_ranks_meet_and_a_misplaced_one_is_named(machines: Machines, shared: Path) -> None:
    """One world for all checks: importing torch takes a minute."""
    peer = machines.rack.plan.address(0, "fab0")
    (shared / "misplaced.py").write_text(MISPLACED.replace("PEER", peer))
    tests = [*MESH, *(f"test_numa.py::{name}" for name in (CPUS, MEMORY, NIC, CORES))]
    options = ("--mnode-numa-bind=exclusive", "-p", "misplaced")
    try:
        done = certified(machines, shared, page(), *tests, more=options)
    finally:  # a rank that was killed leaves the route
        machines.guest("node1", f"ip route del {peer} dev fab1 2>/dev/null || true")
    assert done.criterion("mesh")["verdict"] == "pass", done.run.output
    failed = {
        case["test"].partition("::")[2]: one["culprit"]
        for case in done.criterion("numa")["cases"]
        for one in case["measurements"]
        if one["verdict"] != "pass"
    }
    print(*failed.items(), sep="\n")
    cpus, memory = "rank 1 on node1: CPU binding (CPUs {}; ", "rank 1 on node1: memory binding ("
    expected = {
        f"{CPUS}[other node]": cpus.format("0"),
        f"{CPUS}[unbound]": cpus.format("0-1"),
        f"{MEMORY}[other node]": memory,
        f"{MEMORY}[far memory]": memory,
        f"{NIC}[far NIC]": "rank 1 on node1: fab1 (",
    }
    assert failed.keys() == expected.keys(), done.run.output
    for test, words in expected.items():
        assert failed[test].startswith(words), failed
        assert "node0" not in failed[test]
