"""A rank's share of memory: of its GPU or machine, and of its control groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from pytest_mnode.machine.cgroup import read_memory_rooms
from pytest_mnode.measuring import ranks
from tests.trees import Tree

CPU = torch.device("cpu")
GIB = 1 << 30
V1 = "memory/x/memory."
"""Before the names of a group's files of version 1."""


@pytest.fixture
def cgroups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tree:
    """A machine with 100 GiB free, and its control groups."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * GIB))
    monkeypatch.setattr(ranks, "read_memory_rooms", lambda: read_memory_rooms(tmp_path))
    return Tree(tmp_path)


def _shares(monkeypatch: pytest.MonkeyPatch, others: Sequence[tuple[float, float]]) -> list[float]:
    """Shares of ranks: other machines with their free bytes, and one more rank like this one."""

    def by_rank(numbers: list[float], device: torch.device) -> list[list[float]]:
        return [numbers, numbers, *map(list, others)]

    monkeypatch.setattr(ranks, "by_rank", by_rank)
    return ranks.free_bytes_by_rank(CPU)


def test_ranks_on_one_kernel_share_its_memory(
    monkeypatch: pytest.MonkeyPatch, cgroups: Tree
) -> None:
    assert not (cgroups.root / "proc").exists()
    shares = _shares(monkeypatch, [(10.0 * GIB, 1.0)])
    assert shares == pytest.approx([45 * GIB, 45 * GIB, 9 * GIB])


@pytest.mark.parametrize(
    ("own", "files", "free_gib"),
    [
        ("0::/a/b", {"a/b/memory.max": 30, "a/b/memory.current": 10}, 20),
        ("0::/a/b", {"a/memory.max": 30, "a/memory.current": 26}, 4),  # of the parent group
        ("0::/a/b", {"a/b/memory.max": "max", "a/b/memory.current": 10}, 100),
        ("0::/", {}, 100),
        ("4:cpu:/x\n7:memory:/x", {f"{V1}limit_in_bytes": 8, f"{V1}usage_in_bytes": 2}, 6),
    ],
)
def test_a_control_group_s_limit_counts(
    monkeypatch: pytest.MonkeyPatch,
    cgroups: Tree,
    own: str,
    files: dict[str, int | str],
    free_gib: int,
) -> None:
    cgroups.write("proc/self/cgroup", own)
    if own.startswith("0::"):
        cgroups.write("sys/fs/cgroup/cgroup.procs", "")
    for name, value in files.items():
        cgroups.write(f"sys/fs/cgroup/{name}", value if isinstance(value, str) else value * GIB)
    assert _shares(monkeypatch, [])[0] == pytest.approx(0.9 * free_gib * GIB / 2)


def test_this_machine_has_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "by_rank", lambda numbers, device: [numbers])
    [share] = ranks.free_bytes_by_rank(CPU)
    assert 0 < share < psutil.virtual_memory().total


def test_a_trace_leaves_no_file(tmp_path: Path) -> None:
    ranks.traced(lambda: torch.ones(1), 1, CPU, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("each_s", "calls"), [(0.001, 50), (0.03, 2), (1.0, 2), (0.0, ranks._MOST_CALLS)]
)
def test_calls_fill_their_time(monkeypatch: pytest.MonkeyPatch, each_s: float, calls: int) -> None:
    done = list[int]()

    def elapsed_s(_: object, calls: int, __: object) -> float:
        done.append(calls)
        return each_s * calls

    monkeypatch.setattr(ranks, "elapsed_s", elapsed_s)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *_, **__: None)
    found = ranks.slowest_call_s(lambda: None, 0.05, torch.device("cpu"), repeats=3)
    assert done == [1, 2, calls, calls, calls]
    assert found == pytest.approx(each_s)
