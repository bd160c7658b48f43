"""Tests that do not end in one of two or four ranks."""

from __future__ import annotations

import ctypes
import os
import queue
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
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


def load_checkpoint() -> None:
    time.sleep(60)


@in_four
@pytest.mark.mnode(timeout=2)
def test_absent_from_collective(rank: int, process_group: Any) -> None:
    print(f"rank {rank} was here")
    if rank == 2:
        load_checkpoint()
    dist.all_reduce(torch.ones(1))


@pytest.mark.mnode(timeout=1)
def test_left_without_collective(rank: int, process_group: Any) -> None:
    if rank == 1:
        return
    dist.barrier()


@in_four
@pytest.mark.mnode(timeout=1)
def test_different_collectives(rank: int, process_group: Any) -> None:
    if rank == 0:
        dist.barrier()
    else:
        dist.all_gather_object([None] * 4, rank)


@pytest.mark.mnode(timeout=1)
def test_asynchronous_collective(rank: int, process_group: Any) -> None:
    if rank == 1:
        threading.Event().wait()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    work.wait()


@pytest.mark.mnode(timeout=1)
def test_loop_in_python(rank: int, process_group: Any) -> None:
    while rank == 1:
        pass
    dist.barrier()


@pytest.mark.mnode(timeout=1)
def test_loop_that_holds_the_gil(rank: int, process_group: Any) -> None:
    if rank == 1:
        re.match(r"(a|aa)+$", "a" * 200 + "b")
    dist.barrier()


@pytest.mark.mnode(timeout=1)
def test_sleep_that_holds_the_gil_and_blocks_signals(rank: int, process_group: Any) -> None:
    if rank == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        ctypes.PyDLL(None).sleep(60)
    dist.barrier()


@pytest.mark.mnode(timeout=1)
def test_stopped_process(rank: int, process_group: Any) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


@pytest.mark.mnode(timeout=1)
def test_waits_in_a_thread(rank: int, process_group: Any) -> None:
    if rank != 1:
        thread = threading.Thread(target=dist.barrier, name="courier")
        thread.start()
        thread.join()


@pytest.fixture
def slow_to_leave(rank: int) -> Iterator[None]:
    yield
    if rank == 1:
        load_checkpoint()


@pytest.mark.mnode(timeout=1)
def test_finalizer_hangs_on_one(slow_to_leave: None, rank: int) -> None:
    pass


@pytest.fixture
def leaves_together(process_group: Any) -> Iterator[None]:
    yield
    dist.barrier()


@pytest.mark.mnode(timeout=1)
def test_awaited_in_teardown(leaves_together: None, rank: int) -> None:
    if rank == 1:
        load_checkpoint()


@pytest.fixture
def slow_to_come(rank: int) -> None:
    if rank == 1:
        load_checkpoint()


@pytest.mark.mnode(timeout=1)
def test_setup_hangs_on_one(slow_to_come: None, rank: int, process_group: Any) -> None:
    pass


class Buffer:
    pass


EMPTY: Any = queue.SimpleQueue()
KEPT: list[object] = []


@pytest.mark.mnode(timeout=1)
def test_hangs_in_c_when_freed(rank: int) -> None:
    """Like a destructor in C, after the last line of the test."""
    buffer = Buffer()
    if rank == 1:
        KEPT.append(weakref.ref(buffer, EMPTY.get))  # waits for ever


@pytest.mark.mnode(timeout=20)
def test_alarm(rank: int, process_group: Any) -> None:
    """Like pytest-timeout."""

    def ring(number: int, frame: Any) -> None:
        raise TimeoutError("the alarm went off")

    if rank == 1:
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        load_checkpoint()
    dist.barrier()


class Rows:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> int:
        time.sleep(60)
        return row


@pytest.mark.mnode(timeout=3)
def test_worker_of_a_loader(rank: int) -> None:
    for _ in torch.utils.data.DataLoader(Rows(), num_workers=1):  # type: ignore[arg-type]
        pass
