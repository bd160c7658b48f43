"""The NICs that carried a rank's traffic, and which of them are near."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.criteria.placement.nics import fabric_nics, judge_nics
from pytest_mnode.criteria.placement.rank_placement import PARTS, RankPlacement
from pytest_mnode.launchers.rack import Layout
from pytest_mnode.launchers.rack.sockets import board
from pytest_mnode.launchers.rack.sysfs_tree import accelerator_addresses
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.nic_counters import carriers
from pytest_mnode.spec import profile_spec
from tests.launchers.test_sockets import machine, write

MIB = 1 << 20


@pytest.mark.parametrize(
    ("carried", "found"),
    [
        ({"fab0": 2 * MIB, "mgmt0": 4096, "lo": 2 * MIB}, (("fab0",), "")),
        ({"rail0": MIB, "rail1": MIB, "eth0": 100}, (("rail0", "rail1"), "")),
        ({"mlx5_0:1": 2 * MIB, "eth0": 2 * MIB}, (("mlx5_0:1",), "")),
        ({"lo": 4 * MIB, "eth0": 10}, (None, "only lo carried its traffic")),
        ({"eth0": 10}, (None, "no byte counter shows its traffic")),
        ({}, (None, "no byte counter shows its traffic")),
    ],
)
def test_the_nics_that_carried_the_traffic(
    carried: dict[str, int], found: tuple[tuple[str, ...] | None, str]
) -> None:
    assert carriers(carried) == found


def test_one_nic_for_two_sockets(tmp_path: Path) -> None:
    """On the socket of one of two ranks it passes; on a socket without a rank it fails."""
    shown = board(machine(4), Layout(accelerators=(0, 0, 1)), 0, 1)
    write(tmp_path, shown)
    near, also_near, far = accelerator_addresses(shown)
    node = Machine.read(tmp_path, PARTS)
    fabric = fabric_nics(node, ("fab0",), profile_spec("rack"))
    assert fabric == ("fab0",)  # mgmt0 is nearer to some ranks, but is not a fabric NIC

    def found(accelerator: str, beside: list[str | None]) -> Verdict | None:
        rank = RankPlacement(rank=0, node="node0", accelerator=accelerator, nics=("fab0",))
        assert judge_nics(node, rank, fabric).verdict is Verdict.PASS
        return judge_nics(node, rank, fabric, beside).verdict

    assert found(near, [near]) is Verdict.PASS
    assert found(also_near, [also_near]) is Verdict.PASS
    assert found(far, [far, near]) is Verdict.PASS
    assert found(far, [far]) is Verdict.FAIL
    assert found(far, [far, None]) is Verdict.PASS  # not known of all ranks, so no rank is blamed
