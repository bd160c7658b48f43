"""A mesh of one dimension has no slices, which is reported as not promised."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import acceptance.test_groups as questions
from pytest_mnode.checks.groups import Layout, slices
from pytest_mnode.measure import Measure
from pytest_mnode.rank.world import World
from tests.acceptance.certified import certify, spec_edited
from tests.inner import need_rack

WORLD = World(0, 4, 0, 2, "node0", ("node0", "node1"))
CPU = torch.device("cpu")


def test_a_one_dimensional_mesh_has_no_slices() -> None:
    mesh: Any = SimpleNamespace(mesh_dim_names=("dp",), shape=(4,))
    with pytest.raises(ValueError, match=r"^a mesh of one dimension, dp, has no slices; give "):
        slices(mesh, WORLD, CPU)


def test_slices_of_it_are_not_promised() -> None:
    ask = cast(Any, questions.test_slices_of_a_mesh_are_right)
    with pytest.raises(pytest.skip.Exception) as skipped:
        ask(WORLD, CPU, (Layout.of(dp=4),), Measure([], ""))
    assert str(skipped.value) == "not promised by the spec: a mesh of two dimensions or more"


def test_a_one_dimensional_mesh_is_certified(tmp_path: Path) -> None:
    need_rack()

    def edit(page: dict[str, Any]) -> None:
        page["criteria"] = {"groups": {"meshes": [{"dp": "rest"}]}}

    spec = spec_edited(tmp_path, edit)
    done = certify(tmp_path, spec, "--mnode-nodes=2", files=["test_groups.py"], cold=False)
    assert done.criterion("groups")["verdict"] == "pass", done.run.output
    assert {name for name, outcome in done.run.outcomes().items() if outcome == "skipped"} == {
        "test_tensor_parallel_groups_stay_inside_a_node",
        "test_slices_of_a_mesh_are_right",
    }
