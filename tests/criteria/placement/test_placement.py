"""Ranks on recorded machines and on a server with eight GPUs: kept, broken, and not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.placement.facts import (
    Finding,
    Machine,
    Question,
    RankFacts,
    ThreadFacts,
    placed,
    read_machine,
)
from pytest_mnode.criteria.placement.judge import Promise, judge
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.process import Process, parse_numa_maps
from pytest_mnode.measurement import Verdict
from tests.recorded import Recorded
from tests.trees import GPU, NIC, NVIDIA, Tree, gpu_address, gpu_server

PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
CPUS = Promise(cpus_near=True)
MEMORY = Promise(memory_near_fraction=0.9)
NIC_NEAREST = Promise(nic_nearest=True)
OWN_CORES = Promise(own_cores=True)
GIB = 1 << 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return read_machine(gpu_server(tmp_path_factory.mktemp("server")).root)


def rank(
    number: int = 0, cpus: str | None = "0-15,32-47", *, gpu: int | None = None, **more: object
) -> RankFacts:
    """A rank of node0 that is well placed, but for what is given."""
    allowed = parse_cpulist(cpus)
    facts = RankFacts(
        rank=number,
        node="node0",
        local_rank=number,
        accelerator=gpu_address(number if gpu is None else gpu),
        cpus=allowed,
        threads=(ThreadFacts(tid=100, name="python", cpus=allowed),),
        memory_bytes={0: GIB},
        nics=(f"mlx5_{number if gpu is None else gpu}",),
    )
    return replace(facts, **more)  # type: ignore[arg-type]


def only(machine: Machine, facts: RankFacts, promise: Promise) -> Finding:
    (finding,) = judge({"node0": machine}, [facts], promise)
    return finding


@pytest.mark.parametrize("gpu", range(8))
def test_ranks_bound_to_their_sockets_keep_all_promises(server: Machine, gpu: int) -> None:
    cores = f"{gpu * 4}-{gpu * 4 + 3},{gpu * 4 + 32}-{gpu * 4 + 35}"
    facts = rank(gpu, cores, memory_bytes={gpu // 4: GIB, 1 - gpu // 4: GIB // 20})
    neighbour = rank(8, "60" if gpu < 7 else "0", gpu=7)
    promise = Promise(cpus_near=True, memory_near_fraction=0.9, nic_nearest=True, own_cores=True)
    found = judge({"node0": server}, [facts, neighbour], promise)
    mine = [finding for finding in found if finding.rank == gpu]
    assert [finding.question for finding in mine] == list(Question)
    assert [finding.verdict for finding in mine] == [PASS] * 4, [f.why for f in mine]


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
    finding = only(server, rank(cpus=cpus), CPUS)
    assert (finding.verdict, finding.value) == (verdict, out)
    assert finding.why.startswith(f"rank 0 on node0: {words}")
    assert "expected CPUs 0-15,32-47, local to 0000:13:00.0 on NUMA node 0" in finding.why
    assert ("numactl --cpunodebind=0 --membind=0" in finding.why) == (verdict is FAIL)


def _threads(*pairs: tuple[str, str | None]) -> tuple[ThreadFacts, ...]:
    return tuple(
        ThreadFacts(tid=100 + i, name=name, cpus=parse_cpulist(cpus))
        for i, (name, cpus) in enumerate(pairs)
    )


def test_a_thread_that_strays_is_named(server: Machine) -> None:
    threads = _threads(("python", "0-3"), ("pt_autograd_0", "0-63"), ("loader", "16"))
    finding = only(server, rank(cpus="0-3", threads=threads), CPUS)
    assert (finding.verdict, finding.value) == (FAIL, 32)
    assert (
        "is bound to CPUs 0-3 on NUMA node 0, but thread pt_autograd_0 (101) may run on CPUs 0-63;"
        " thread loader (102) may run on CPUs 16; expected"
    ) in finding.why


def test_hundreds_of_stray_threads_make_a_short_sentence(server: Machine) -> None:
    threads = _threads(*[("worker", "16")] * 300, *[(f"t{i}", "17") for i in range(9)])
    finding = only(server, rank(cpus="0-3", threads=threads), CPUS)
    assert "thread worker (100, 101, 102, …) may run on CPUs 16" in finding.why
    assert "and 6 more" in finding.why
    assert len(finding.why) < 600


def test_threads_that_cannot_be_read_leave_it_open(server: Machine) -> None:
    for threads in (None, _threads(("python", "0-3"), ("gone", None))):
        finding = only(server, rank(cpus="0-3", threads=threads), CPUS)
        assert finding.verdict is INCONCLUSIVE
        assert "affinity of its threads could not be read" in finding.why
    finding = only(server, rank(cpus="0-63", threads=None), CPUS)
    assert finding.verdict is FAIL, "what the process may do is enough"


def test_an_accelerator_that_is_not_known_leaves_it_open(server: Machine) -> None:
    unknown = {"accelerator": "torch knows no PCI address of cpu:0"}
    facts = rank(accelerator=None, unknown=unknown)
    for promise in (CPUS, MEMORY, NIC_NEAREST):
        finding = only(server, facts, promise)
        assert (finding.verdict, finding.value) == (INCONCLUSIVE, None)
        assert "torch knows no PCI address of cpu:0" in finding.why
    finding = only(server, rank(accelerator="0000:99:00.0"), CPUS)
    assert "0000:99:00.0 is not among the PCI devices of node0" in finding.why


def test_an_accelerator_without_a_pci_address_may_name_its_node(server: Machine) -> None:
    facts = rank(cpus="16-31", accelerator=None, numa_node=1, nics=("mlx5_5",))
    assert only(server, facts, CPUS).verdict is PASS
    assert only(server, facts, NIC_NEAREST).verdict is PASS
    assert only(server, replace(facts, nics=("mlx5_0",)), NIC_NEAREST).verdict is FAIL
    assert only(server, replace(facts, numa_node=0), CPUS).verdict is FAIL
    gone = only(server, replace(facts, numa_node=7), CPUS)
    assert gone.verdict is INCONCLUSIVE
    assert "NUMA node 7, which node0 does not show" in gone.why


@pytest.mark.parametrize("name", ["numa1-plain", "numa2-nics-no-affinity"])
def test_minus_one_is_never_a_pass(recorded: Recorded, name: str) -> None:
    machine = read_machine(recorded(name))
    facts = rank(cpus="0-3", accelerator="0000:00:01.0", nics=("eth0",))
    for promise in (CPUS, MEMORY):
        finding = only(machine, facts, promise)
        assert finding.verdict is INCONCLUSIVE
        assert "numa_node is −1" in finding.why


def test_ranks_on_a_recorded_machine(recorded: Recorded) -> None:
    machine = read_machine(recorded("numa2-e1000e-aligned"))
    # Nothing there computes, so that the NIC of node 1 plays the accelerator.
    facts = rank(cpus="2-3", accelerator="0000:61:00.0", memory_bytes={1: GIB}, nics=("eth0",))
    machine = replace(
        machine,
        interfaces=tuple(
            replace(i, carrier=True, operstate="up", admin_up=True)
            for i in machine.interfaces or ()
        ),
    )
    assert only(machine, facts, CPUS).verdict is PASS
    assert only(machine, facts, MEMORY).verdict is PASS
    assert only(machine, facts, NIC_NEAREST).verdict is PASS
    swapped = replace(facts, cpus=frozenset((0, 1)), memory_bytes={0: GIB}, nics=("eth1",))
    assert only(machine, swapped, CPUS).verdict is FAIL
    assert only(machine, swapped, MEMORY).verdict is FAIL
    finding = only(machine, swapped, NIC_NEAREST)
    assert finding.verdict is FAIL
    assert "uses eth1 (SYS, NUMA distance 21); expected eth0 (X), nearest to 0000:61:00.0" in (
        finding.why
    )
    assert finding.culprit == "rank 0 on node0: eth1"


@pytest.mark.parametrize(
    ("name", "used", "verdict"),
    [
        ("numa2-virtio-aligned-rxe-up", "rxe0", PASS),
        ("numa2-virtio-aligned-rxe-up", "rxe0:1", PASS),
        ("numa2-virtio-aligned-rxe-up", "rxe1", FAIL),
        ("numa2-virtio-aligned-rxe-up", "eth1", PASS),
        ("numa2-virtio-aligned-rxe-up", "eth0", FAIL),
        ("numa2-virtio-aligned-rxe-up", "mlx5_0", INCONCLUSIVE),
        # The nearest one is down, so that the other is the nearest there is.
        ("numa2-e1000e-rxe-port-down", "rxe0", PASS),
    ],
)
def test_nics_of_recorded_machines(
    recorded: Recorded, name: str, used: str, verdict: Verdict
) -> None:
    machine = read_machine(recorded(name))
    facts = rank(cpus="0-1", accelerator=None, numa_node=0, nics=(used,))
    if name.endswith("down"):
        facts = replace(facts, numa_node=1)
    finding = only(machine, facts, NIC_NEAREST)
    assert finding.verdict is verdict, finding.why


def test_both_nics_on_the_far_node_are_equally_near(recorded: Recorded) -> None:
    machine = read_machine(recorded("numa2-both-nics-on-node1"))
    names = Promise(nic_nearest=True, nics=("eth0", "eth1"))
    for used in ("eth0", "eth1"):
        facts = rank(cpus="0-1", accelerator=None, numa_node=0, nics=(used,))
        assert only(machine, facts, names).verdict is PASS


def test_nics_by_pci_path_then_by_node(server: Machine) -> None:
    for used, verdict, words in (
        ("mlx5_2", PASS, "mlx5_2 (PIX)"),
        ("mlx5_3", FAIL, "mlx5_3 (PHB); expected mlx5_2 (PIX), nearest to 0000:33:00.0"),
        ("mlx5_0", FAIL, "mlx5_0 (NODE)"),
        ("mlx5_7", FAIL, "mlx5_7 (SYS, NUMA distance 32)"),
        ("ib2", PASS, "ib2 (PIX)"),
        ("eno1", FAIL, "eno1 (NODE); expected ib2 (PIX)"),
    ):
        finding = only(server, rank(2, nics=(used,)), NIC_NEAREST)
        assert finding.verdict is verdict, finding.why
        assert f"uses {words}" in finding.why
    several = only(server, rank(2, nics=("mlx5_2", "mlx5_3")), NIC_NEAREST)
    assert (several.verdict, several.value) == (FAIL, 1)
    assert several.culprit == "rank 2 on node0: mlx5_3"


def test_the_nearest_is_looked_for_among_those_of_the_fabric(server: Machine) -> None:
    promise = Promise(nic_nearest=True, nics=("mlx5_3", "mlx5_7"))
    assert only(server, rank(2, nics=("mlx5_3",)), promise).verdict is PASS
    assert only(server, rank(2, nics=("mlx5_7",)), promise).verdict is FAIL
    missing = Promise(nic_nearest=True, nics=("mlx5_3", "mlx5_9"))
    finding = only(server, rank(2, nics=("mlx5_3",)), missing)
    assert finding.verdict is INCONCLUSIVE
    assert "mlx5_9 (no such device, or none below it)" in finding.why


def test_a_nic_that_is_not_known_is_no_pass(server: Machine) -> None:
    for nics in (None, ()):
        assert only(server, rank(nics=nics), NIC_NEAREST).verdict is INCONCLUSIVE
    nowhere = only(server, rank(), Promise(nic_nearest=True, nics=()))
    assert nowhere.verdict is INCONCLUSIVE
    assert "node0 shows none of the NICs among which to look" in nowhere.why
    blind = replace(server, interfaces=None, rdma=None)
    assert only(blind, rank(), NIC_NEAREST).verdict is INCONCLUSIVE


def test_a_nic_of_no_known_node_matters_only_where_it_could_be_nearer(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.numa({0: "0-3", 1: "4-7"})
    gpu = tree.pci("pci0000:10/0000:10:01.0", GPU, NVIDIA, 0, "0-3")
    for name, host, numa in (("near", 0x10, 0), ("same", 0x20, 0), ("far", 0x30, 1)):
        on = f"pci0000:{host:02x}/0000:{host:02x}:02.0"
        tree.pci(on, NIC, "0x15b3", numa)
        tree.interface(name, on)
    tree.pci("pci0000:40/0000:40:02.0", NIC, "0x15b3")
    tree.interface("lost", "pci0000:40/0000:40:02.0")
    machine = read_machine(tmp_path)

    def verdict(used: str, *among: str) -> Verdict:
        facts = rank(cpus="0-3", accelerator=gpu, nics=(used,))
        return only(machine, facts, Promise(nic_nearest=True, nics=among)).verdict

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
    machine = read_machine(tmp_path)
    for name in ("bond0", "bond0.7"):
        finding = only(machine, rank(nics=(name,)), NIC_NEAREST)
        assert finding.verdict is FAIL
        assert f"uses {name} (SYS, NUMA distance 32); expected ib0 (PIX)" in finding.why


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
    finding = only(server, rank(memory_bytes=memory), MEMORY)
    assert (finding.verdict, finding.value, finding.limit) == (verdict, share, 0.9)
    assert "at least 90% on NUMA node 0, near 0000:13:00.0 on NUMA node 0" in finding.expected


def test_memory_of_a_recorded_bound_process(recorded: Recorded) -> None:
    root = recorded("numa2-e1000e-aligned")
    told = (root / "cmd/numa_maps-bound.txt").read_text()
    process = Process(
        pid=1,
        name="cat",
        cpus_allowed=parse_cpulist("2-3"),
        mems_allowed=parse_cpulist("0-1"),
        threads=None,
        memory=parse_numa_maps(told),
    )
    threads, memory = placed(process)
    assert threads is None
    facts = rank(cpus="2-3", accelerator=None, numa_node=1, memory_bytes=memory)
    machine = read_machine(root)
    finding = only(machine, facts, MEMORY)
    assert (finding.verdict, finding.value) == (PASS, 1.0)
    assert only(machine, replace(facts, numa_node=0), MEMORY).verdict is FAIL


def test_a_node_without_memory_has_the_nearest_that_has_some(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB")
    machine = read_machine(tmp_path)
    facts = rank(5, "16-31", memory_bytes={0: GIB})
    assert only(machine, facts, MEMORY).verdict is PASS
    tree.write("sys/devices/system/node/node1/distance", "10")
    unknown = only(read_machine(tmp_path), facts, MEMORY)
    assert unknown.verdict is INCONCLUSIVE
    assert "which NUMA node with memory is nearest" in unknown.why


def test_an_accelerator_whose_memory_is_a_node_of_its_own(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.numa({0: "0-15,32-47", 1: "16-31,48-63", 2: ""})
    tree.write("sys/devices/system/node/node2/distance", "40 80 10")
    facts = rank(cpus="0-15", accelerator=None, numa_node=2)
    machine = read_machine(tmp_path)
    assert only(machine, facts, CPUS).verdict is PASS
    assert only(machine, replace(facts, cpus=frozenset((16,))), CPUS).verdict is FAIL
    assert only(machine, replace(facts, memory_bytes={2: 1}), MEMORY).verdict is PASS


def test_cpus_that_are_offline_are_not_expected(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.write("sys/devices/system/cpu/online", "0-15,18")
    machine = read_machine(tmp_path)
    assert "expected CPUs 18, local to" in only(machine, rank(5, "18"), CPUS).why
    tree.write("sys/devices/system/cpu/online", "0-15")
    gone = only(read_machine(tmp_path), rank(5, "0"), CPUS)
    assert gone.verdict is INCONCLUSIVE
    assert "the CPUs of NUMA node 1 are not known" in gone.why


def test_isolated_cpus(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path)
    tree.write("sys/devices/system/cpu/isolated", "8-15")
    machine = read_machine(tmp_path)
    unbound = only(machine, rank(cpus="0-7,16-63"), CPUS)
    assert "is not bound: it may run on all CPUs 0-7,16-63" in unbound.why
    on_isolated = only(machine, rank(cpus="8-11"), CPUS)
    assert on_isolated.verdict is PASS
    assert "CPUs 8-11 are isolated: the kernel does not spread threads" in on_isolated.why


def test_one_node_is_kept_by_whatever_binding_and_said_so(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.numa({0: "0-7"})
    tree.cpus([[(c,) for c in range(8)]])
    gpu = tree.pci("pci0000:10/0000:10:01.0", GPU, NVIDIA, 0, "0-7")
    finding = only(read_machine(tmp_path), rank(cpus="0-7", accelerator=gpu), CPUS)
    assert finding.verdict is PASS
    assert "one NUMA node, so there is nothing to place" in finding.why


def test_ranks_that_share_cores(server: Machine) -> None:
    ranks = [rank(0, "0-3"), rank(1, "3-5"), rank(2, "36"), rank(3, "8"), rank(4, "32-35")]
    elsewhere = replace(rank(5, "8"), node="node1")
    machines = {"node0": server, "node1": server}
    found = judge(machines, [*ranks, elsewhere], OWN_CORES)
    assert [(f.verdict, f.value) for f in found] == [
        (FAIL, 2),
        (FAIL, 3),
        (FAIL, 1),
        (PASS, 0),
        (FAIL, 2),
        (PASS, 0),
    ]
    assert "shares cores with rank 1 (CPUs 3,35), rank 4 (CPUs 0-3,32-35); give" in found[0].why
    assert "with rank 1" in found[2].why, "36 is the other thread of core 4"
    assert "shares no core" in found[3].why
    assert "is alone on its node" in found[5].why


def test_a_thread_that_strays_shares_too(server: Machine) -> None:
    stray = rank(0, "0-3", threads=_threads(("python", "0-3"), ("loader", "8")))
    found = judge({"node0": server}, [stray, rank(1, "8-9")], OWN_CORES)
    assert [f.verdict for f in found] == [FAIL, FAIL]


def test_cores_that_are_not_known(server: Machine, tmp_path: Path) -> None:
    found = judge({"node0": server}, [rank(0, "0-3"), rank(1, None)], OWN_CORES)
    assert [f.verdict for f in found] == [INCONCLUSIVE, INCONCLUSIVE]
    assert "the CPUs of rank 1 beside it are not known" in found[0].why
    tree = Tree(tmp_path)
    tree.write("sys/devices/system/cpu/online", "0-3")
    tree.numa({0: "0-3"})
    bare = read_machine(tmp_path)
    found = judge({"node0": bare}, [rank(0, "0"), rank(1, "1")], OWN_CORES)
    assert [f.verdict for f in found] == [INCONCLUSIVE, INCONCLUSIVE]
    assert "which CPUs share a core is not known" in found[0].why


def test_what_is_not_promised_is_not_asked(server: Machine) -> None:
    assert judge({"node0": server}, [rank()], Promise()) == ()
