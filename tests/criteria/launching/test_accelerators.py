"""Accelerators that a job's ranks see, and how Megatron splits the ranks over them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.criteria.launching.contract import more_visible, wrong_variables
from pytest_mnode.criteria.launching.reports import RankReport
from tests.criteria.launching.made import but, changed, expected, right

CONTRACT = Path(__file__).parents[3] / "fixtures" / "jobs" / "contract.py"


def test_more_accelerators_than_asked_for_are_listed() -> None:
    wanted = expected("torchrun", 2, accelerators=2)
    reports = right(wanted)
    assert more_visible(wanted, reports) == []
    for rank, count in ((2, 8), (3, 8), (4, 8), (7, 4), (6, None)):
        reports = but(reports, rank, accelerators=count)
    assert more_visible(wanted, reports) == [
        "accelerators visible on node3: 4, the job requested 2",
        "accelerators visible on node1, node2: 8, the job requested 2",
    ]


CUDA = "CUDA_VISIBLE_DEVICES"
OTHERS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@pytest.mark.parametrize(
    ("variable", "visible", "count", "wrong"),
    [
        (CUDA, None, 8, 0),  # every rank sees all
        (CUDA, None, 7, 32),
        (CUDA, None, None, 32),
        (CUDA, None, 9, 0),  # other jobs' accelerators are visible: not the job's fault
        *[(variable, "own", 1, 0) for variable in (CUDA, *OTHERS)],  # by the scheduler
        *[(variable, "same", 1, 32) for variable in (CUDA, *OTHERS)],
    ],
)
def test_accelerators_are_all_visible_or_one_each(
    variable: str, visible: str | None, count: int | None, wrong: int
) -> None:
    wanted = expected("torchrun", 8, accelerators=8)
    reports = right(wanted)
    for rank in range(wanted.size):
        devices = {None: None, "own": str(rank % 8), "same": "0"}[visible]
        reports = changed(but(reports, rank, accelerators=count), rank, **{variable: devices})
    found = wrong_variables(wanted, reports)
    assert len(found) == wrong
    assert all("accelerators" in text for text in found)


def test_device_ids_decide_before_visible_device_variables() -> None:
    """With cgroups each rank's device is number 0; equal numbers need not be one device."""
    wanted = expected("torchrun", 8, accelerators=8)

    def seen(device: str, visible: str) -> list[RankReport]:
        reports = right(wanted)
        for rank in range(wanted.size):
            ids = (device.format(rank % 8),)
            reports = but(reports, rank, accelerators=1, devices=ids)
            reports = changed(reports, rank, CUDA_VISIBLE_DEVICES=visible.format(rank % 8))
        return reports

    assert wrong_variables(wanted, seen("GPU-{}", "0")) == []
    same = seen("GPU-0", "{}")
    assert len(wrong_variables(wanted, same)) == wanted.size
    assert wrong_variables(wanted, seen("GPU-0", "MIG-{}")) == [], "parts of one device"
    # If one rank reports no device ids, the variables decide.
    nodes = [text.split()[0] for text in wrong_variables(wanted, but(same, 0, devices=()))]
    assert nodes == ["node1"] * 8 + ["node2"] * 8 + ["node3"] * 8


@pytest.mark.parametrize(
    ("properties", "ids"),
    [
        ({"uuid": "a-1", "pci_domain_id": 0, "pci_bus_id": 1, "pci_device_id": 0}, ["a-1:0:1:0"]),
        ({"uuid": "a-1"}, ["a-1"]),
        ({"name": "x"}, None),
    ],
)
def test_ids_of_the_visible_devices(
    properties: dict[str, object], ids: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = runpy.run_path(str(CONTRACT))
    kind = SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(**properties))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=kind))
    assert program["ids_of"]("cuda", 1) == ids
    assert program["ids_of"]("mps", 1) is None


TENSOR, PIPELINE = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([f"{TENSOR}=2", f"{PIPELINE}=4"], ""),
        ([f"{TENSOR}=3"], "does not divide 8 ranks"),
        ([f"{TENSOR}=2", f"{PIPELINE}=3"], "does not divide 8 ranks"),
        ([f"{TENSOR}=4"], "does not divide the 2 ranks of a node"),
        ([f"{TENSOR}=two"], "'two' is not a number"),
        ([f"{TENSOR}=0"], "does not divide 8 ranks"),
        ([TENSOR, "2", PIPELINE, "4"], ""),
        ([TENSOR, "3"], "does not divide 8 ranks"),
        ([PIPELINE, "3", "-x"], "does not divide 8 ranks"),
        ([TENSOR], "'' is not a number"),
        ([f"{TENSOR}=²"], "is not a number"),
        ([f"{TENSOR}=3", TENSOR, "2"], ""),
    ],
)
def test_tensor_and_pipeline_sizes_divide(arguments: list[str], line: str) -> None:
    reports = but(right(expected("megatron")), 2, arguments=tuple(arguments))
    found = wrong_variables(expected("megatron"), reports)
    assert len(found) == bool(line)
    assert all(line in one and one.startswith("node1 rank 2: ") for one in found)
