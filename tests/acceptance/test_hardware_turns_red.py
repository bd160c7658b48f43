"""Preflight on nodes that show the hardware of servers, with a fault in each part of it."""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_mnode.machine.cpus import format_cpulist
from tests.acceptance import hardware
from tests.acceptance.certified import certify, promised, spec_edited
from tests.inner import need, need_rack, write_files
from tests.red import turns_red

PLUGIN = ("-p", "tests.acceptance.hardware_faults")
NVML = """
    from types import SimpleNamespace
    from socket import gethostname

    def nvmlInit(): pass
    def nvmlShutdown(): pass
    def nvmlDeviceGetCount(): return 1

    def nvmlDeviceGetHandleByIndex(index):
        if gethostname() == "node1":
            raise RuntimeError("GPU is lost")
        return index

    def nvmlDeviceGetPciInfo(handle):
        return SimpleNamespace(busId="00000000:11:00.0")

    def nvmlDeviceGetName(handle):
        return "NVIDIA H100 80GB HBM3"
"""
OTHER_RANK = """
    from pytest_mnode.criteria.preflight import environment

    read = environment.read_environment

    def read_environment(orders, *, world):
        import os
        if world.node == "node1":
            os.environ["LOCAL_WORLD_SIZE"] = "8"
        return read(orders, world=world)

    environment.read_environment = read_environment
"""
NCCL_TEST = """\
    #!/bin/sh
    echo "# Collective test starting: $1"
    echo "# nThread 1 nGpus 1 minBytes $2 maxBytes $3 step: 2(factor) warmup iters: 5 iters: 20"
    for rank in $(seq 0 $(($4 - 1))); do
      echo "#  Rank  $rank Group  0 Pid 9$rank on node$rank device  0 [0x1b] NVIDIA H100"
    done
    echo "#       size  count  type redop root time algbw busbw #wrong time algbw busbw #wrong"
    echo " $3 1 float sum -1 4000.1 0.004 0.004 2 4000.2 0.004 0.004 2"
    echo "# Out of bounds values : 2 FAILED"
    echo "# Avg bus bandwidth    : 0.004"
"""
BOOTED = "6,0,0,-;Linux version 6.1"
XID = "3,9,5000000,-;NVRM: Xid (PCI:0000:11:00): 79, pid=1, GPU has fallen off the bus."


@contextlib.contextmanager
def _rising(counter: Path) -> Iterator[None]:
    """The counter rises by one every 50 ms."""
    over = threading.Event()

    def rise() -> None:
        with counter.open("r+b", buffering=0) as file:
            value = 0
            while not over.wait(0.05):  # one write, so that no reader finds an empty file
                os.pwrite(file.fileno(), b"%08d\n" % (value := value + 1), 0)

    thread = threading.Thread(target=rise)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _spec(directory: Path, accelerators: int, **criteria: Any) -> str:
    def edit(page: dict[str, Any]) -> None:
        page["accelerators"] = {"per_node": accelerators}
        page["fabric"]["kind"] = "roce"
        page["criteria"] = criteria

    return spec_edited(directory, edit)


@turns_red(
    "preflight",
    *("test_interfaces_have_their_mtu", "test_accelerators_are_as_promised"),
    *("test_kernel_log_has_no_failures", "test_pcie_links_are_full", "test_rdma_ports_are_active"),
    *("test_rdma_devices_can_be_opened", "test_rdma_errors_stand_still", "test_gpudirect_is_there"),
    "test_cpus_are_beside_accelerators",
)
def test_each_fault_of_hardware_is_named(tmp_path: Path) -> None:
    need_rack()
    need(None if Path("/dev/kmsg").exists() else "this machine has no /dev/kmsg to cover")
    write_files(tmp_path, pynvml=NVML)
    allowed = format_cpulist(os.sched_getaffinity(0))
    roots = [tmp_path / f"node{number}" for number in range(4)]
    trees = [hardware.server(root, "8190-8191" if root == roots[3] else allowed) for root in roots]
    trees[2].write(hardware.WIDTH, 8)
    trees[2].write(f"{hardware.PORT}/state", "1: DOWN")
    for root in roots:
        (root / "kmsg").write_text(XID if root == roots[2] else BOOTED)
    faults = [f"machine_shown:{root.name}:{root},logged:{root.name}:{root}/kmsg" for root in roots]
    promises = {
        "mtu": {"networks": ["management"]},
        **{"accelerators": {}, "kernel_log": {}, "pcie": "full", "rdma": {"errors_at_most": 0}},
        **{"cpus": "near", "gpudirect": "either"},
    }
    with _rising(roots[3] / hardware.COUNTER):
        done = certify(
            tmp_path,
            _spec(tmp_path, 1, preflight=promises),
            *PLUGIN,
            f"--mnode-fault={','.join(faults)},small_mtu:node1:mgmt0:1400",
            files=["test_preflight.py"],
            cold=False,
        )
    unopened = {f"node{number} mlx5_0 (uverbs0 no such file or directory)" for number in (0, 1, 3)}
    rise = r"node3 mlx5_0:1 symbol_error \+\d+"
    culprits = done.culprits("preflight")
    assert {re.sub(rise, "a rise", culprit) for culprit in culprits} == unopened | {
        "node1 mgmt0 (MTU 1400)",
        "node1 accelerator 0",
        "node2 0000:11:00 (accelerator 0): reboot the node",
        "node2 mlx5_0 x8 of 16",
        "node2 mlx5_0:1 DOWN",
        "a rise",
        *(f"node{number}: no NVIDIA driver" for number in range(4)),
        "node3 cpuset: accelerator 0 (CPUs 8190-8191, local to 0000:11:00.0 on NUMA node 0)",
    }, done.run.output


@turns_red(
    "preflight", "test_ranks_find_their_environment", "test_ranks_name_rdma_devices_that_are_there"
)
def test_wrong_variables_of_ranks_are_named(tmp_path: Path) -> None:
    done = certify(
        tmp_path,
        _spec(tmp_path, 0, preflight={"environment": {"allowed": ["NCCL_IB_HCA"]}}),
        *("--mnode-env=NCCL_IB_HCA=mlx5_0", "-k", "environment or rdma_devices_that"),
        "--mnode-nodes=2",
        fault=OTHER_RANK,
        files=["test_preflight.py"],
        cold=False,
    )
    assert done.culprits("preflight") == {
        "node1: rank 1: LOCAL_WORLD_SIZE=8, expected 1",
        *(f"node{number}: NCCL_IB_HCA names mlx5_0" for number in range(2)),
    }, done.run.output


@turns_red("fabric", "test_nccl_tests_reach_the_line_rate")
def test_nccl_tests_below_the_line_rate_fail(tmp_path: Path) -> None:
    program = tmp_path / "nccl_test"
    program.write_text(textwrap.dedent(NCCL_TEST))
    program.chmod(0o755)
    tests = {"command": f"{program} {{program}} {{from}} {{to}} {{ranks}}"}
    spec = _spec(tmp_path, 1, fabric={**promised("fabric"), "nccl_tests": tests})
    done = certify(tmp_path, spec, "-k", "nccl_tests", files=["test_fabric.py"], cold=False)
    found, fell_short = done.measurements("fabric"), done.failed("fabric")
    assert len([name for name in fell_short if name.endswith("busbw")]) == 6, done.run.output
    assert {found[name]["value"] for name in fell_short if name.endswith("#wrong")} == {
        12
    }  # of three runs
