"""Tests in which one of four ranks ends as a process."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch.distributed as dist


pytestmark = pytest.mark.mnode(procs_per_node=1)
in_four = pytest.mark.mnode(procs_per_node=2)


def test_next(rank: int, world_size: int, process_group: Any, after: str) -> None:
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert int(total) == sum(range(world_size))


@in_four
def test_exit_3(rank: int, process_group: Any) -> None:
    if rank == 1:
        print("about to exit_3")
        os._exit(3)
    dist.barrier()


def test_exit_0(rank: int) -> None:
    if rank == 1:
        os._exit(0)


@in_four
def test_segfault(rank: int, process_group: Any) -> None:
    if rank == 2:
        print("about to segfault")
        ctypes.string_at(0)
    dist.barrier()


def test_abort(rank: int) -> None:
    if rank == 1:
        sys.stderr.write("heap is broken\n")
        os.abort()


@in_four
def test_sigkill(rank: int, process_group: Any) -> None:
    if rank == 3:
        print("about to sigkill")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_sigterm(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_sigterm_to_its_group(rank: int) -> None:
    if rank == 1:
        os.killpg(0, signal.SIGTERM)
        time.sleep(5)


@in_four
def test_out_of_memory(rank: int, process_group: Any) -> None:
    if rank == 1:
        print("about to out_of_memory")
        held = sum(int(p) for p in Path("/proc/self/statm").read_text().split()[:1]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (held + 2**26, held + 2**26))
        hoard = [bytearray(b"x" * 2**22) for _ in range(100)]
        assert not hoard
    dist.barrier()


@in_four
def test_all_ranks_die(rank: int) -> None:
    os._exit(7)


def test_silent_exit_after_last_collective(rank: int, process_group: Any) -> None:
    dist.barrier()
    if rank == 1:
        os._exit(0)


@pytest.fixture
def deadly(rank: int) -> Iterator[None]:
    yield
    if rank == 1:
        os._exit(3)


def test_exit_in_teardown(deadly: None, rank: int) -> None:
    pass


@pytest.fixture
def deadly_at_once(rank: int) -> None:
    if rank == 1:
        os._exit(3)


def test_exit_in_setup(deadly_at_once: None, rank: int) -> None:
    pass


def _exit_from_a_thread(rank: int, delay: float) -> None:
    def end() -> None:
        time.sleep(delay)
        os._exit(0)

    if rank == 1:
        threading.Thread(target=end, daemon=True).start()


def test_thread_exits_at_once(rank: int) -> None:
    _exit_from_a_thread(rank, 0.0)


def test_thread_exits_soon(rank: int) -> None:
    _exit_from_a_thread(rank, 0.02)


def test_thread_exits_late(rank: int) -> None:
    _exit_from_a_thread(rank, 9.0)


def test_native_alarm_goes_off_late(rank: int) -> None:
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 9.0)


def print_10_mb(rank: int) -> None:
    print(*(f"rank {rank} line {number:06d} {'.' * 480}" for number in range(20_000)), sep="\n")


def test_10_mb_from_each(rank: int) -> None:
    print_10_mb(rank)
    assert rank != 1


def test_10_mb_and_dies(rank: int) -> None:
    if rank == 1:
        print_10_mb(rank)
        os._exit(3)


def test_descriptors_closed(rank: int) -> None:
    if rank == 1:
        os.closerange(3, 1024)


def test_output_closed(rank: int) -> None:
    os.close(1)
    os.close(2)
    assert rank != 1
