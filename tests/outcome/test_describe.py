"""Descriptions of ranks and of how they ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pytest_mnode.machine.cgroup import OomKills
from pytest_mnode.outcome.describe import death_line, died_of, ended_text, places, ranks_text
from pytest_mnode.protocol.messages import Death
from pytest_mnode.protocol.rank_files import nccl_causes

NO_KILLS = OomKills(0)


def death(
    code: int | None, number: int | None, kills: OomKills = NO_KILLS, peak: int | None = None
) -> Death:
    return Death("node1", "w1", 2, 99, code, number, oom_kills=kills, peak_rss_bytes=peak)


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


@pytest.mark.parametrize(
    ("kills", "who"),
    [
        (OomKills(0), " (not by pytest-mnode)"),
        (OomKills(None), " (not by pytest-mnode)"),
        (OomKills(1, "/c", 0), " (not by pytest-mnode)"),  # of another process
        (OomKills(2, "/c", 1), " by the kernel: out of memory (OOM kills in /c: 1)"),
        (OomKills(None, "/c", 1), " by the kernel: out of memory (OOM kills in /c: 1)"),
        (
            OomKills(2),
            ", probably by the kernel: out of memory (OOM kills on the whole machine: 2)",
        ),
    ],
)
def test_the_killer_of_a_rank(kills: OomKills, who: str) -> None:
    kill = int(signal.SIGKILL)
    assert died_of(death(None, kill, kills)) == f"killed by SIGKILL{who}"
    measured = died_of(death(None, kill, kills, 3 * 2**20))
    assert measured == f"killed by SIGKILL{who}, peak memory 3 MiB"
    # Lack of memory explains a SIGKILL and no other end.
    assert died_of(death(None, 11, kills)) == "killed by SIGSEGV"


def test_a_death_names_rank_and_node() -> None:
    assert death_line(death(3, None)) == "rank 2 on node1 exited with code 3"


def test_nccl_log_lines_that_explain_a_failed_rank(tmp_path: Path) -> None:
    log = tmp_path / "rank0.nccl.log"
    assert nccl_causes(log) == ""
    well = "elm4:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
    down = "elm4:7:8 [0] a.cc:93 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n"
    log.write_text(well + down + well)
    assert nccl_causes(log) == down
