"""Does every rank meet every other, and compute the right sum?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import measuring as bench
from pytest_mnode.criteria import mesh as judges
from pytest_mnode.criteria.preflight.survey import changed_paths
from pytest_mnode.measuring import limits
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    import torch

    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

pytestmark = [
    pytest.mark.criterion,
    pytest.mark.stops("mesh", only_hung=True),
    pytest.mark.mnode(still=limits.still_limit_s, on_failure=changed_paths),
]
needs_group = pytest.mark.usefixtures("process_group")


@pytest.fixture(autouse=True)
def _promised(spec: Spec) -> None:
    promised(spec, "mesh")


@needs_group
def test_every_rank_is_there(world: World) -> None:
    """Is every rank present, on the node where it should be?"""
    import torch.distributed as dist

    there: list[Any] = [None] * world.size
    dist.all_gather_object(there, (world.rank, world.node))
    assert there == [(r, world.nodes[r // world.local_size]) for r in range(world.size)]


@needs_group
def test_every_rank_meets_every_other(world: World, device: torch.device, measure: Measure) -> None:
    """Does every message between two ranks arrive as it was sent?"""
    met = bench.exchange(world, device)
    measure.record([judges.judge_exchange(met)])


@needs_group
@pytest.mark.parametrize("size_bytes", judges.SUMMED_SIZES_BYTES)
def test_sum_is_right(
    world: World, device: torch.device, size_bytes: int, measure: Measure
) -> None:
    """Is a sum over all ranks right at every position, in several repeats?"""
    wrong, senders = bench.wrong_values(bench.ALL_REDUCE, size_bytes, device)
    measure.record([judges.judge_sum(world, wrong, senders)])


@needs_group
def test_sum_is_right_in_every_dtype(world: World, device: torch.device, measure: Measure) -> None:
    """Are sums right in every dtype of the backend, and if not, which ranks are wrong?"""
    for dtype in bench.DTYPES:
        found = bench.sums(world, dtype, device)
        if found.wrong is None:
            print(f"{dtype}: the backend has no sums of it")
            continue
        measure.record([judges.judge_sums(dtype, found)])


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)
