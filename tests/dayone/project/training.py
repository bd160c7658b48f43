"""Data parallel training and its optimizers."""
# mypy: ignore-errors

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

pytestmark = pytest.mark.usefixtures("process_group")


def train(model, optimizer, inputs, targets, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return loss.item()


def assert_equal_weights(model, expected):
    for found, right in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, right)


def test_ddp_trains_as_one_process_does(new_model, batch, own, record_property):
    ddp, alone = DistributedDataParallel(new_model()), new_model()
    loss = train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), *own)
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), *batch)
    assert_equal_weights(ddp, alone)
    record_property("loss", f"{loss:.4f}")


def test_ddp_accumulates_without_sync(new_model, own, world_size):
    ddp = DistributedDataParallel(new_model())
    inputs, targets = own
    with ddp.no_sync():
        mse_loss(ddp(inputs), targets).backward()
    before = ddp.module[0].weight.grad.clone()
    gathered = [torch.empty_like(before) for _ in range(world_size)]
    dist.all_gather(gathered, before)
    assert not torch.equal(gathered[0], gathered[1])
    mse_loss(ddp(inputs), targets).backward()
    after = ddp.module[0].weight.grad
    torch.testing.assert_close(after, 2 * sum(gathered) / world_size)


def test_ddp_joins_uneven_inputs(new_model, own, rank):
    ddp = DistributedDataParallel(new_model())
    with Join([ddp]):
        for _ in range(1 + rank):
            mse_loss(ddp(own[0]), own[1]).backward()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_sharded_optimizer_steps_as_the_whole_one(optimizer, new_model, batch, own):
    ddp, alone = DistributedDataParallel(new_model()), new_model()
    train(ddp, ZeroRedundancyOptimizer(ddp.parameters(), optimizer, lr=0.01), *own)
    train(alone, optimizer(alone.parameters(), lr=0.01), *batch)
    assert_equal_weights(ddp, alone)


def test_averaged_models_are_equal(new_model, own, world_size):
    model = new_model()
    averager = PeriodicModelAverager(period=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, optimizer, *own, steps=1)
        averager.average_parameters(model.parameters())
    gathered = [None] * world_size
    dist.all_gather_object(gathered, model[0].bias.tolist())
    assert all(bias == gathered[0] for bias in gathered)


@pytest.mark.parametrize("workers", [0, 1])
def test_sampler_gives_each_row_to_one_rank(workers, world):
    rows = TensorDataset(torch.arange(8 * world.size))
    sampler = DistributedSampler(rows, seed=3)
    loader = DataLoader(rows, batch_size=4, sampler=sampler, num_workers=workers)
    seen = torch.cat([values for (values,) in loader])
    gathered = [torch.empty_like(seen) for _ in range(world.size)]
    dist.all_gather(gathered, seen)
    assert sorted(torch.cat(gathered).tolist()) == list(range(8 * world.size))


def test_one_replica_goes_astray(new_model, own, rank):
    ddp = DistributedDataParallel(new_model())
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1 if rank != 2 else 0.2), *own)
    total = ddp.module[0].bias.detach().clone()
    dist.broadcast(total, src=0)
    torch.testing.assert_close(ddp.module[0].bias, total)
