"""Promises of each criterion: defaults, the rack's, and with given keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.checks.node.names import NamesAreFound
from pytest_mnode.checks.node.reachable import FirstNodeIsReached
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.spec import doubts, profile_spec
from pytest_mnode.spec.devices import DevicesCriterion
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.spec.restart import KILLS, RestartCriterion
from pytest_mnode.spec.scaling import ScalingCriterion
from tests.spec.conftest import changed, preflight_of


def test_default_promise_of_restart() -> None:
    promised = RestartCriterion.model_validate({"within": "60 s"})
    assert promised.kills == KILLS
    assert (promised.within_s, promised.grace_s, promised.tolerance) == (60.0, 30.0, 0.0)
    assert (promised.node_loss, promised.resharded_tolerance) == ("spare", None)
    assert promised.checkpoint_within_s is None


@pytest.mark.parametrize("given", [{"resharded_tolerance": 0.001}, {"kills": ["rank"]}])
def test_fewer_nodes_need_a_tolerance_or_no_kill_of_a_node(given: Any) -> None:
    page = {"within": "60 s", "node_loss": "fewer", **given}
    assert RestartCriterion.model_validate(page).node_loss == "fewer"


def test_default_promise_of_gang() -> None:
    promised = GangCriterion.model_validate({})
    assert (promised.nodes, promised.among, promised.settle_s) == (None, None, None)
    assert (promised.rounds, promised.waits_s, promised.next_within_s) == (3, 30.0, 60.0)
    assert promised.node_loss is None
    # All ranks must run at once, otherwise the test fails.
    assert promised.together_s < promised.runs_s


def test_promise_of_scaling_by_default_and_on_the_rack() -> None:
    scaling = ScalingCriterion.model_validate({})
    assert (scaling.at_least_efficiency, scaling.explained_from) == (0.95, 0.9)
    assert (scaling.explained_fraction, scaling.allowed_causes) == (0.8, ())
    assert (scaling.kind, scaling.parallel, scaling.compute_s) == ("weak", "ddp", None)
    rack = profile_spec("rack")
    assert rack.criteria.scaling is not None
    assert rack.criteria.scaling.compute_s is not None
    assert any("criteria.scaling.compute" in line for line in rack.emulated)


def test_promise_of_placement(tmp_path: Path) -> None:
    spec = changed(tmp_path, {"criteria.numa.nic": ""})
    numa, topology = spec.criteria.numa, spec.topology
    assert numa is not None
    assert (numa.cpus, numa.nic, numa.cores) == ("near", None, "own")
    assert (numa.copy_size_bytes, numa.copy_repeats) == (256 << 20, 5)
    assert topology is not None
    assert (topology.sockets, topology.accelerator_sockets) == (2, (0, 1))


def test_promise_of_devices() -> None:
    page = """
        matmul: {dtypes: [bfloat16, float32], size: 8192, at_least_fraction: 0.95,
                 at_most_spreads: 6, at_least_tflops: {bfloat16: 600}}
        host_to_device: {size: 1 GiB, at_least_fraction: 0.9, at_least_gbytes_s: 50, repeats: 5}
    """
    devices = DevicesCriterion.model_validate(yaml.safe_load(page))
    assert devices.matmul is not None
    assert devices.matmul.at_least_tflops == {"bfloat16": 600}
    assert devices.host_to_device is not None
    assert devices.host_to_device.size_bytes == 1 << 30
    assert devices.memory_copy is None


def test_promise_of_launching(tmp_path: Path) -> None:
    page = """{torchrun: {within: 2 min, job: /site/job.yaml}, deepspeed: {}, elsewhere: true,
               rendezvous: {within: 500 ms}}"""
    promised = changed(tmp_path, {"criteria.launch": page}).criteria.launch
    assert promised is not None
    assert promised.torchrun is not None
    assert (promised.torchrun.within_s, promised.torchrun.job) == (120, "/site/job.yaml")
    start = promised.start("deepspeed")
    assert start is not None
    assert (start.within_s, start.job) == (60.0, None)
    assert (promised.start("megatron"), promised.image, promised.store) == (None, None, None)
    assert promised.rendezvous is not None
    assert (promised.rendezvous.ranks, promised.rendezvous.within_s) == (16, 0.5)


def test_promise_of_groups_and_data(tmp_path: Path) -> None:
    rack = profile_spec("rack").criteria
    assert rack.groups is not None
    assert (rack.groups.meshes, rack.groups.inside_node) == (None, ("tp",))
    assert rack.data is not None
    assert (rack.data.batch, rack.data.accumulation, rack.data.workers) == (8, 2, 2)
    assert (rack.data.sample_files, rack.data.sample_size_bytes) == (8, 1 << 20)
    groups, data = "{meshes: [{pp: 2, dp: rest}, {tp: 4}], inside_node: []}", "{sample_size: 4 KiB}"
    named = changed(tmp_path, {"criteria.groups": groups, "criteria.data": data}).criteria
    assert named.groups is not None
    assert named.groups.meshes == ({"pp": 2, "dp": "rest"}, {"tp": 4})
    assert named.data is not None
    assert named.data.sample_size_bytes == 4096
    # Without inside_node tp stays inside a node, if the mesh has it.
    without = changed(tmp_path, {"criteria.groups": "{meshes: [{dp: rest}]}"}).criteria.groups
    assert without is not None
    assert without.inside_node == ("tp",)


def test_promise_of_preflight(tmp_path: Path) -> None:
    page = """{reachable: {within: 500 ms}, names: {}, clocks: {skew: 2 ms}, same: [code, kernel],
               limits: {memlock: unlimited, shm: 64 GiB}, disk: [{path: /tmp, free: 1 TB}]}"""
    spec = changed(tmp_path, {"criteria.preflight": page})
    promise = preflight_of(spec)
    reachable = promise_of(FirstNodeIsReached, spec)
    assert (reachable.within_s, reachable.networks) == (0.5, ("fabric",))
    assert promise_of(NamesAreFound, spec).within_s == 1.0
    assert promise.limits is not None
    assert (promise.limits.memlock_bytes, promise.limits.shm_bytes) == ("unlimited", 64 << 30)
    assert promise.rdma is None  # omitted keys are not promised
    assert doubts(spec) == []
