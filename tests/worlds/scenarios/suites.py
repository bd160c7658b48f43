# mypy: ignore-errors
# ruff: noqa: PT009
"""Test classes in the style of torch and DeepSpeed, which start processes themselves."""

from __future__ import annotations

import os
import shutil
import sys
import time
import types
import unittest
from pathlib import Path

import pytest
import torch
import torch._dynamo  # once for all ranks
import torch.distributed as dist
from torch.distributed import checkpoint, rpc
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_distributed import (
    TEST_SKIPS,
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    requires_gloo,
    requires_nccl,
    skip_if_lt_x_gpu,
    skip_if_win32,
)
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorContinuousTestBase,
    DTensorTestBase,
    with_comms,
)

pytestmark = pytest.mark.mnode(nodes=2)


class Base(MultiProcessTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        os.environ["SET_UP_BY"] = str(os.getpid())
        self._spawn_processes()

    def group(self, **options):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size, **options
        )
        return dist.group.WORLD


class BaseOfFour(Base):
    @property
    def world_size(self) -> int:
        return 4


class TestCollectives(BaseOfFour):
    def test_all_reduce(self):
        group = self.group()
        self.assertEqual((dist.get_rank(), dist.get_world_size()), (self.rank, 4))
        self.assertEqual(self.is_master, self.rank == 0)
        x = torch.full((3,), float(self.rank))
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((3,), 6.0))
        self.assertEqual(functional_all_reduce(torch.ones(2), "sum", group).tolist(), [4, 4])
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = torch.tensor([1 + self.rank])
        dist.all_reduce(x, group=halves[self.rank // 2])
        self.assertEqual(x.item(), 3 if self.rank < 2 else 7)

    def test_one_parent_and_seed(self):
        self.group()
        found = [None] * 4
        dist.all_gather_object(
            found, (self.file_name, os.environ["SET_UP_BY"], torch.rand(1).item())
        )
        self.assertEqual(len(set(found)), 1)


class TestGroups(Base):
    def test_by_init_method(self):
        dist.init_process_group(
            "gloo",
            init_method=f"file://{self.file_name}",
            rank=self.rank,
            world_size=self.world_size,
        )
        x = torch.tensor([self.rank])
        dist.broadcast(x, src=1)
        self.assertEqual(x.item(), 1)

    def test_group_made_twice(self):
        for round_ in range(3):
            self.group()
            x = torch.tensor([round_ + self.rank])
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
            self.assertEqual(x.item(), round_ + 1)
            dist.destroy_process_group()

    def test_own_file(self):
        """The test's file and what it writes there are removed with it."""
        Path(self.file_name).write_text("data")

    def test_leaves_its_group(self):
        self.group()
        os.environ["LEFT_BEHIND"] = "1"

    def test_nothing_was_left(self):
        self.assertNotIn("LEFT_BEHIND", os.environ)
        self.assertFalse(dist.is_initialized())


class TestRemovesItsFile(Base):
    def tearDown(self) -> None:
        super().tearDown()
        Path(self.file_name).unlink()

    def test_runs(self):
        self.group()


class TestSkips(Base):
    @skip_if_lt_x_gpu(8)
    def test_too_few_gpus(self):
        raise AssertionError

    @unittest.skip("not today")
    def test_unittest_skip(self):
        raise AssertionError

    def test_skip_in_the_body(self):
        raise unittest.SkipTest("found out late")

    def test_exit_code_of_a_skip(self):
        sys.exit(TEST_SKIPS["no_cuda"].exit_code)

    @requires_gloo()
    @skip_if_win32()
    def test_gloo_is_there(self):
        self.group()
        dist.barrier()

    @requires_nccl()
    def test_needs_nccl(self):
        self.assertTrue(dist.is_nccl_available())

    @unittest.expectedFailure
    def test_expected_failure(self):
        self.assertEqual(self.rank, 1)


class TestExitCodes(Base):
    def setUp(self) -> None:
        super().setUp()
        body = getattr(self, self._testMethodName).__wrapped__
        if "expected" in self._testMethodName:
            self.special_return_code_checks[body] = 7
        elif "any" in self._testMethodName:
            self.skip_return_code_checks.append(body)

    def test_expected_exit(self):
        self.group()
        dist.barrier()
        os._exit(7)

    def test_expected_exit_that_did_not_come(self):
        self.group()
        dist.barrier()

    def test_any_exit(self):
        os.abort()

    def test_exit_zero(self):
        sys.exit(0)


@instantiate_parametrized_tests
class TestParametrised(Base):
    @parametrize("size", [1, 1000])
    def test_sum(self, size):
        self.group()
        x = torch.ones(size)
        dist.all_reduce(x)
        self.assertEqual(x.sum().item(), 2 * size)


class TestPerDevice(DistributedTestBase):
    @property
    def world_size(self) -> int:
        return 2

    def test_create_group(self, device):
        self.create_pg(device)
        x = torch.ones(2, device=device)
        dist.all_reduce(x)
        self.assertEqual(x.tolist(), [2, 2])


instantiate_device_type_tests(TestPerDevice, globals(), only_for=["cpu"])


class TestTraining(Base):
    def model(self):
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

    def loss(self, model):
        return model(torch.full((2, 8), float(self.rank + 1))).sum()

    def test_ddp(self):
        self.group()
        model, alone = DistributedDataParallel(self.model()), self.model()
        self.loss(model).backward()
        sum(alone(torch.full((2, 8), float(r + 1))).sum() / 2 for r in range(2)).backward()
        for one, other in zip(model.module.parameters(), alone.parameters(), strict=True):
            self.assertEqual(one.grad, other.grad)

    def test_checkpoint(self):
        self.group()
        folder = [f"{self.file_name}-checkpoint"]
        dist.broadcast_object_list(folder)
        mesh = init_device_mesh("cpu", (2,))
        saved = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        checkpoint.save({"x": saved}, checkpoint_id=folder[0])
        loaded = distribute_tensor(torch.zeros(8), mesh, [Shard(0)])
        checkpoint.load({"x": loaded}, checkpoint_id=folder[0])
        self.assertEqual(loaded.full_tensor(), torch.arange(8.0))  # all have loaded
        if self.rank == 0:
            shutil.rmtree(folder[0])

    def test_rpc(self):
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{self.file_name}")
        rpc.init_rpc(
            f"worker{self.rank}", rank=self.rank, world_size=2, rpc_backend_options=options
        )
        peer = f"worker{1 - self.rank}"
        self.assertEqual(rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), 3)).tolist(), [4, 4])
        rpc.shutdown()


class TestDTensor(DTensorTestBase):
    @with_comms
    def test_distribute(self):
        mesh = self.build_device_mesh()
        whole = torch.arange(16.0).reshape(4, 4)
        x = distribute_tensor(whole, mesh, [Shard(0)])
        self.assertEqual(x.to_local().shape, (1, 4))
        self.assertEqual(x.redistribute(mesh, [Replicate()]).to_local(), whole)

    @with_comms
    def test_subtests(self):
        self.run_subtests({"dim": [0, 1]}, self._shard_on)

    def _shard_on(self, dim):
        x = distribute_tensor(torch.ones(4, 4), self.build_device_mesh(), [Shard(dim)])
        self.assertEqual(x.to_local().shape[dim], 1)


class TestContinuous(MultiProcContinuousTest):
    world_size = 4

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_first(self):
        x = torch.tensor([self.rank])
        dist.all_reduce(x)
        self.assertEqual(x.item(), 6)
        type(self).group_of_first = dist.group.WORLD

    def test_group_is_kept(self):
        self.assertIs(self.group_of_first, dist.group.WORLD)
        self.assertEqual((self.rank, self.world_size), (dist.get_rank(), 4))

    def test_skips_by_exit_code(self):
        sys.exit(TEST_SKIPS["multi-gpu-2"].exit_code)


class TestContinuousDTensor(DTensorContinuousTestBase):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    @property
    def device_type(self):
        return "cpu"

    def test_mesh(self):
        x = distribute_tensor(torch.ones(4), self.build_device_mesh(), [Shard(0)])
        self.assertEqual(x.full_tensor().sum().item(), 4)


class TestThreads(MultiThreadedTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def test_in_one_process(self):
        x = torch.tensor([self.rank])
        dist.all_reduce(x)
        self.assertEqual(x.item(), 1)


LAYERS = []


def init_distributed(dist_backend):
    LAYERS.append(dist_backend)


deepspeed = types.ModuleType("deepspeed")
deepspeed.init_distributed = init_distributed
no_device = types.SimpleNamespace(is_available=lambda: False)
deepspeed.accelerator = types.SimpleNamespace(get_accelerator=lambda: no_device)
sys.modules["deepspeed"] = deepspeed


class DistributedTest:
    """Behaves like DeepSpeed's class of this name: each method runs in every rank."""

    is_dist_test = True
    world_size = 2
    backend = "gloo"
    init_distributed = True
    requires_cuda_env = False


class TestDeepSpeedStyle(DistributedTest):
    @pytest.mark.parametrize("factor", [1, 3])
    def test_sum(self, factor):
        x = torch.tensor([factor])
        dist.all_reduce(x)
        assert x.item() == 2 * factor
        assert LAYERS[-1] == "gloo"

    def test_one_temporary_directory(self, tmp_path):
        found = [None] * 2
        dist.all_gather_object(found, str(tmp_path))
        assert len(set(found)) == 1
        assert tmp_path.is_dir()

    @pytest.mark.world_size(4)
    def test_own_size(self):
        assert dist.get_world_size() == 4


class TestDeepSpeedSizes(DistributedTest):
    world_size = (2, 4)

    def test_each(self):
        assert dist.get_world_size() in (2, 4)


class TestDeepSpeedOnDevices(DistributedTest):
    requires_cuda_env = True

    def test_needs_a_device(self):
        raise AssertionError


class TestDeepSpeedWithoutGroup(DistributedTest):
    init_distributed = False

    def test_own_group(self):
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        assert dist.get_world_size() == 2
        dist.barrier()  # a group that ends at once would leave the other half connected
        dist.destroy_process_group()


class TestFailing(BaseOfFour):
    def test_one_rank_asserts(self):
        self.group()
        if self.rank == 1:
            self.assertEqual(self.rank, 2)
        dist.barrier()

    def test_one_subtest_fails(self):
        self.group()
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual((self.rank, number), (2, 1))

    @pytest.mark.mnode(timeout=5)
    def test_one_rank_never_comes(self):
        self.group()
        if self.rank == 3:
            time.sleep(600)
        dist.barrier()

    def test_one_rank_exits(self):
        self.group()
        if self.rank == 2:
            os._exit(3)
        dist.barrier()

    def test_exit_after_the_last_collective(self):
        self.group()
        dist.barrier()
        if self.rank == 2:
            os._exit(3)

    def test_one_rank_skips(self):
        if self.rank == 1:
            raise unittest.SkipTest("alone")


class TestContinuousFailing(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_a_fails(self):
        self.assertEqual(self.rank, 0)
        dist.barrier()

    def test_b_passes(self):
        dist.barrier()
