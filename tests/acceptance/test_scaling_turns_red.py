"""Scaling on a rack that loses time in each possible way; the cause is named each time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.certified import Certified, certify, promised, spec_of
from tests.inner import write_files
from tests.red import turns_red

NOT_OVERLAPPED = """
    '''In ranks, every all-reduce is waited for where it is begun, and a clock of node1 is slow.'''
    import importlib.machinery
    import socket
    import sys
    import time

    NAME = "torch.distributed.distributed_c10d"


    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name != NAME:
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                begin, monotonic = module.all_reduce, time.monotonic

                def all_reduce(tensor, op=module.ReduceOp.SUM, group=None, async_op=False):
                    if socket.gethostname() == "node1" and time.monotonic is monotonic:
                        began = monotonic()
                        time.monotonic = lambda: began + 0.95 * (monotonic() - began)
                    work = begin(tensor, op, group, async_op)
                    if async_op:
                        work.wait()
                    return work

                module.all_reduce = all_reduce

            spec.loader.exec_module = exec_module
            return spec


    sys.meta_path.insert(0, Finder())
"""


def _certified(directory: Path, *args: str, nodes: int = 2, **changes: Any) -> Certified:
    """A short job, with the rack's promise except for these keys."""
    short = {"compute": "300 ms", "rounds": 2, "most_rounds": 12, "steps": 3}
    short["within"] = "400 s"  # only for hangs: on busy cores the whole job waits for them
    short["at_most_uncertainty"] = 0.4  # busy cores make all steps uneven, and the fault shows
    spec = spec_of(directory, criteria={"scaling": promised("scaling") | short | changes})
    return certify(directory, spec, f"--mnode-nodes={nodes}", *args, files=["test_scaling.py"])


def _culprit(done: Certified, nodes: int = 2) -> str:
    """Why the job is not efficient."""
    failed = done.failed("scaling")
    assert f"efficiency, {nodes} nodes" in failed, done.run.output
    return failed[f"efficiency, {nodes} nodes"]


@turns_red("scaling", "test_throughput_grows_with_the_nodes")
def test_a_slow_link_is_located(tmp_path: Path) -> None:
    done = _certified(tmp_path, "--mnode-fault=slow_link:node2", nodes=3)
    culprit = _culprit(done, nodes=3)
    assert culprit.startswith("collectives exposed "), culprit
    assert "% of its model" in culprit
    assert "node2 fab0" in culprit
    network = done.measurements("scaling")["off-fabric traffic during the steps"]
    assert network["verdict"] == "pass"


def test_a_straggler_is_named(tmp_path: Path) -> None:
    done = _certified(tmp_path, "--mnode-fault=slow_device:node1:1.5")
    # 1.5 times; less if other programs slow the other ranks as well.
    culprit = _culprit(done)
    assert re.match(r"node1 computes 1\.[3-6]\d?× slower", culprit), culprit
    # A slow rank never waits; the other one does, 75 ms on average if it never waits for a core.
    waits = done.measurements("scaling")["waiting for the slowest, 2 nodes"]
    assert 0 < waits["value"] < 150


def test_a_loader_that_stalls_is_named(tmp_path: Path) -> None:
    # It takes 240 ms more of a step of 300 ms: far more than other programs on the cores blur.
    done = _certified(tmp_path, "--mnode-fault=slow_input:node1:120")
    assert re.match("node1 waits .* per step for input", _culprit(done)), _culprit(done)


@turns_red("scaling", "test_every_second_is_attributed")
def test_collectives_that_are_not_overlapped(tmp_path: Path) -> None:
    write_files(tmp_path, sitecustomize=NOT_OVERLAPPED)
    done = _certified(tmp_path)
    assert _culprit(done).startswith("collectives are not overlapped: "), _culprit(done)
    # The step, measured by another clock than its parts.
    differs = done.measurements("scaling")["step time that differs from its parts, 2 nodes"]
    assert differs["culprit"] == "rank 1 on node1"
    assert differs["value"] == pytest.approx(0.05, abs=0.02)


@turns_red("scaling", "test_throughput_grows_with_the_nodes", "test_gradients_travel_on_the_fabric")
def test_the_management_network(tmp_path: Path) -> None:
    model = {"layers": 2, "width": 96, "heads": 2, "context": 16, "vocab": 32}
    way = "--mnode-env=GLOO_SOCKET_IFNAME=mgmt0"
    done = _certified(tmp_path, way, model=model, bucket="128 KiB")
    assert re.match(r"traffic on mgmt0 \(.*, not fab0", _culprit(done)), _culprit(done)
    network = done.failed("scaling")["off-fabric traffic during the steps"]
    assert network == "all nodes sent over mgmt0 instead of fab0"
