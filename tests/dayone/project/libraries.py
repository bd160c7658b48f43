"""Common libraries used with torch."""
# mypy: ignore-errors

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torchmetrics
from accelerate import Accelerator
from lightning_fabric import Fabric
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

# Each rank imports all these libraries, which takes seconds: no more ranks than needed.
pytestmark = pytest.mark.mnode(nodes=2, procs_per_node=1)


def test_metric_of_all_ranks(process_group, world):
    metric = torchmetrics.MeanSquaredError()
    metric.update(torch.full((2,), float(world.rank)), torch.zeros(2))
    expected = np.mean(np.arange(world.size) ** 2.0)
    assert metric.compute().item() == pytest.approx(expected)


def test_accuracy_counts_each_sample_once(process_group, world):
    metric = torchmetrics.classification.MulticlassAccuracy(num_classes=4, average="micro")
    metric.update(torch.arange(4), torch.full((4,), world.rank % 4))
    assert metric.compute().item() == pytest.approx(0.25)


def test_accelerate_prepares_and_gathers(process_group, world, new_model, record_property):
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == world.size
    data = TensorDataset(torch.randn(16, 8, generator=torch.Generator().manual_seed(6)))
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 2))
    for (inputs,) in loader:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), torch.zeros(len(inputs), 4))
        accelerator.backward(loss)
        optimizer.step()
    losses = accelerator.gather(loss.detach())
    assert losses.shape == (world.size,)
    record_property("losses", [round(one, 4) for one in losses.tolist()])


def test_progress_is_shown_by_one_rank(process_group, world, capfd):
    total = torch.zeros(1)
    for step in tqdm(range(5), disable=world.rank != 0, mininterval=0):
        dist.all_reduce(one := torch.full((1,), float(step)))
        total += one
    assert total.item() == 10 * world.size
    assert ("5/5" in capfd.readouterr().err) == (world.rank == 0)


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_arrays_go_to_all_ranks(dtype, process_group, world):
    mine = np.arange(3, dtype=dtype) + world.rank
    gathered = [None] * world.size
    dist.all_gather_object(gathered, mine)
    np.testing.assert_array_equal(np.stack(gathered)[:, 0], np.arange(world.size, dtype=dtype))
    assert {array.dtype for array in gathered} == {np.dtype(dtype)}


# Last: ranks whose own group is left are not reused, and new ones would import all libraries again.
def test_fabric_makes_its_own_group(world, new_model):
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=world.local_size, num_nodes=2)
    fabric.launch()
    model, optimizer = fabric.setup(
        model := new_model(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    fabric.backward(model(torch.ones(2, 8) * (1 + world.rank)).square().mean())
    optimizer.step()
    gathered = fabric.all_gather(model.module[0].bias.detach())
    assert all(torch.equal(bias, gathered[0]) for bias in gathered)
