"""Does the fabric carry what it promises?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import bench

if TYPE_CHECKING:
    import torch

    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec
    from pytest_mnode.world.contract import World

pytestmark = [pytest.mark.criterion, pytest.mark.usefixtures("process_group")]


def test_all_reduce_reaches_the_line_rate(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does all-reduce reach the line rate promised?"""
    promised = spec.criteria.fabric or pytest.skip("not promised by the spec")
    found = bench.measured_busbw(bench.ALL_REDUCE, promised.all_reduce_busbw, spec, world, device)
    print(found.sweep.table())
    found.record(measure)
