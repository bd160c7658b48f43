"""Wrong placement on some nodes: each fault is found on its node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mnode.machine.numa import read_numa
from tests.acceptance.certified import certify, spec_with
from tests.inner import need_rack
from tests.red import turns_red

CPUS = "ranks that may run off their accelerator's CPUs"
NIC = "ranks that send over a NIC that is not the nearest"
MEMORY = "memory near the accelerator, of the rank with least"
CORES = "ranks that share a core with another"

MEMORIES_AND_A_STRAY = """
    import os, threading
    from dataclasses import replace
    import pytest

    @pytest.fixture(autouse=True)
    def memory_on_both_sockets(world, monkeypatch):
        # As if this machine had it: pages of ranks on the second socket are then far from it.
        from pytest_mnode.machine.model import Machine
        read = Machine.read

        def with_memory(root, parts):
            machine = read(root, parts)
            nodes = tuple(replace(node, memory_bytes=1 << 30) for node in machine.numa.nodes)
            return replace(machine, numa=replace(machine.numa, nodes=nodes))

        monkeypatch.setattr(Machine, "read", with_memory)

    @pytest.fixture(autouse=True)
    def memory_interleaved(request, monkeypatch):
        # As if firmware put each page of either socket's memory on both.
        if "faster" not in request.node.name:
            return
        import contextlib
        from pytest_mnode.measuring import copies
        real = copies.read_numa()
        nodes = tuple(
            replace(
                real.nodes[0], number=number, distances={number: 10, 1 - number: 21},
                memory_bytes=1 << 33, free_bytes=1 << 33,
            )
            for number in (0, 1)
        )
        monkeypatch.setattr(copies, "read_numa", lambda: replace(real, nodes=nodes))
        monkeypatch.setattr(copies, "read_cpus", copies.Cpus)  # caches would need large copies
        monkeypatch.setattr(copies, "read_process", lambda: None)
        monkeypatch.setattr(copies.mempolicy, "only", lambda number: contextlib.nullcontext())

    @pytest.fixture(autouse=True)
    def a_thread_elsewhere(world):
        if world.node != "node3":
            yield
            return
        end = threading.Event()
        up = threading.Event()

        def stray():
            os.sched_setaffinity(0, range(os.cpu_count()))
            up.set()
            end.wait()

        thread = threading.Thread(target=stray, name="stray")
        thread.start()
        up.wait()
        yield
        end.set()
        thread.join()
"""


@pytest.fixture(autouse=True)
def _sockets() -> None:
    need_rack()
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU, so nodes of the rack show no sockets")


@turns_red(
    "numa",
    *("test_ranks_run_beside_their_accelerator", "test_memory_is_beside_the_accelerator"),
    *("test_ranks_send_over_the_nearest_nic", "test_near_memory_is_faster_than_far"),
)
def test_wrong_bindings_threads_and_nics_are_distinguished(tmp_path: Path) -> None:
    other_side = spec_with(
        tmp_path,
        ("fabric_socket: 0", "fabric_socket: 1"),
        ("management_socket: 1", "management_socket: 0"),
        ("copy_near_over_far: 1.05", "copy_near_over_far: 50\n    copy_size: 8 MiB"),
    )
    faults = "--mnode-fault=numa_swapped:node2,numa_unbound:node1"
    done = certify(tmp_path, other_side, faults, fault=MEMORIES_AND_A_STRAY, files=["test_numa.py"])
    assert done.certificate["verdict"] == "not certified"
    measured = done.measurements("numa")
    cpus = measured[CPUS]
    assert (cpus["value"], cpus["verdict"]) == (3, "fail"), done.run.output
    unbound, swapped, stray = cpus["culprit"].removeprefix("rank ").split("; rank ")
    for culprit, rank in ((unbound, 1), (swapped, 2), (stray, 3)):
        assert culprit.startswith(f"{rank} on node{rank}: CPU binding (CPUs ")
    assert unbound.endswith(" on NUMA node 1)")
    assert swapped.endswith(" on NUMA node 0)")
    # Found and expected values as text: each fault differs.
    assert "rank 1 on node1: is not bound" in cpus["note"]
    assert "rank 2 on node2: is bound to CPUs" in cpus["note"]
    assert "but thread " in cpus["note"]
    assert "node0" not in cpus["note"]
    nic = measured[NIC]
    assert (nic["value"], nic["verdict"]) == (4, "fail")
    assert "rank 0 on node0: fab0 (fab0 (SYS, NUMA distance 21); expected " in nic["culprit"]
    memory = measured[MEMORY]
    if sum(bool(node.memory_bytes) for node in read_numa().nodes) == 1:
        assert (memory["value"], memory["verdict"]) == (0, "fail")
        assert "rank 1 on node1: memory binding (" in memory["culprit"]
        assert "rank 3 on node3: memory binding (" in memory["culprit"]
        assert "node0" not in memory["culprit"]  # its pages are on its own socket
    copies = measured["copy near over far, of the rank with least"]
    assert copies["verdict"] == "fail", copies
    assert measured[CORES]["verdict"] == "pass"  # one rank per node shares with no other


@turns_red("numa", "test_ranks_have_cores_of_their_own")
def test_ranks_on_one_core_are_named(tmp_path: Path) -> None:
    ranks = ("--mnode-nodes=2", "--mnode-procs-per-node=2")
    done = certify(tmp_path, *ranks, "--mnode-fault=numa_crowded:node1", files=["test_numa.py"])
    measured = done.measurements("numa")
    cores = measured[CORES]
    assert (cores["value"], cores["verdict"]) == (2, "fail"), done.run.output
    assert "rank 2 on node1: " in cores["culprit"]
    assert "rank 3 on node1: " in cores["culprit"]
    assert "rank 2 on node1: may run on CPUs " in cores["note"]
    assert " with rank 3 " in cores["note"]
    assert "node0" not in cores["culprit"]
    # One NIC for two sockets is as near as possible to both ranks.
    assert measured[NIC]["verdict"] == "pass"
    verdicts = {case["verdict"] for case in done.criterion("numa")["cases"]}
    assert verdicts <= {"pass", "fail", "not promised"}
