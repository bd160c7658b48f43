"""Tests that fail in one of two ranks on GPUs, with a process group of NCCL."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def test_next(rank: int, world_size: int, process_group: Any, device: Any, after: str) -> None:
    total = torch.tensor(rank, device=device)
    dist.all_reduce(total)
    assert int(total) == sum(range(world_size))


@pytest.mark.mnode(timeout=4)
def test_absent_from_collective(rank: int, process_group: Any, device: Any) -> None:
    total = torch.ones(1, device=device)
    if rank == 1:
        time.sleep(60)
    dist.all_reduce(total)
    assert float(total) == 2


@pytest.mark.mnode(timeout=20)
def test_left_without_collective(rank: int, process_group: Any, device: Any) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(1, device=device))


@pytest.mark.mnode(timeout=20)
def test_different_collectives(rank: int, process_group: Any, device: Any) -> None:
    own = torch.ones(1024, device=device)
    if rank == 0:
        dist.all_reduce(own)
    else:
        dist.all_gather_into_tensor(torch.empty(2048, device=device), own)


@pytest.mark.mnode(timeout=20)
def test_different_shapes(rank: int, process_group: Any, device: Any) -> None:
    dist.all_reduce(torch.ones(1024 << 8 * rank, device=device))


@pytest.mark.mnode(timeout=4)
def test_absent_from_send(rank: int, process_group: Any, device: Any) -> None:
    own = torch.ones(1 << 20, device=device)
    if rank == 0:
        dist.recv(own, src=1)
        torch.cuda.synchronize()
    else:
        time.sleep(60)


@pytest.mark.mnode(timeout=20)
def test_raises_while_another_waits(rank: int, process_group: Any, device: Any) -> None:
    if rank == 1:
        raise ValueError("loss is nan")
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    assert float(total) == 2


@pytest.mark.mnode(timeout=20)
def test_index_out_of_range(rank: int, process_group: Any, device: Any) -> None:
    values, index = torch.ones(4, device=device), torch.tensor([9 * rank], device=device)
    assert float(values[index]) == 1


@pytest.mark.mnode(timeout=20)
def test_error_that_nobody_reads(rank: int, process_group: Any, device: Any) -> None:
    torch.ones(4, device=device)[torch.tensor([9 * rank], device=device)]


@pytest.mark.mnode(timeout=20)
def test_out_of_memory(rank: int, process_group: Any, device: Any) -> None:
    if rank == 1:
        torch.empty(1 << 42, dtype=torch.uint8, device=device)


@pytest.mark.mnode(timeout=20)
def test_kept_memory(rank: int, process_group: Any, device: Any) -> None:
    if rank == 1:
        sys.kept = torch.empty(1 << 30, dtype=torch.uint8, device=device)  # type: ignore[attr-defined]


@pytest.mark.mnode(timeout=3)
def test_kernel_without_end(rank: int, process_group: Any, device: Any) -> None:
    if rank == 1:
        cuda: Any = torch.cuda
        for _ in range(100):
            cuda._sleep(1 << 30)


@pytest.mark.mnode(timeout=20)
def test_killed(rank: int, process_group: Any, device: Any) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1, device=device))


@pytest.mark.mnode(timeout=20)
def test_unequal_iterations(rank: int, process_group: Any, device: Any) -> None:
    model = torch.nn.Linear(8, 8).to(device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
    for _ in range(4 - 2 * rank):
        wrapped(torch.ones(2, 8, device=device)).sum().backward()
        torch.cuda.synchronize()


@pytest.mark.mnode(timeout=20)
def test_unequal_functional_collectives(rank: int, process_group: Any, device: Any) -> None:
    mesh = init_device_mesh("cuda", (2,))
    for _ in range(2 - rank):
        whole: Any = distribute_tensor(torch.ones(2, device=device), mesh, [Replicate()])
        assert float(whole.redistribute(mesh, [Shard(0)]).sum().full_tensor()) == 2


@pytest.mark.mnode(timeout=20)
def test_mesh_fails(rank: int, process_group: Any, device: Any) -> None:
    mesh = init_device_mesh("cuda", (1, 2), mesh_dim_names=("dp", "tp"))
    total = torch.ones(1, device=device)
    dist.all_reduce(total, group=mesh["tp"].get_group())
    assert float(total) == 3


@pytest.mark.mnode(timeout=20)
def test_wrong_sum(rank: int, process_group: Any, device: Any) -> None:
    total = torch.full((4,), float(rank), device=device)
    dist.all_reduce(total)
    torch.testing.assert_close(total, torch.full((4,), 1.0 + rank, device=device))
