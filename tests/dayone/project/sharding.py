"""Sharded weights, tensors and checkpoints, and a pipeline."""
# mypy: ignore-errors

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss


@pytest.fixture(scope="module")
def mesh(process_group, device, world_size):
    """Kept for all tests of this module."""
    return init_device_mesh(device.type, (2, world_size // 2), mesh_dim_names=("dp", "tp"))


def whole(model):
    return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}


def trained(model, inputs, targets):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mse_loss(model(inputs), targets).backward()
    optimizer.step()
    return model


@pytest.mark.parametrize("dims", ["dp", ("dp", "tp")], ids=["one dimension", "hybrid"])
def test_fsdp2_trains_as_one_process_does(dims, mesh, new_model, batch, rank):
    model = fully_shard(new_model(), mesh=mesh[dims])
    inputs, targets = batch
    parts, mine = (2, mesh["dp"].get_local_rank()) if dims == "dp" else (4, rank)
    trained(model, inputs.chunk(parts)[mine], targets.chunk(parts)[mine])
    expected = trained(new_model(), inputs, targets).state_dict()
    torch.testing.assert_close(whole(model), dict(expected))


def test_tensor_parallel_computes_as_one_process_does(mesh, new_model, batch):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(new_model(), mesh["tp"], plan)
    assert model[0].weight.to_local().shape == (8, 8)
    torch.testing.assert_close(model(batch[0]), new_model()(batch[0]))


def test_dtensor_is_redistributed(mesh, record_property):
    value = torch.arange(32.0).reshape(8, 4)
    rows = distribute_tensor(value, mesh, [Shard(0), Replicate()])
    assert rows.to_local().shape == (4, 4)
    columns = rows.redistribute(placements=[Replicate(), Shard(1)])
    assert columns.to_local().shape == (8, 2)
    assert torch.equal(columns.full_tensor(), value)
    record_property("local sum", columns.to_local().sum().item())


def test_dtensor_matmul(mesh):
    made = torch.Generator().manual_seed(4)
    a, b = torch.randn(8, 6, generator=made), torch.randn(6, 4, generator=made)
    product = distribute_tensor(a, mesh["dp"], [Shard(0)]) @ distribute_tensor(
        b, mesh["dp"], [Replicate()]
    )
    assert isinstance(product, DTensor)
    torch.testing.assert_close(product.full_tensor(), a @ b)


def test_pipeline_computes_as_one_process_does(process_group, world, device, new_model, batch):
    torch.manual_seed(5)
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(world.size)])
    stage = PipelineStage(layers[world.rank], world.rank, world.size, device)
    schedule = ScheduleGPipe(stage, n_microbatches=4)
    inputs = batch[0]
    made = schedule.step(inputs) if world.rank == 0 else schedule.step()
    if world.rank == world.size - 1:
        torch.testing.assert_close(made, nn.Sequential(*layers)(inputs))


def test_checkpoint_of_4_is_read_by_2(mesh, rank, new_model, batch, shared_tmp_path):
    four = init_device_mesh("cpu", (4,))
    trained(model := fully_shard(new_model(), mesh=four), *batch)
    dcp.save(get_model_state_dict(model), checkpoint_id=shared_tmp_path)
    pair = dist.new_group([0, 1])
    if rank < 2:
        resumed = fully_shard(new_model(), mesh=DeviceMesh.from_group(pair, "cpu"))
        state = get_model_state_dict(resumed)
        dcp.load(state, checkpoint_id=shared_tmp_path, process_group=pair)
        set_model_state_dict(resumed, state)
        expected = trained(new_model(), *batch).state_dict()
        torch.testing.assert_close(whole(resumed), dict(expected))


def test_checkpoint_is_written_beside_training(mesh, new_model, batch, shared_tmp_path):
    model = fully_shard(new_model(), mesh=mesh["dp"])
    saved = dcp.async_save({"model": get_model_state_dict(model)}, checkpoint_id=shared_tmp_path)
    before = whole(model)
    trained(model, *batch)
    saved.result(timeout=60)
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=shared_tmp_path)
    found = {name: tensor.full_tensor() for name, tensor in state["model"].items()}
    torch.testing.assert_close(found, before)


def test_a_tensor_of_one_rank_meets_a_dtensor(mesh):
    rows = distribute_tensor(torch.ones(4, 4), mesh["dp"], [Shard(0)])
    rows @ torch.ones(4, 4)
