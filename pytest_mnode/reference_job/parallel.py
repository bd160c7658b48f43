"""Wraps the model in DDP or FSDP2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.model import Transformer
from pytest_mnode.reference_job.spans import Spans


def parallel(
    model: Transformer,
    config: JobConfig,
    device: torch.device,
    group: Any,
    spans: Spans,
    *,
    whole: bool = False,
) -> nn.Module:
    """`model`, parallel over the ranks of `group`, with averaged gradients. whole: FSDP2 gathers
    and scatters all of it at once, so that nothing overlaps."""
    if config.parallel == "ddp":
        ids = [device.index] if device.type != "cpu" else None
        wrapped = DistributedDataParallel(
            model,
            device_ids=ids,
            process_group=group,
            bucket_cap_mb=config.bucket_bytes / (1 << 20),
        )
        # As DDP itself averages. Within a block's backward pass it is none of the block's compute.
        wrapped.register_comm_hook(group, spans.aside()(allreduce_hook))
        return wrapped
    # Here, because its import takes half a second of CPU, with sympy.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = DeviceMesh.from_group(group, device.type)
    bfloat16 = config.dtype == "bfloat16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bfloat16 else None, reduce_dtype=torch.float32
    )
    parts = () if whole else (model.embedding, *model.blocks, model.head)
    for part in (*parts, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return model


@contextlib.contextmanager
def summing_up(model: nn.Module, last: bool) -> Iterator[None]:
    """Context of one of several passes: gradients go over the fabric only with the last pass."""
    if isinstance(model, DistributedDataParallel):
        with contextlib.nullcontext() if last else model.no_sync():
            yield
    else:
        model.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield
