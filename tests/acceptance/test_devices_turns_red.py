"""A slow rank is named with the reason, and so is one that computes wrongly."""

from __future__ import annotations

import re
from pathlib import Path

from tests.acceptance.certified import certify, spec_of
from tests.faults.talk import need_quotas
from tests.red import turns_red

MULTIPLIES = "test_every_rank_multiplies_as_fast_as_the_others"
HOST = "test_memory_of_every_numa_node_is_as_fast_as_the_others"
INSIDE = "test_every_node_is_as_fast_inside_as_the_others"
COPIES = "test_every_rank_copies_as_fast_as_the_others[memory_copy]"
BUSY_WITH_WRONG_PRODUCTS = f"""
    import pytest
    from pytest_mnode import faults
    from pytest_mnode.options import RUN

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item):
        # When ranks are up: a neighbour would take the time of their imports too.
        if item.name == "{MULTIPLIES}" and (run := item.config.stash.get(RUN, None)):
            faults.inject(run.pool.launcher, "busy_neighbour:node1:3")

    @pytest.fixture(autouse=True)
    def one_wrong_value(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        import torch
        right = torch.mm
        def mm(a, b, **options):
            product = right(a, b, **options)
            if world.rank == 3:
                product[-1, -1] += 1
            return product
        monkeypatch.setattr(torch, "mm", mm)
"""

SLOW_INSIDE = """
    import time
    import pytest

    @pytest.fixture(autouse=True)
    def slow_in_groups_of_a_node(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return
        world = request.getfixturevalue("world")
        if world.node != "node1":
            return
        import torch.distributed as dist
        for name in ("all_reduce", "batch_isend_irecv"):
            def call(*args, right=getattr(dist, name), **options):
                time.sleep(0.1)
                return right(*args, **options)
            monkeypatch.setattr(dist, name, call)
"""


@turns_red("devices", MULTIPLIES, HOST, "test_every_rank_copies_as_fast_as_the_others")
def test_a_busy_neighbour_and_a_wrong_product_are_named(tmp_path: Path) -> None:
    done = certify(
        tmp_path,
        fault=BUSY_WITH_WRONG_PRODUCTS,
        files=[f"test_devices.py::{name}" for name in (MULTIPLIES, HOST, COPIES)],
    )
    assert done.criterion("devices")["verdict"] == "fail", done.run.output
    found = done.measurements("devices")
    for name, unit in (("matmul float32", "GFLOP/s"), ("memory copy", "GB/s")):
        slowest = found[f"{name}, slowest rank"]
        assert slowest["verdict"] == "fail", done.run.output
        assert slowest["value"] < 0.7 * found[f"{name}, median of ranks"]["value"]
        assert slowest["culprit"].startswith("rank 1 on node1 (")
        assert f"{unit}, median " in slowest["culprit"]
        assert "by other processes of node1 on its CPUs" in slowest["culprit"]
        assert "rank" not in slowest["culprit"][4:]
    host = found["host memory, slowest NUMA node"]
    assert host["verdict"] == "fail", done.run.output
    assert host["culprit"].startswith("NUMA node 0 of node1 (")
    assert "by other processes of node1 on its CPUs" in host["culprit"]
    assert found["matmul float32, wrong rows"]["verdict"] == "fail"
    assert found["matmul float32, wrong rows"]["culprit"] == "rank 3 on node3 (1)"


@turns_red("devices", INSIDE)
def test_a_node_with_slow_links_inside_is_named(tmp_path: Path) -> None:
    inside = {"size": "256 KiB", "at_least_fraction": 0.5}
    page = spec_of(tmp_path, criteria={"devices": {"inside_node": inside}})
    args = (page, "--mnode-procs-per-node=2")
    done = certify(tmp_path, *args, fault=SLOW_INSIDE, files=[f"test_devices.py::{INSIDE}"])
    failed = done.failed("devices")
    slowest = failed["all-reduce inside the node, slowest node"]
    assert slowest.startswith("node1 ("), done.run.output
    assert "node" not in slowest[5:]
    exchanges = failed["exchanges inside the node, slowest rank"]
    assert {"rank 2 on node1", "rank 3 on node1"} == set(re.findall(r"rank \d on \w+", exchanges))


def test_a_rank_with_a_quota_is_named(tmp_path: Path) -> None:
    need_quotas()
    files = [f"test_devices.py::{name}" for name in (MULTIPLIES, COPIES)]
    done = certify(tmp_path, "--mnode-fault=cpu_quota:node2:30", files=files)
    found = done.measurements("devices")
    for name in ("matmul float32", "memory copy"):
        slowest = found[f"{name}, slowest rank"]
        assert slowest["verdict"] == "fail", done.run.output
        assert slowest["culprit"].startswith("rank 2 on node2 (")
        assert "by its CPU quota of 0.3 CPUs (/sys/fs/cgroup/" in slowest["culprit"]
        assert "rank" not in slowest["culprit"][4:]
    assert found["matmul float32, wrong rows"]["verdict"] == "pass"
    assert done.certificate["verdict"] == "not certified"
