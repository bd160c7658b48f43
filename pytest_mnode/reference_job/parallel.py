"""Wraps the model in DDP or FSDP2, and records every collective in the timeline."""

# No postponed annotations in this module: DDP reads the annotations of its hook.

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
        spans.timeline.observed = True
        return wrapped
    mesh = DeviceMesh.from_group(group, device.type)
    bfloat16 = config.dtype == "bfloat16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bfloat16 else None, reduce_dtype=torch.float32
    )
    for part in (model.embedding, *model.blocks, model.head):
        _shard(part, mesh, policy, spans)
    return _shard(model, mesh, policy, spans)


def _shard(
    module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy, spans: Spans
) -> nn.Module:
    sharded: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
    if any(True for _ in module.parameters(recurse=False)) or any(module.children()):
        note = getattr(sharded, "set_custom_all_gather", None)
        if note is not None:  # older torch: hidden time is not known
            note(NotedSingle(spans, "all_gather"))
            sharded.set_custom_reduce_scatter(NotedSingle(spans, "reduce_scatter"))
            spans.timeline.observed = True
    return module


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


class _Noted:
    """A collective that records in the timeline when it was entered, and when it was done."""

    name = ""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """The memory that FSDP2 requests."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _began(self) -> Callable[..., None]:
        """The function to call with the bytes when the collective is done."""
        timeline = self._spans.timeline
        began = timeline.clock.mark()

        def done(size: int, *_: Any) -> None:
            timeline.collectives.append((size, began, timeline.clock.mark(), self.name))

        return done


class AveragedGradients(_Noted):
    """The hook that averages a bucket as DDP itself does."""

    name = "all_reduce"

    def __init__(self, group: Any, spans: Spans) -> None:
        super().__init__(spans)
        self._group = group
        self._ranks = dist.get_world_size(group)
        self.__name__ = self.__qualname__ = type(self).__name__  # DDP logs it

    def __call__(
        self,
        _: Any,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        with self._spans.aside():
            done = self._began()
            gradients = bucket.buffer().div_(self._ranks)
            work = dist.all_reduce(gradients, group=self._group, async_op=True)

        def result(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            done(gradients.nbytes)
            return future.value()[0]

        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(result)
        return reduced


class NotedSingle(_Noted):
    """Replaces the all_gather or reduce_scatter of FSDP2."""

    def __init__(self, spans: Spans, name: str) -> None:
        super().__init__(spans)
        self.name = name

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, **options: Any
    ) -> Any:
        done = self._began()
        older = "all_gather_into_tensor" if self.name == "all_gather" else "reduce_scatter_tensor"
        call = getattr(dist, f"{self.name}_single", None) or getattr(dist, older)
        work = call(output_tensor, input_tensor, group=group, **options)
        note = partial(done, max(output_tensor.nbytes, input_tensor.nbytes))
        if work is None:
            note()
        else:
            work.get_future().then(note)
        return work
