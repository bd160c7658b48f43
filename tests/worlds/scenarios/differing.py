"""Tests in which four ranks do not make the same calls."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch.distributed as dist

pytestmark = pytest.mark.mnode(timeout=60)


def test_next(rank: int, world_size: int, process_group: Any, after: str) -> None:
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert int(total) == sum(range(world_size))


def size(rank: int) -> int:
    return 5 if rank == 3 else 2


def test_shape(rank: int, process_group: Any) -> None:
    dist.barrier()
    dist.all_reduce(torch.ones(size(rank)))


def test_shape_of_a_list(rank: int, process_group: Any) -> None:
    dist.all_gather([torch.ones(size(rank))] * 4, torch.ones(size(rank)))


def test_operation(rank: int, process_group: Any) -> None:
    if rank == 3:
        dist.broadcast(torch.ones(2), 0)
    else:
        dist.all_reduce(torch.ones(2))


def test_root(rank: int, process_group: Any) -> None:
    values = torch.full((64,), float(rank))
    dist.broadcast(values, src=3 if rank == 3 else 0)
    assert values.sum() == 0


def test_one_less(rank: int, process_group: Any) -> None:
    if rank != 3:
        dist.barrier()


def test_left_before_a_timeout(rank: int, process_group: Any) -> None:
    short = dist.new_group(timeout=timedelta(seconds=1))
    if rank != 3:
        dist.barrier(group=short)


@pytest.fixture
def barrier_at_the_end(rank: int, process_group: Any) -> Iterator[None]:
    yield
    if rank != 3:
        dist.barrier()


def test_left_in_teardown(barrier_at_the_end: None) -> None:
    pass


def read_shard(rank: int) -> None:
    if rank == 3:
        raise ValueError("shard 17 is bad")


def test_error_hidden_by_a_barrier(rank: int, process_group: Any) -> None:
    try:
        read_shard(rank)
        dist.all_reduce(torch.ones(2))
    finally:
        dist.barrier()


def test_one_more(rank: int, process_group: Any) -> None:
    if rank == 3:
        dist.barrier()


def test_other_group(rank: int, process_group: Any) -> None:
    pair = dist.new_group([2, 3])
    dist.all_reduce(torch.ones(2), group=pair if rank == 3 else None)


def test_handle(rank: int, process_group: Any) -> None:
    work = dist.all_reduce(torch.ones(7 - size(rank)), async_op=True)
    if rank != 3:
        assert work is not None
        work.wait()


def test_two_of_four(rank: int, process_group: Any) -> None:
    dist.all_reduce(torch.ones(2 + rank % 2))


def test_raised_early(rank: int, process_group: Any) -> None:
    assert rank != 3
    dist.all_reduce(torch.ones(2))


def test_error_that_the_test_expects(rank: int, process_group: Any) -> None:
    with pytest.raises(RuntimeError):
        dist.broadcast(torch.ones(size(rank)), src=9)
    dist.barrier()
    assert rank != 3


def test_differences_that_are_allowed(rank: int, process_group: Any) -> None:
    dist.all_reduce(torch.ones(2, 3) if rank == 3 else torch.ones(3, 2))
    counts = [rank + 1] * 4
    received = torch.empty(10)
    dist.all_to_all_single(received, torch.ones(sum(counts)), [1, 2, 3, 4], counts)
    dist.all_gather_object([None] * 4, "x" * rank)
    assert rank != 3


def test_timeout_that_the_test_expects(rank: int, process_group: Any) -> None:
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.monitored_barrier(timeout=timedelta(seconds=2))


def test_received_from_nobody(rank: int, process_group: Any) -> None:
    if rank == 3:
        dist.recv(torch.ones(2), 1)
    dist.barrier()


def test_handle_of_a_batch(rank: int, process_group: Any) -> None:
    if rank == 3:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(2), 1)]):
            work.wait()
    dist.barrier()


def test_received_from_no_rank_at_all(rank: int, process_group: Any) -> None:
    if rank == 3:
        dist.recv(torch.ones(2))
    dist.barrier()


def test_all_receive(rank: int, process_group: Any) -> None:
    dist.recv(torch.ones(2), (rank + 1) % 4)


def test_left_a_receiver(rank: int, process_group: Any) -> None:
    if rank == 3:
        dist.recv(torch.ones(2), 1)


def test_slow_message(rank: int, process_group: Any) -> None:
    if rank == 3:
        dist.recv(torch.ones(2), 1)
    elif rank == 1:
        time.sleep(2.5)
        dist.send(torch.ones(2), 3)
    dist.barrier()
