"""Accelerators that a job's ranks see, and how Megatron splits the ranks over them."""

from __future__ import annotations

import pytest

from pytest_mnode.launching.devices import more_visible
from pytest_mnode.launching.reports import RankReport
from pytest_mnode.launching.variables import wrong_variables
from tests.launching.made import but, changed, expected, right


def said(reports: list[RankReport], style: str = "torchrun", per_node: int = 2) -> list[str]:
    return [str(wrong) for wrong in wrong_variables(expected(style, per_node), reports)]


def test_more_accelerators_than_asked_for_are_told() -> None:
    wanted = expected("torchrun", 2, accelerators=2)
    reports = right(wanted)
    assert more_visible(wanted, reports) == []
    for rank, count in ((2, 8), (3, 8), (4, 8), (7, 4), (6, None)):
        reports = but(reports, rank, accelerators=count)
    assert more_visible(wanted, reports) == [
        "accelerators visible on node3: 4, and the job asked for 2",
        "accelerators visible on node1, node2: 8, and the job asked for 2",
    ]


@pytest.mark.parametrize(
    ("each", "visible", "count", "wrong"),
    [
        (8, None, 8, 0),  # every rank sees all
        (8, "own", 1, 0),  # the scheduler gives each its own
        (8, "same", 1, 32),
        (8, None, 7, 32),
        (8, None, None, 32),
        (8, None, 9, 0),  # others' are not hidden: no fault of the job's
    ],
)
def test_accelerators_are_all_visible_or_one_each(
    each: int, visible: str | None, count: int | None, wrong: int
) -> None:
    wanted = expected("torchrun", each, accelerators=8)
    reports = right(wanted)
    for rank in range(wanted.size):
        devices = {None: None, "own": str(rank % each), "same": "0"}[visible]
        reports = but(reports, rank, accelerators=count)
        reports = changed(reports, rank, CUDA_VISIBLE_DEVICES=devices)
    found = wrong_variables(wanted, reports)
    assert len(found) == wrong
    assert {w.variable for w in found} <= {"CUDA_VISIBLE_DEVICES"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=4"), ""),
        (("--tensor-model-parallel-size=3",), "does not divide 8 ranks"),
        (("--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=3"), "does not divide"),
        (("--tensor-model-parallel-size=4",), "does not divide the 2 ranks of a node"),
        (("--tensor-model-parallel-size=two",), "is no number"),
        (("--tensor-model-parallel-size=0",), "does not divide 8 ranks"),
        (("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "4"), ""),
        (("--tensor-model-parallel-size", "3"), "does not divide 8 ranks"),
        (("--pipeline-model-parallel-size", "3", "-x"), "does not divide 8 ranks"),
        (("--tensor-model-parallel-size", "two"), "'two' is no number"),
        (("--tensor-model-parallel-size",), "'' is no number"),
        (("--tensor-model-parallel-size=²",), "is no number"),
        (("--tensor-model-parallel-size=3", "--tensor-model-parallel-size", "2"), ""),
    ],
)
def test_tensor_and_pipeline_sizes_divide(arguments: tuple[str, ...], line: str) -> None:
    reports = but(right(expected("megatron")), 2, arguments=arguments)
    found = said(reports, "megatron")
    assert len(found) == bool(line)
    assert all(line in one and one.startswith("node1 rank 2: ") for one in found)
