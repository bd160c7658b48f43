"""The NICs that carried a rank's traffic."""

from __future__ import annotations

import pytest

from pytest_mnode.measuring.nic_counters import carriers

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
