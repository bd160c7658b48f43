"""Whether NVLS is used, from settings, release and log; where nothing says it, it is not known."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.nvls import NvlsFacts, release

AVAILABLE = "n0:7:9 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"
ABSENT = "n0:7:9 [1] NCCL INFO NVLS multicast support is not available on dev 1 (NVLS_NCHANNELS 0)"
RING = "n0:7:9 [0] NCCL INFO AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}"
TREE = RING.replace("8589934592", "1024").replace("RING", "NVLSTREE")
ON, OFF, UNKNOWN = True, False, None


@pytest.mark.parametrize(
    ("settings", "version", "log", "inside", "across"),
    [
        ({}, None, [], UNKNOWN, UNKNOWN),
        ({}, (2, 27), [], UNKNOWN, UNKNOWN),
        ({}, (2, 17), [], UNKNOWN, OFF),
        ({}, (2, 16), [AVAILABLE], OFF, OFF),
        ({}, None, ["NCCL version 2.17.1+cuda12.1"], UNKNOWN, OFF),
        ({}, (2, 27), [AVAILABLE], ON, ON),
        ({}, (2, 27), [AVAILABLE, ABSENT], OFF, OFF),
        ({}, (2, 27), [ABSENT, AVAILABLE], OFF, OFF),
        ({}, None, ["[0] NCCL INFO 24 coll channels, 0 nvls channels, 32 p2p channels"], OFF, OFF),
        ({}, (2, 27), [AVAILABLE, RING, TREE], OFF, OFF),  # the largest size decides
        ({}, None, [TREE], ON, ON),
        ({"NCCL_NVLS_ENABLE": "0"}, (2, 27), [AVAILABLE], OFF, OFF),
        ({"NCCL_NVLS_ENABLE": "2"}, (2, 27), [AVAILABLE], ON, ON),
        ({"NCCL_ALGO": "Ring,Tree"}, (2, 27), [AVAILABLE], OFF, OFF),
        ({"NCCL_ALGO": "NVLSTree"}, (2, 27), [AVAILABLE], OFF, ON),
        ({"NCCL_ALGO": "NVLSTree"}, None, [], OFF, ON),
        ({"NCCL_ALGO": "^nvls,nvlstree"}, (2, 27), [AVAILABLE], OFF, OFF),
        ({"NCCL_ALGO": "^Ring"}, (2, 27), [AVAILABLE], ON, ON),
        ({"NCCL_ALGO": "allgather:ring;allreduce:nvlstree"}, None, [AVAILABLE], OFF, ON),
        ({"NCCL_ALGO": "broadcast:ring"}, None, [AVAILABLE], ON, ON),
    ],
)
def test_what_is_known(
    settings: dict[str, str],
    version: tuple[int, int] | None,
    log: list[str],
    inside: bool | None,
    across: bool | None,
) -> None:
    facts = NvlsFacts(settings, version).with_log(log)
    found = [facts.used(across=one) for one in (False, True)]
    assert [one.used for one in found] == [inside, across]
    assert all(one.why for one in found)


@pytest.mark.parametrize(
    ("text", "found"),
    [("22809", (2, 28)), ("2708", (2, 7)), ("2.27.5+cuda12.9", (2, 27)), ("next", None)],
)
def test_release(text: str, found: tuple[int, int] | None) -> None:
    assert release(text) == found
