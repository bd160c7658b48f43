"""Words for ranks and for how they ended."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.world.describe import (
    compact,
    death_line,
    died_of,
    ended_text,
    is_peer_lost,
    places,
    ranks_text,
)
from pytest_mnode.world.messages import Death


def death(
    code: int | None, number: int | None, oom_kills: int = 0, peak: int | None = None
) -> Death:
    return Death(
        "node1", "w1", 2, 99, code, number, oom_kills=oom_kills, peak_rss_bytes=peak
    )  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([7, 0, 1, 5, 6, 6], "0-1,5-7"), ([4, 2], "2,4")],
)
def test_compact(numbers: list[int], text: str) -> None:
    assert compact(numbers) == text


@given(st.sets(st.integers(0, 300), min_size=1))
def test_compact_says_all(numbers: set[int]) -> None:
    said: set[int] = set()
    for run in compact(numbers).split(","):
        first, _, last = run.partition("-")
        said |= set(range(int(first), int(last or first) + 1))
    assert said == numbers


def test_ranks_and_places() -> None:
    nodes = {rank: f"node{rank // 2}" for rank in range(12)}
    assert ranks_text([2]) == "rank 2"
    assert ranks_text([3, 2]) == "ranks 2-3"
    assert places([1, 5, 6, 7], nodes, 12) == "ranks 1,5-7 of 12 on node0,node2,node3"
    assert places(range(12), nodes, 12) == "ranks 0-11 of 12 on node0,node1,node2,3 more"


@pytest.mark.parametrize(
    ("code", "number", "text"),
    [
        (3, None, "exited with code 3"),
        (0, None, "exited with code 0"),
        (None, 11, "killed by SIGSEGV"),
        (None, 63, "killed by signal 63"),
    ],
)
def test_how_a_process_ended(code: int | None, number: int | None, text: str) -> None:
    assert ended_text(code, number) == text


def test_who_killed() -> None:
    kill = int(signal.SIGKILL)
    assert died_of(death(None, kill)) == "killed by SIGKILL (not by pytest-mnode)"
    assert died_of(death(None, kill, 1, 3 * 2**20)) == (
        "killed by SIGKILL by the kernel: out of memory, its memory at most 3 MiB"
    )
    # A machine short of memory explains a SIGKILL and nothing else.
    assert died_of(death(None, 11, 1)) == "killed by SIGSEGV"
    assert death_line(death(3, None)) == "rank 2 on node1 exited with code 3"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:9",
        "RuntimeError: [pair.cc:537] Read error [::1]:9: Connection reset by peer",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "DistBackendError: NCCL communicator was aborted on rank 1",
        "ncclRemoteError: A call failed possibly due to a network error",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_lost_peer(text: str) -> None:
    assert is_peer_lost(text)


@pytest.mark.parametrize(
    "text",
    ["AssertionError: assert 4 == 5", "RuntimeError: shape mismatch", "ValueError: connection", ""],
)
def test_no_lost_peer(text: str) -> None:
    assert not is_peer_lost(text)
