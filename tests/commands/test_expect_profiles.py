"""`expect --of` with every profile: what the hardware allows passes, half of it fails.

The values are of the NICs, NVLink or PCIe alone, by shapes and rates that the sheets of the
hardware give, and not by the model's formulas.
"""

from __future__ import annotations

import pytest

from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.tools.own_results import Asked, Result, judge_output, verdict_of
from pytest_mnode.spec import Spec
from pytest_mnode.spec import profile_spec as profile
from pytest_mnode.spec.bandwidth import bus_factor
from pytest_mnode.spec.profiles import profile_names

GIB = 1 << 30
PROFILES = [name for name in profile_names() if name != "rack"]
RINGS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
PCIE_GBYTES_S = {"NVIDIA L40S": 31.5}
RING_INSIDE = {"A100": 233, "H100": 368, "H200": 366, "B200": 680, "B300": 695, "MI300X": 315}
RING_INSIDE |= {"MI325X": 318}
"""GB/s of published rings in one node of eight."""


def judged(spec: Spec, collective: str, nodes: int, busbw: float) -> Result:
    """Three runs that have this busbw at 32 GiB, with a ring pinned."""
    per_node = spec.accelerators.per_node
    ranks = nodes * per_node
    algbw = busbw / bus_factor(collective, ranks)
    devices = "".join(f"# Rank {r} Pid {r} on n{r // per_node} device 0\n" for r in range(ranks))
    one = (
        f"$ NCCL_ALGO=Ring {PROGRAMS.get(collective, collective)}_perf -b 32G\n{devices}"
        "# size count type redop root time algbw busbw #wrong\n"
        f"{32 * GIB} {8 * GIB} float sum -1 9.9 {algbw:.5f} {busbw:.5f} 0\n"
        "# Out of bounds values : 0 OK\n"
    )
    [found] = judge_output((3 * one).encode(), Asked(spec))
    return found


def allowed(spec: Spec, collective: str, nodes: int) -> float:
    """GB/s of bus bandwidth that the NICs of a node, or PCIe between GPUs, allow."""
    per_node, fabric = spec.accelerators.per_node, spec.fabric
    of_a_node = fabric.line_rate_bits_s * fabric.nics_per_node / 8e9
    of_a_gpu = 0.75 * PCIE_GBYTES_S.get(spec.accelerators.model or "", 1e4)
    if collective in RINGS:
        return min(of_a_node, of_a_gpu)
    if collective == "send_recv":
        return min(of_a_node / min(per_node, fabric.nics_per_node), of_a_gpu)
    ranks = nodes * per_node
    sent_by_node = per_node * (ranks - per_node) / ranks  # of each byte of the size
    return min(of_a_node / sent_by_node * (ranks - 1) / ranks, of_a_gpu)


@pytest.mark.parametrize(
    "name", [name for name in PROFILES if profile(name).accelerators.domain is None]
)
def test_over_nodes(name: str) -> None:
    spec = profile(name)
    # TCPX and the like leave less of the NICs: their profiles say how much.
    fabric = spec.criteria.fabric
    assert fabric
    assert fabric.all_reduce_busbw
    share = min(0.93, fabric.all_reduce_busbw.at_least_fraction + 0.06)
    of_all = [(collective, 2) for collective in (*RINGS, *PROGRAMS)]
    for collective, nodes in [*of_all, ("all_reduce", 16), ("all_to_all", 16)]:
        whole = share * allowed(spec, collective, nodes)
        found = [
            verdict_of([judged(spec, collective, nodes, busbw)]) for busbw in (whole, whole / 2)
        ]
        assert found == [Verdict.PASS, Verdict.FAIL], (collective, nodes)


@pytest.mark.parametrize(
    ("name", "ring"),
    [
        (name, busbw)
        for name in PROFILES
        for part, busbw in RING_INSIDE.items()
        if profile(name).accelerators.per_node == 8
        and f" {part}" in f"{profile(name).accelerators.model}"
    ],
)
def test_inside_a_node(name: str, ring: float) -> None:
    spec = profile(name)
    for collective in RINGS:
        found = judged(spec, collective, 1, 0.98 * ring)
        assert found.title.startswith(f"{collective}, ring pinned, 1 node of 8 ranks")
        assert verdict_of([found]) is Verdict.PASS
        assert verdict_of([judged(spec, collective, 1, 0.5 * ring)]) is Verdict.FAIL


@pytest.mark.parametrize(("nodes", "healthy"), [(2, 680), (18, 680), (36, 680), (19, 185)])
def test_a_rack(nodes: int, healthy: float) -> None:
    """NVLink of a rack, and over 19 nodes the NICs of the one in the second rack."""
    spec = profile("gb200-nvl72")
    assert verdict_of([judged(spec, "all_reduce", nodes, healthy)]) is Verdict.PASS
    found = judged(spec, "all_reduce", nodes, 0.5 * healthy)
    assert verdict_of([found]) is Verdict.FAIL
