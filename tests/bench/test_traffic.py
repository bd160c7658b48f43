"""Which interface carried what was measured, from the kernel's counters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_mnode.bench.traffic import NodeTraffic, astray
from pytest_mnode.spec.models import Network

FABRIC = Network.model_validate({"interfaces": ["fab*"], "line_rate": "200 Mbit/s"})


@pytest.mark.parametrize(
    ("sent", "carrier", "share", "instead"),
    [
        ({"fab0": 990, "mgmt0": 10}, "fab0", 0.99, None),
        ({"fab0": 500, "fab1": 490, "mgmt0": 10}, "fab0", 0.99, None),
        ({f"fab{i}": 125 for i in range(8)}, "fab0", 1.0, None),  # each of many has its part
        ({"fab0": 300, "fab1": 300, "mgmt0": 400}, "mgmt0", 0.6, None),  # part of it went past
        ({"fab0": 10, "mgmt0": 990}, "mgmt0", 0.01, "mgmt0"),
        ({"fab0": 10, "eth0": 300, "eth1": 690}, "eth1", 0.01, "eth1"),
        ({"lo": 1000}, "lo", 0.0, "lo"),
        ({"fab0": 20, "eth0": 100}, None, None, None),  # RDMA: the kernel saw next to nothing
        ({}, None, None, None),
    ],
)
def test_carrier(
    sent: Mapping[str, int], carrier: str | None, share: float | None, instead: str | None
) -> None:
    node = NodeTraffic("node0", sent, least_bytes=980)
    assert node.carrier == carrier
    assert node.share(FABRIC) == (None if share is None else pytest.approx(share))
    assert node.astray(FABRIC) == instead


def test_who_sent_over_what_instead() -> None:
    good = NodeTraffic("node0", {"fab0": 1000}, 1000)
    bad = NodeTraffic("node2", {"mgmt0": 1000}, 1000)
    worse = NodeTraffic("node3", {"lo": 1000}, 1000)
    assert astray([good, good], FABRIC) is None
    assert astray([good, bad], FABRIC) == "node2 sent over mgmt0 instead of fab*"
    assert astray([bad, worse], FABRIC) == "all nodes sent over mgmt0, lo instead of fab*"
