"""Placement of ranks on recorded machines and on a server with eight GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.charts import Chart, Map
from pytest_mnode.checks.placement.cpus import RanksRunBesideTheirAccelerator
from pytest_mnode.checks.placement.memory import MemoryIsBesideTheAccelerator
from pytest_mnode.checks.placement_check import PlacementCheck
from pytest_mnode.criteria.placement.near import Home, RankReading, candidate_nics
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.fabric_nics import nic_of_rank, read_fabric_nics
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.process import Thread
from pytest_mnode.measure import Measure
from pytest_mnode.measurement import HeadlineMark, Measurement, Verdict, at_least
from pytest_mnode.rank.binding import shares
from pytest_mnode.spec import profile_spec
from tests.checks.placement.made import (
    FAIL,
    GIB,
    INCONCLUSIVE,
    PASS,
    judge_cores,
    judge_cpus,
    judge_memory,
    judge_nics,
    nearest_nic,
    placed,
    read,
    rows,
    spec_with,
    thread,
    verdicts,
)
from tests.recorded import Recorded
from tests.trees import GPU, MELLANOX, NIC, NVIDIA, Tree, gpu_address, gpu_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return read(gpu_server(tmp_path_factory.mktemp("server")).root)


def rank(
    number: int = 0, cpus: str | None = "0-15,32-47", *, gpu: int | None = None, **more: Any
) -> RankReading:
    """A well placed rank beside an accelerator, with the given changes."""
    place = number if gpu is None else gpu
    good = {"memory_bytes": {0: GIB}, "nics": (f"mlx5_{place}",)}
    return placed(cpus, **{"accelerator": gpu_address(place), **good, **more})


@pytest.mark.parametrize("gpu", [0, 3, 4, 7])
def test_ranks_bound_to_their_sockets_pass(server: Machine, gpu: int) -> None:
    cores = f"{gpu * 4}-{gpu * 4 + 3},{gpu * 4 + 32}-{gpu * 4 + 35}"
    facts = rank(gpu, cores, memory_bytes={gpu // 4: GIB, 1 - gpu // 4: GIB // 20})
    neighbour = rank(8, "60" if gpu < 7 else "0", gpu=7)
    answers = [judge(server, facts) for judge in (judge_cpus, judge_memory, nearest_nic)]
    answers += judge_cores(server, facts, neighbour)[:1]
    keys = ["cpus", "memory_near_fraction", "nic", "cores"]
    assert [answer.name for answer in answers] == [f"numa.{key}" for key in keys]
    assert [answer.verdict for answer in answers] == [PASS] * 4, [a.note for a in answers]


@pytest.mark.parametrize(
    ("cpus", "verdict", "out", "words"),
    [
        ("0-15,32-47", PASS, 0, "is bound to CPUs 0-15,32-47 on NUMA node 0"),
        ("3", PASS, 0, "is bound to CPUs 3 on NUMA node 0"),
        ("0-63", FAIL, 32, "is not bound: it may run on all CPUs 0-63"),
        ("0-255", FAIL, 32, "is not bound: it may run on all CPUs 0-63"),
        ("16-31,48-63", FAIL, 32, "is bound to CPUs 16-31,48-63 on NUMA node 1"),
        ("15-16", FAIL, 1, "may run on CPUs 15-16, which span NUMA nodes 0-1"),
        (None, INCONCLUSIVE, None, "its CPU affinity could not be read"),
    ],
)
def test_cpus_of_the_process(
    server: Machine, cpus: str | None, verdict: Verdict, out: int | None, words: str
) -> None:
    finding = judge_cpus(server, rank(cpus=cpus))
    assert (finding.verdict, finding.value) == (verdict, out)
    assert finding.note.startswith(f"rank 0 on node0: {words}")
    assert "expected CPUs 0-15,32-47, local to 0000:13:00.0 on NUMA node 0" in finding.note
    assert ("numactl --cpunodebind=0 --membind=0" in finding.note) == (verdict is FAIL)


def _threads(*pairs: tuple[str, str | None]) -> tuple[Thread, ...]:
    return tuple(thread(name, parse_cpulist(cpus), 100 + i) for i, (name, cpus) in enumerate(pairs))


def test_a_thread_with_other_cpus_is_named(server: Machine) -> None:
    threads = _threads(("python", "0-3"), ("pt_autograd_0", "0-63"), ("loader", "16"))
    finding = judge_cpus(server, rank(cpus="0-3", threads=threads))
    assert (finding.verdict, finding.value) == (FAIL, 32)
    assert (
        "is bound to CPUs 0-3 on NUMA node 0, but thread pt_autograd_0 may run on CPUs 0-63;"
        " thread loader may run on CPUs 16; expected"
    ) in finding.note


def test_hundreds_of_misplaced_threads_are_shortened(server: Machine) -> None:
    """In rows too: 8,192 ranks with 300 each would make 240 MB of evidence."""
    threads = _threads(*[("worker", "16")] * 300, *[(f"t{i}", "17") for i in range(9)])
    finding = judge_cpus(server, rank(cpus="0-3", threads=threads))
    assert "300 threads worker may run on CPUs 16" in finding.note
    assert "thread t2 may run on CPUs 17; 6 other threads may run on CPUs 17;" in finding.note
    assert len(finding.note) < 600
    check = RanksRunBesideTheirAccelerator("near", spec_with("socket"))
    few = rows(check, server, rank(cpus="0-3"))
    assert len(rows(check, server, rank(cpus="0-3", threads=threads))) == len(few) + 5


def test_unreadable_threads_are_inconclusive(server: Machine) -> None:
    for threads in ((), _threads(("python", "0-3"), ("gone", None))):
        finding = judge_cpus(server, rank(cpus="0-3", threads=threads))
        assert finding.verdict is INCONCLUSIVE
        assert "affinity of its threads could not be read" in finding.note
    finding = judge_cpus(server, rank(cpus="0-63", threads=()))
    assert finding.verdict is FAIL, "the CPUs of the process alone are wrong"


def test_an_unknown_accelerator_is_inconclusive(server: Machine) -> None:
    facts = rank(accelerator=None, other=Home(why="torch knows no PCI address of cpu:0"))
    for promise in (judge_cpus, judge_memory, nearest_nic):
        finding = promise(server, facts)
        assert (finding.verdict, finding.value) == (INCONCLUSIVE, None)
        assert "torch knows no PCI address of cpu:0" in finding.note
    finding = judge_cpus(server, rank(accelerator="0000:99:00.0"))
    assert "0000:99:00.0 is not among the PCI devices of its node" in finding.note


def test_an_accelerator_without_a_pci_address_may_name_its_node(server: Machine) -> None:
    facts = rank(cpus="16-31", accelerator=None, numa_node=1, nics=("mlx5_5",))
    assert verdicts(server, facts) == (PASS, FAIL, PASS)
    assert verdicts(server, replace(facts, nics=("mlx5_0",))) == (PASS, FAIL, FAIL)
    assert verdicts(server, replace(facts, other=Home(numa_node=0))) == (FAIL, PASS, FAIL)
    gone = judge_cpus(server, replace(facts, other=Home(numa_node=7)))
    assert gone.verdict is INCONCLUSIVE
    assert "NUMA node 7, which its node does not show" in gone.note


@pytest.mark.parametrize(
    ("name", "used", "verdict"),
    [
        ("numa2-virtio-aligned-rxe-up", "rxe0", PASS),
        ("numa2-virtio-aligned-rxe-up", "rxe0:1", PASS),
        ("numa2-virtio-aligned-rxe-up", "rxe1", FAIL),
        ("numa2-virtio-aligned-rxe-up", "eth1", PASS),
        ("numa2-virtio-aligned-rxe-up", "eth0", FAIL),
        ("numa2-virtio-aligned-rxe-up", "mlx5_0", INCONCLUSIVE),
        # The nearest NIC is down, so the other one counts.
        ("numa2-e1000e-rxe-port-down", "rxe0", PASS),
    ],
)
def test_nics_of_recorded_machines(
    recorded: Recorded, name: str, used: str, verdict: Verdict
) -> None:
    facts = rank(accelerator=None, numa_node=int(name.endswith("down")), nics=(used,))
    finding = nearest_nic(read(recorded(name)), facts)
    assert finding.verdict is verdict, finding.note


@pytest.mark.parametrize("used", ["eth0", "eth1"])
def test_both_nics_on_the_far_node_are_equally_near(recorded: Recorded, used: str) -> None:
    machine = read(recorded("numa2-both-nics-on-node1"))
    facts = rank(accelerator=None, numa_node=0, nics=(used,))
    assert judge_nics(machine, facts, ("eth0", "eth1")).verdict is PASS


def test_nics_by_pci_path_then_by_node(server: Machine) -> None:
    for used, verdict, words in (
        ("mlx5_2", PASS, "mlx5_2 (PIX)"),
        ("mlx5_3", FAIL, "mlx5_3 (PHB); expected mlx5_2 (PIX), nearest to 0000:33:00.0"),
        ("mlx5_0", FAIL, "mlx5_0 (NODE)"),
        ("mlx5_7", FAIL, "mlx5_7 (SYS, NUMA distance 32)"),
        ("ib2", PASS, "ib2 (PIX)"),
        ("eno1", FAIL, "eno1 (NODE); expected ib2 (PIX)"),
    ):
        finding = nearest_nic(server, rank(2, nics=(used,)))
        assert finding.verdict is verdict, finding.note
        assert f"uses {words}" in finding.note
    several = nearest_nic(server, rank(2, nics=("mlx5_2", "mlx5_3")))
    assert (several.verdict, several.value) == (FAIL, 1)
    assert nearest_nic(server, rank(2, nics=("mlx5_3", "mlx5_0"))).value == 2
    assert str(several.culprit).startswith("rank 0 on node0: mlx5_3 (mlx5_2 (PIX), mlx5_3 (PHB);")


def test_only_fabric_nics_are_compared(server: Machine) -> None:
    fabric = ("mlx5_3", "mlx5_7")
    assert judge_nics(server, rank(2, nics=("mlx5_3",)), fabric).verdict is PASS
    assert judge_nics(server, rank(2, nics=("mlx5_7",)), fabric).verdict is FAIL
    finding = judge_nics(server, rank(2, nics=("mlx5_3",)), ("mlx5_3", "mlx5_9"))
    assert finding.verdict is INCONCLUSIVE
    assert "mlx5_9 (no such device, or no physical device below it)" in finding.note


def test_an_unknown_nic_does_not_pass(server: Machine) -> None:
    for nics in (None, ()):
        assert nearest_nic(server, rank(nics=nics)).verdict is INCONCLUSIVE
    nowhere = judge_nics(server, rank(), ())
    assert nowhere.verdict is INCONCLUSIVE
    assert "node0 shows none of the NICs that the rank could use" in nowhere.note
    blind = replace(server, interfaces=None, rdma=None)
    assert nearest_nic(blind, rank()).verdict is INCONCLUSIVE


def test_a_nic_of_unknown_node_matters_only_if_it_could_be_nearer(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.numa({0: "0-3", 1: "4-7"})
    gpu = tree.pci("pci0000:10/0000:10:01.0", GPU, NVIDIA, 0, "0-3")
    for name, host, numa in (("near", 0x10, 0), ("same", 0x20, 0), ("far", 0x30, 1)):
        on = f"pci0000:{host:02x}/0000:{host:02x}:02.0"
        tree.pci(on, NIC, "0x15b3", numa)
        tree.interface(name, on)
    tree.pci("pci0000:40/0000:40:02.0", NIC, "0x15b3")
    tree.interface("lost", "pci0000:40/0000:40:02.0")
    machine = read(tmp_path)

    def verdict(used: str, *among: str) -> Verdict | None:
        facts = rank(cpus="0-3", accelerator=gpu, nics=(used,))
        return judge_nics(machine, facts, among).verdict

    assert verdict("near", "near", "lost") is PASS
    assert verdict("same", "same", "lost") is PASS
    assert verdict("far", "far", "lost") is INCONCLUSIVE
    assert verdict("far", "far", "lost", "same") is FAIL
    assert verdict("lost", "lost", "near") is FAIL
    assert verdict("lost", "lost", "same") is INCONCLUSIVE
    assert verdict("lost", "lost") is INCONCLUSIVE


def test_a_bond_is_as_far_as_its_farthest_link(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.interface("bond0")
    tree.write("sys/devices/virtual/net/bond0/bonding/slaves", "ib0 ib4")
    tree.interface("bond0.7")
    tree.link("sys/devices/virtual/net/bond0.7/lower_bond0", "sys/devices/virtual/net/bond0")
    machine = read(tmp_path)
    for name in ("bond0", "bond0.7"):
        finding = nearest_nic(machine, rank(nics=(name,)))
        assert finding.verdict is FAIL
        assert f"uses {name} (SYS, NUMA distance 32); expected ib0 (PIX)" in finding.note


@pytest.mark.parametrize(
    ("memory", "verdict", "share"),
    [
        ({0: 95, 1: 5}, PASS, 0.95),
        ({0: 90, 1: 10}, PASS, 0.9),
        ({0: 89, 1: 11}, FAIL, 0.89),
        ({1: 100}, FAIL, 0.0),
        ({0: 1, 9: 99}, FAIL, 0.01),
        ({}, INCONCLUSIVE, None),
        (None, INCONCLUSIVE, None),
    ],
)
def test_memory_by_its_share(
    server: Machine, memory: dict[int, int] | None, verdict: Verdict, share: float | None
) -> None:
    finding = judge_memory(server, rank(memory_bytes=memory))
    assert (finding.verdict, finding.value, finding.expected) == (verdict, share, at_least(0.9))
    assert "at least 90% on NUMA node 0, near 0000:13:00.0 on NUMA node 0" in finding.note


def test_a_node_without_memory_uses_the_nearest_one_with_memory(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB")
    machine = read(tmp_path)
    facts = rank(5, "16-31", memory_bytes={0: GIB})
    assert judge_memory(machine, facts).verdict is PASS
    tree.write("sys/devices/system/node/node1/distance", "10")
    unknown = judge_memory(read(tmp_path), facts)
    assert unknown.verdict is INCONCLUSIVE
    assert "which NUMA node with memory is nearest" in unknown.note


def test_cpus_that_are_offline_are_not_expected(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.write("sys/devices/system/cpu/online", "0-15,18")
    machine = read(tmp_path)
    assert "expected CPUs 18, local to" in judge_cpus(machine, rank(5, "18")).note
    tree.write("sys/devices/system/cpu/online", "0-15")
    gone = judge_cpus(read(tmp_path), rank(5, "0"))
    assert gone.verdict is INCONCLUSIVE
    assert "the CPUs of NUMA node 1 are not known" in gone.note


def test_isolated_cpus(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.write("sys/devices/system/cpu/isolated", "8-15")
    machine = read(tmp_path)
    unbound = judge_cpus(machine, rank(cpus="0-7,16-63"))
    assert "is not bound: it may run on all CPUs 0-7,16-63" in unbound.note
    on_isolated = judge_cpus(machine, rank(cpus="8-11"))
    assert on_isolated.verdict is PASS
    assert "CPUs 8-11 are isolated: the kernel does not spread threads" in on_isolated.note
    assert "isolated" not in judge_cpus(machine, rank(cpus="8")).note


def test_on_one_numa_node_any_binding_passes_with_a_note(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.numa({0: "0-7"})
    tree.cpus([[(c,) for c in range(8)]])
    gpu = tree.pci("pci0000:10/0000:10:01.0", GPU, NVIDIA, 0, "0-7")
    finding = judge_cpus(read(tmp_path), rank(cpus="0-7", accelerator=gpu))
    assert finding.verdict is PASS
    assert "one NUMA node, so there is nothing to place" in finding.note


def test_ranks_that_share_cores(server: Machine) -> None:
    ranks = [rank(0, "0-3"), rank(1, "3-5"), rank(2, "36"), rank(3, "8"), rank(4, "32-35")]
    elsewhere = rank(5, "8", machine_id="another")
    found = judge_cores(server, *ranks, elsewhere)
    assert [f.value for f in found] == [2, 3, 1, 0, 2, 0]
    assert [f.verdict for f in found] == [FAIL, FAIL, FAIL, PASS, FAIL, PASS]
    assert "shares cores with rank 1 (CPUs 3,35), rank 4 (CPUs 0-3,32-35); give" in found[0].note
    assert "with rank 1" in found[2].note, "CPU 36 is the second hardware thread of core 4"
    assert "shares no core" in found[3].note
    assert "is alone on its node" in found[5].note


def test_a_core_used_by_one_thread_of_another_rank_is_shared(server: Machine) -> None:
    stray = rank(0, "0-3", threads=_threads(("python", "0-3"), ("loader", "8")))
    found = judge_cores(server, stray, rank(1, "8-9"))
    assert [f.verdict for f in found] == [FAIL, FAIL]


def test_unknown_cores_are_inconclusive(server: Machine, tmp_path: Path) -> None:
    found = judge_cores(server, rank(0, "0-3"), rank(1, None))
    assert [f.verdict for f in found] == [INCONCLUSIVE] * 2
    assert "the CPUs of rank 1 beside it are not known" in found[0].note
    tree = Tree(tmp_path)
    tree.write("sys/devices/system/cpu/online", "0-3")
    tree.numa({0: "0-3"})
    bare = read(tmp_path)
    found = judge_cores(bare, rank(0, "0"), rank(1, "1"))
    assert [f.verdict for f in found] == [INCONCLUSIVE] * 2
    assert "it is not known which CPUs share a core" in found[0].note


def of_all(
    kind: type[PlacementCheck], promise: Any, machine: Machine, *ranks: RankReading
) -> Measurement:
    """What a check says of several ranks together."""
    check = kind(promise, spec_with("socket"))
    [found] = check.rule(rows(check, machine, *ranks))
    return found


def test_a_misplaced_rank_fails_and_an_unknown_one_is_inconclusive(server: Machine) -> None:
    def cpus(*ranks: RankReading) -> Measurement:
        return of_all(RanksRunBesideTheirAccelerator, "near", server, *ranks)

    right, wrong, unknown = rank(), rank(cpus="0-15,16-17"), rank(cpus=None)
    kept = cpus(right, right)
    assert (kept.verdict, kept.note) == (PASS, "2 ranks, each as expected")
    one = cpus(right, wrong, unknown)
    assert (one.verdict, one.value, one.source) == (FAIL, 1, "numa.cpus near")
    assert one.culprit == (
        "rank 1 on node0: CPU binding (CPUs 0-17; expected CPUs 0-15,32-47, local to 0000:13:00.0"
        " on NUMA node 0)"
    )
    assert one.culprit.nodes == {"node0"}
    assert one.culprit.parts.ranks == (1,)
    assert one.note.startswith("rank 1 on node0: may run on CPUs 0-17")
    assert one.headline == HeadlineMark("", "ranks beside their accelerators", 3, right=1)
    assert cpus(right, unknown).verdict is INCONCLUSIVE
    many = cpus(*[wrong] * 7).culprit
    assert many is not None
    assert many.endswith("; and 3 more")
    assert many.parts.ranks == tuple(range(7))


def test_a_node_that_cannot_show_its_sockets_is_inconclusive(server: Machine) -> None:
    check = RanksRunBesideTheirAccelerator("near", spec_with("socket"))
    found = rows(check, server, rank(not_shown="on the rack too few CPUs"))
    [one], charts = check.rule(found), list[Chart]()
    assert (one.verdict, one.note) == (INCONCLUSIVE, "rank 0 on node0: on the rack too few CPUs")
    check.show(found, Measure([], "", charts))
    [drawn] = charts
    assert isinstance(drawn, Map)
    assert [place.name for place in drawn.layouts[0].places] == ["no NUMA node known"]


def test_memory_is_judged_by_the_lowest_rank_share(server: Machine) -> None:
    def memory(*shares: int | None) -> Measurement:
        held = [share if share is None else {0: share, 1: 100 - share} for share in shares]
        ranks = (rank(memory_bytes=one) for one in held)
        return of_all(MemoryIsBesideTheAccelerator, 0.9, server, *ranks)

    assert memory(99, 93).value == 0.93
    low = memory(99, 40)
    assert (low.verdict, low.value, low.unit) == (FAIL, 0.4, "of its memory")
    assert memory(99, None).verdict is INCONCLUSIVE


def test_nics_of_an_rdma_fabric_are_its_ports_even_if_usage_is_unknown(
    server: Machine,
) -> None:
    spec = profile_spec("rack")
    for kind, found in (("infiniband", ("mlx5_2:1", "mlx5_3:1")), ("roce", ())):
        changes = {"kind": kind, "interfaces": ("mlx5_2", "mlx5_3")}
        spec = spec.model_copy(update={"fabric": spec.fabric.model_copy(update=changes)})
        assert candidate_nics(server, (), spec) == found


def judged(machine: Machine, nics: str, cpus: str, memory: int) -> tuple[Measurement, Measurement]:
    """CPU and memory verdicts of a rank that may run on `cpus`, with all its memory on one node."""
    rank = placed(cpus, None, memory_bytes={memory: GIB})
    rank = replace(rank, other=Home.nic(machine, [nics], 0, 1, rank.cpus))
    return judge_cpus(machine, rank), judge_memory(machine, rank)


@pytest.mark.parametrize(
    ("name", "nic", "cpus", "memory", "verdicts", "words"),
    [
        # eth0 is on node 1, eth1 on node 0
        ("numa2-e1000e-aligned", "eth0", "2-3", 1, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth0", "0-1", 0, "fail fail", "local to eth0 on NUMA node 1"),
        ("numa2-e1000e-aligned", "eth0", "2-3", 0, "pass fail", "numactl --membind=1"),
        ("numa2-e1000e-aligned", "eth0", "0-3", 1, "fail pass", "is not bound: it may run on all"),
        ("numa2-e1000e-aligned", "eth*", "0-1", 0, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth*", "2-3", 1, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth*", "1-2", 1, "fail pass", "which span NUMA nodes 0-1"),
        ("numa2-both-nics-on-node1", "eth*", "0-1", 0, "fail fail", "on NUMA node 1"),
        ("numa2-both-nics-on-node1", "eth*", "2", 1, "pass pass", ""),
        ("numa2-virtio-aligned-rxe-up", "rxe1", "2-3", 1, "pass pass", ""),
        ("numa2-virtio-aligned-rxe-up", "rxe1", "0-1", 1, "fail pass", "local to rxe1 on NUMA"),
        ("numa2-e1000e-siw", "siw0", "0-1", 0, "pass pass", ""),
        ("numa2-nics-no-affinity", "eth0", "0-1", 0, "inconclusive inconclusive", "NIC eth0 (numa"),
        ("numa1-plain", "eth0", "0-3", 0, "inconclusive inconclusive", "eth0 (numa_node is −1"),
        ("numa2-e1000e-aligned", "ib0", "0-1", 0, "inconclusive inconclusive", "shows no NIC of"),
    ],
)
def test_recorded_machines(  # noqa: PLR0917  one table
    recorded: Recorded, name: str, nic: str, cpus: str, memory: int, verdicts: str, words: str
) -> None:
    found = judged(read(recorded(name)), nic, cpus, memory)
    assert " ".join(str(m.verdict) for m in found) == verdicts
    assert words in "; ".join(m.note for m in found)
    assert all((m.culprit or "rank 0 on node0").startswith("rank 0 on node0") for m in found)


@pytest.fixture
def uneven(tmp_path: Path) -> Machine:
    """NUMA nodes with 4 CPUs, 1 CPU, 3 CPUs and a NIC, and memory and another NIC without CPUs."""
    tree = Tree(tmp_path)
    lists = {0: "0-3", 1: "4", 2: "5-7", 3: ""}
    tree.numa(lists)
    for one, row in enumerate(("10 20 20 40", "20 10 20 40", "20 20 10 15", "40 40 15 10")):
        tree.write(f"sys/devices/system/node/node{one}/distance", row)
    tree.write("sys/devices/system/cpu/online", "0-7")
    for bus, node in ((10, 2), (20, 3)):
        path = f"pci0000:{bus}/0000:{bus}:01.0"
        tree.pci(path, NIC, MELLANOX, node, lists[node])
        tree.interface(f"eth{node}", path)
    return read(tmp_path)


@pytest.mark.parametrize(
    ("nic", "cpus", "memory", "verdicts"),
    [
        ("eth2", "5-7", 2, "pass pass"),
        ("eth2", "5-7", 3, "pass pass"),  # memory without CPUs, nearest to these
        ("eth2", "4", 1, "fail fail"),
        ("eth2", "4-7", 2, "fail pass"),
        ("eth3", "5-7", 2, "pass pass"),  # its node has no CPUs: the nearest one with CPUs counts
        ("eth3", "0-3", 0, "fail fail"),
    ],
)
def test_four_uneven_nodes(
    uneven: Machine, nic: str, cpus: str, memory: int, verdicts: str
) -> None:
    found = judged(uneven, nic, cpus, memory)
    assert " ".join(str(m.verdict) for m in found) == verdicts


def test_several_nics_are_distributed_over_the_ranks_of_a_node(recorded: Recorded) -> None:
    root = recorded("numa2-virtio-aligned-rxe-up")
    nics = read_fabric_nics(["rxe*"], root)
    dealt = [nic_of_rank(nics, rank, 4) for rank in range(4)]
    assert [nic and nic.name for nic in dealt] == ["rxe0", "rxe0", "rxe1", "rxe1"]
    homes = [nic.numa_node for nic in dealt if nic]
    bound = shares(homes, {0: [(0,), (1,)], 1: [(2,), (3,)]}, True, "NIC")
    assert [share.cpus for share in bound] == [(0,), (1,), (2,), (3,)]
    [unknown] = shares([None], {0: [(0,)]}, True, "NIC")
    assert unknown.why == "the NUMA node of its NIC is not known"
    assert nic_of_rank((), 0, 1) is None
