"""Wraps the model in DDP or FSDP2."""

# No postponed annotations in this module: DDP reads the annotations of its hook.

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.model import Transformer
from pytest_mnode.reference_job.spans import Spans


def parallel(
    model: Transformer, config: JobConfig, device: torch.device, group: Any, spans: Spans
) -> nn.Module:
    """`model`, parallel over the ranks of `group`, with averaged gradients."""
    if config.parallel == "ddp":
        ids = [device.index] if device.type != "cpu" else None
        wrapped = DistributedDataParallel(
            model,
            device_ids=ids,
            process_group=group,
            bucket_cap_mb=config.bucket_bytes / (1 << 20),
        )
        wrapped.register_comm_hook(None, AveragedGradients(group, spans))
        return wrapped
    mesh = DeviceMesh.from_group(group, device.type)
    bfloat16 = config.dtype == "bfloat16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bfloat16 else None, reduce_dtype=torch.float32
    )
    parts = (model.embedding, *model.blocks, model.head)
    for part in (*parts, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return model


@contextlib.contextmanager
def summing_up(model: nn.Module, last: bool) -> Iterator[None]:
    """Context of one of several passes: gradients go over the fabric only with the last pass."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    elif isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield


class AveragedGradients:
    """The hook that averages a bucket as DDP itself does.

    What it does within a block's backward pass is none of its compute.
    """

    def __init__(self, group: Any, spans: Spans) -> None:
        self._group, self._spans = group, spans
        self._ranks = dist.get_world_size(group)
        self.__name__ = self.__qualname__ = type(self).__name__  # DDP logs it

    def __call__(
        self,
        _: Any,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        with self._spans.aside():
            gradients = bucket.buffer().div_(self._ranks)
            work = dist.all_reduce(gradients, group=self._group, async_op=True)
        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(
            lambda future: future.value()[0]
        )
        return reduced
