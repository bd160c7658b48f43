"""Records of NCCL's inspector: bandwidth of who came last, and the host that others wait for."""

from __future__ import annotations

import json
import math
from typing import Any

from pytest_mnode.logs.nccl_inspector import Calls, read_calls


def record(rank: int, number: int, took_us: int, **changes: Any) -> str:
    """A call of 1 MB over four ranks, two on each host."""
    done = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1_000_000}
    done |= {"coll_exec_time_us": took_us, "coll_busbw_gbs": 1500 / took_us, **changes}
    header = {"id": "0x7f", "rank": rank, "n_ranks": 4, "nnodes": 2}
    named = {"hostname": f"node{rank // 2}", "pid": 7}
    return json.dumps({"header": header, "metadata": named, "coll_perf": done})


def files(*calls: tuple[int, int, int, int], **changes: Any) -> list[str]:
    """By rank, what four ranks took of each call."""
    return [
        "\n".join(record(rank, number, call[rank], **changes) for number, call in enumerate(calls))
        for rank in range(4)
    ]


def test_who_comes_last_shows_what_the_network_takes() -> None:
    late = (90, 92, 95, 50)
    found = read_calls(files(late, late, (50, 52, 51, 50)))
    assert found == [Calls("AllReduce", 1_000_000, 4, 3, 30.0, "node1")]


def test_the_root_of_a_broadcast_may_end_first() -> None:
    [one] = read_calls(files((50, 90, 90, 90), coll="Broadcast"))
    assert one.late is None


def test_nobody_is_late_if_it_is_another_one_each_time() -> None:
    [one] = read_calls(files((50, 90, 90, 90), (90, 90, 90, 50), (60, 61, 62, 60)))
    assert (one.late, one.busbw_gbytes_s) == (None, 30.0)


def test_what_moves_most_comes_first() -> None:
    small = files((50, 50, 50, 50), coll="AllGather", coll_msg_size_bytes=10)
    found = read_calls([*small, *files((50, 50, 50, 50))])
    assert [one.name for one in found] == ["AllReduce", "AllGather"]


def test_what_not_all_ranks_recorded_says_nothing() -> None:
    whole = files((50, 50, 50, 50))
    torn = [record(3, 0, 50, coll_msg_size_bytes=math.inf)]
    torn += ["{", "[1]", '{"header": {"rank": 1}, "p2p_perf": {"p2p": "Send"}}', whole[3][:90]]
    assert read_calls([*whole[:3], *torn]) == []
