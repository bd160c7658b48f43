"""Placement of ranks on recorded machines and on a server with eight GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.placement.binding import judge_cores, judge_cpus
from pytest_mnode.criteria.placement.nics import fabric_nics, judge_nics
from pytest_mnode.criteria.placement.rank_placement import (
    Question,
    RankPlacement,
    beside_nic,
    over_ranks,
)
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.fabric_nics import nic_of_rank, read_fabric_nics
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.process import Thread, bytes_by_node, parse_numa_maps
from pytest_mnode.measurement import Measurement, Verdict, at_least
from pytest_mnode.rank.binding import shares
from pytest_mnode.spec import profile_spec
from tests.criteria.placement.made import (
    FAIL,
    GIB,
    INCONCLUSIVE,
    MEMORY,
    PASS,
    nearest_nic,
    placed,
    read,
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
) -> RankPlacement:
    """A well placed rank of node0, with the given changes."""
    place = number if gpu is None else gpu
    good = {"rank": number, "memory_bytes": {0: GIB}, "nics": (f"mlx5_{place}",)}
    return placed(cpus, **{"accelerator": gpu_address(place), **good, **more})


def cores(machine: Machine, *ranks: RankPlacement) -> list[Measurement]:
    return [judge_cores(machine, rank, ranks) for rank in ranks]


@pytest.mark.parametrize("gpu", [0, 3, 4, 7])
def test_ranks_bound_to_their_sockets_pass(server: Machine, gpu: int) -> None:
    cores = f"{gpu * 4}-{gpu * 4 + 3},{gpu * 4 + 32}-{gpu * 4 + 35}"
    facts = rank(gpu, cores, memory_bytes={gpu // 4: GIB, 1 - gpu // 4: GIB // 20})
    neighbour = rank(8, "60" if gpu < 7 else "0", gpu=7)
    answers = [judge(server, facts) for judge in (judge_cpus, MEMORY, nearest_nic)]
    answers.append(judge_cores(server, facts, [facts, neighbour]))
    assert [answer.name for answer in answers] == [question.key for question in Question]
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
        "is bound to CPUs 0-3 on NUMA node 0, but thread pt_autograd_0 (101) may run on CPUs 0-63;"
        " thread loader (102) may run on CPUs 16; expected"
    ) in finding.note


def test_hundreds_of_misplaced_threads_are_shortened(server: Machine) -> None:
    threads = _threads(*[("worker", "16")] * 300, *[(f"t{i}", "17") for i in range(9)])
    finding = judge_cpus(server, rank(cpus="0-3", threads=threads))
    assert "thread worker (100, 101, 102, …) may run on CPUs 16" in finding.note
    assert "and 6 more" in finding.note
    assert len(finding.note) < 600


def test_unreadable_threads_are_inconclusive(server: Machine) -> None:
    for threads in (None, _threads(("python", "0-3"), ("gone", None))):
        finding = judge_cpus(server, rank(cpus="0-3", threads=threads))
        assert finding.verdict is INCONCLUSIVE
        assert "affinity of its threads could not be read" in finding.note
    finding = judge_cpus(server, rank(cpus="0-63", threads=None))
    assert finding.verdict is FAIL, "the CPUs of the process alone are wrong"


def test_an_unknown_accelerator_is_inconclusive(server: Machine) -> None:
    unknown = {"accelerator": "torch knows no PCI address of cpu:0"}
    facts = rank(accelerator=None, unknown=unknown)
    for promise in (judge_cpus, MEMORY, nearest_nic):
        finding = promise(server, facts)
        assert (finding.verdict, finding.value) == (INCONCLUSIVE, None)
        assert "torch knows no PCI address of cpu:0" in finding.note
    finding = judge_cpus(server, rank(accelerator="0000:99:00.0"))
    assert "0000:99:00.0 is not among the PCI devices of node0" in finding.note


def test_an_accelerator_without_a_pci_address_may_name_its_node(server: Machine) -> None:
    facts = rank(cpus="16-31", accelerator=None, numa_node=1, nics=("mlx5_5",))
    assert verdicts(server, facts) == (PASS, FAIL, PASS)
    assert verdicts(server, replace(facts, nics=("mlx5_0",))) == (PASS, FAIL, FAIL)
    assert verdicts(server, replace(facts, numa_node=0)) == (FAIL, PASS, FAIL)
    gone = judge_cpus(server, replace(facts, numa_node=7))
    assert gone.verdict is INCONCLUSIVE
    assert "NUMA node 7, which node0 does not show" in gone.note


@pytest.mark.parametrize("name", ["numa1-plain", "numa2-nics-no-affinity"])
def test_numa_node_minus_one_never_passes(recorded: Recorded, name: str) -> None:
    machine = read(recorded(name))
    facts = rank(cpus="0-3", accelerator="0000:00:01.0", nics=("eth0",))
    for promise in (judge_cpus, MEMORY):
        finding = promise(machine, facts)
        assert finding.verdict is INCONCLUSIVE
        assert "numa_node is −1" in finding.note


def test_ranks_on_a_recorded_machine(recorded: Recorded) -> None:
    machine = read(recorded("numa2-e1000e-aligned"))
    # No such machine has an accelerator, so the NIC of node 1 stands for one.
    facts = rank(cpus="2-3", accelerator="0000:61:00.0", memory_bytes={1: GIB}, nics=("eth0",))
    up = {"carrier": True, "operstate": "up", "admin_up": True}
    nics = tuple(replace(nic, **up) for nic in machine.interfaces or ())  # type: ignore[arg-type]
    machine = replace(machine, interfaces=nics)
    assert verdicts(machine, facts) == (PASS, PASS, PASS)
    swapped = replace(facts, cpus=frozenset((0, 1)), memory_bytes={0: GIB}, nics=("eth1",))
    assert verdicts(machine, swapped) == (FAIL, FAIL, FAIL)
    finding = nearest_nic(machine, swapped)
    assert "uses eth1 (SYS, NUMA distance 21); expected eth0 (X), nearest to 0000:61:00.0" in (
        finding.note
    )
    assert str(finding.culprit).startswith("rank 0 on node0: eth1 (eth1 (SYS, NUMA distance 21); ")


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
    assert str(several.culprit).startswith("rank 2 on node0: mlx5_3 (mlx5_2 (PIX), mlx5_3 (PHB);")


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
    finding = MEMORY(server, rank(memory_bytes=memory))
    assert (finding.verdict, finding.value, finding.expected) == (verdict, share, at_least(0.9))
    assert "at least 90% on NUMA node 0, near 0000:13:00.0 on NUMA node 0" in finding.note


def test_memory_of_a_recorded_bound_process(recorded: Recorded) -> None:
    root = recorded("numa2-e1000e-aligned")
    numa_maps = (root / "cmd/numa_maps-bound.txt").read_text()
    memory = bytes_by_node(parse_numa_maps(numa_maps))
    for node, share in ((1, 1.0), (0, 0.0)):
        facts = rank(accelerator=None, numa_node=node, memory_bytes=memory)
        finding = MEMORY(read(root), facts)
        assert (finding.value, finding.passed) == (share, node == 1)


def test_a_node_without_memory_uses_the_nearest_one_with_memory(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB")
    machine = read(tmp_path)
    facts = rank(5, "16-31", memory_bytes={0: GIB})
    assert MEMORY(machine, facts).verdict is PASS
    tree.write("sys/devices/system/node/node1/distance", "10")
    unknown = MEMORY(read(tmp_path), facts)
    assert unknown.verdict is INCONCLUSIVE
    assert "which NUMA node with memory is nearest" in unknown.note


def test_an_accelerator_whose_memory_is_a_separate_numa_node(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.numa({0: "0-15,32-47", 1: "16-31,48-63", 2: ""})
    tree.write("sys/devices/system/node/node2/distance", "40 80 10")
    facts = rank(cpus="0-15", accelerator=None, numa_node=2)
    machine = read(tmp_path)
    assert judge_cpus(machine, facts).verdict is PASS
    assert judge_cpus(machine, replace(facts, cpus=frozenset((16,)))).verdict is FAIL
    assert MEMORY(machine, replace(facts, memory_bytes={2: 1})).verdict is PASS


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
    elsewhere = replace(rank(5, "8"), node="node1")
    found = cores(server, *ranks, elsewhere)
    assert [f.value for f in found] == [2, 3, 1, 0, 2, 0]
    assert [f.verdict for f in found] == [FAIL, FAIL, FAIL, PASS, FAIL, PASS]
    assert "shares cores with rank 1 (CPUs 3,35), rank 4 (CPUs 0-3,32-35); give" in found[0].note
    assert "with rank 1" in found[2].note, "CPU 36 is the second hardware thread of core 4"
    assert "shares no core" in found[3].note
    assert "is alone on its node" in found[5].note


def test_a_core_used_by_one_thread_of_another_rank_is_shared(server: Machine) -> None:
    stray = rank(0, "0-3", threads=_threads(("python", "0-3"), ("loader", "8")))
    found = cores(server, stray, rank(1, "8-9"))
    assert [f.verdict for f in found] == [FAIL, FAIL]


def test_unknown_cores_are_inconclusive(server: Machine, tmp_path: Path) -> None:
    found = cores(server, rank(0, "0-3"), rank(1, None))
    assert [f.verdict for f in found] == [INCONCLUSIVE] * 2
    assert "the CPUs of rank 1 beside it are not known" in found[0].note
    tree = Tree(tmp_path)
    tree.write("sys/devices/system/cpu/online", "0-3")
    tree.numa({0: "0-3"})
    bare = read(tmp_path)
    found = cores(bare, rank(0, "0"), rank(1, "1"))
    assert [f.verdict for f in found] == [INCONCLUSIVE] * 2
    assert "it is not known which CPUs share a core" in found[0].note


def of_all(question: Question, *values: float | None) -> Measurement:
    """One measurement over ranks of these values."""
    bound = at_least(0.9) if question is Question.MEMORY else None
    words = {"found": "CPUs 1", "expected": "CPUs 0", "why": "why", "blamed": "CPU binding"}
    answers = [
        RankPlacement(rank=n, node="node0").answer(question, value, **words, bound=bound)
        for n, value in enumerate(values)
    ]
    return over_ranks(question, answers)


def test_a_misplaced_rank_fails_and_an_unknown_one_is_inconclusive() -> None:
    kept = of_all(Question.CPUS, 0, 0)
    assert (kept.verdict, kept.note) == (PASS, "2 ranks, each as expected")
    one = of_all(Question.CPUS, 0, 2, None)
    assert (one.verdict, one.value) == (FAIL, 1)
    assert one.culprit == "rank 1 on node0: CPU binding (CPUs 1; expected CPUs 0)"
    assert one.note == "rank 1 on node0: why"
    assert of_all(Question.CPUS, 0, None).verdict is INCONCLUSIVE
    assert str(of_all(Question.CPUS, *[1.0] * 7).culprit).endswith("; and 3 more ranks")


def test_memory_is_judged_by_the_lowest_rank_share() -> None:
    assert of_all(Question.MEMORY, 0.99, 0.93).value == 0.93
    low = of_all(Question.MEMORY, 0.99, 0.4)
    assert (low.verdict, low.value) == (FAIL, 0.4)
    assert of_all(Question.MEMORY, 0.99, None).verdict is INCONCLUSIVE


def test_nics_of_an_rdma_fabric_are_its_ports_even_if_usage_is_unknown(
    server: Machine,
) -> None:
    spec = profile_spec("rack")
    for kind, found in (("infiniband", ("mlx5_2:1", "mlx5_3:1")), ("roce", ())):
        changes = {"kind": kind, "interfaces": ("mlx5_2", "mlx5_3")}
        spec = spec.model_copy(update={"fabric": spec.fabric.model_copy(update=changes)})
        assert fabric_nics(server, (), spec) == found


def judged(machine: Machine, nics: str, cpus: str, memory: int) -> tuple[Measurement, Measurement]:
    """CPU and memory verdicts of a rank that may run on `cpus`, with all its memory on one node."""
    rank = beside_nic(machine, placed(cpus, None, memory_bytes={memory: GIB}), [nics], 0, 1)
    return judge_cpus(machine, rank), MEMORY(machine, rank)


@pytest.mark.parametrize(
    ("name", "nic", "cpus", "memory", "verdicts", "words"),
    [
        # eth0 is on node 1, eth1 on node 0
        ("numa2-e1000e-aligned", "eth0", "2-3", 1, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth0", "0-1", 0, "fail fail", "its NIC eth0 on NUMA node 1"),
        ("numa2-e1000e-aligned", "eth0", "2-3", 0, "pass fail", "numactl --membind=1"),
        ("numa2-e1000e-aligned", "eth0", "0-3", 1, "fail pass", "is not bound: it may run on all"),
        ("numa2-e1000e-aligned", "eth*", "0-1", 0, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth*", "2-3", 1, "pass pass", ""),
        ("numa2-e1000e-aligned", "eth*", "1-2", 1, "fail pass", "which span NUMA nodes 0-1"),
        ("numa2-both-nics-on-node1", "eth*", "0-1", 0, "fail fail", "on NUMA node 1"),
        ("numa2-both-nics-on-node1", "eth*", "2", 1, "pass pass", ""),
        ("numa2-virtio-aligned-rxe-up", "rxe1", "2-3", 1, "pass pass", ""),
        ("numa2-virtio-aligned-rxe-up", "rxe1", "0-1", 1, "fail pass", "its NIC rxe1 on NUMA"),
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
