"""The config of a run: one JSON file, checked once, before torch is imported."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.checkpoint.shared import VISIBLE_S

CUBLAS, REPEATABLE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""cuBLAS reads this variable when it starts; without it torch refuses deterministic products.
Source: cuBLAS library documentation, "Results Reproducibility"."""
ALGORITHM, RING = "NCCL_ALGO", "Ring"
"""NCCL reads this variable when it creates a communicator. A ring sums in the same order in each
call; switches that reduce (NVLS) do not. Source: NVIDIA/nccl, issue 1497."""

DeviceName = Literal["auto", "accelerator", "cpu"]
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Some = Annotated[int, Field(ge=1, lt=1 << 63)]
_Several = Annotated[int, Field(ge=2, lt=1 << 63)]
_Amount = Annotated[float, Field(ge=0)]
_Wait = Annotated[float, Field(ge=0.1)]
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, config=_STRICT)
class JobConfig:
    """The reference job. Sizes are numbers of tokens, samples or steps; durations are seconds.

    dropout: above zero, so that a run that resumes with other random states differs. Each rank
    draws its own masks, so runs on different numbers of ranks are equal only without dropout.
    samples: of the data set, which is one epoch; a whole number of global batches.
    global_batch: samples per optimiser step, on all ranks and over all `accumulation` passes.
    dtype: "bfloat16" computes under autocast; parameters and sums of gradients stay float32.
    device: "accelerator" is refused if there is none; "auto" takes one if there is one.
    bucket_bytes: fewest bytes of gradients that DDP sends at once.
    compute_s: declared duration of the forward and backward passes of one step, filled up by sleep;
    None if nothing is emulated. Only on the CPU.
    directory: of the run; `records/` and `checkpoints/` are made in it.
    checkpoint_every: steps between checkpoints; 0 for none. keep: number of complete ones to keep.
    reshard: whether a checkpoint of another number of ranks is accepted.
    meet_s: how long ranks wait for each other at the start. visible_s: how long they look for a
    file that another rank wrote.
    hold_after: steps after which the job waits, once each, so that a kill finds it running; if the
    step has a checkpoint, while that is not complete.
    pause_s: sleep after every step, outside the measured time.
    """

    directory: Annotated[str, Field(min_length=1)]
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    vocab: _Several = 256
    context: _Several = 32
    width: _Some = 64
    heads: _Some = 4
    layers: _Some = 4
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    samples: _Some = 1024
    global_batch: _Some = 16
    accumulation: _Some = 1
    steps: _Some = 20
    learning_rate: _Amount = 3e-3
    warmup_steps: _Count = 5
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: DeviceName = "auto"
    bucket_bytes: _Some = 25 << 20
    compute_s: _Amount | None = None
    checkpoint_every: _Count = 0
    keep: _Some = 2
    reshard: bool = False
    meet_s: _Wait = 60.0
    visible_s: _Wait = VISIBLE_S
    hold_after: tuple[_Some, ...] = ()
    deterministic: bool = True
    pause_s: _Amount = 0.0

    @property
    def settings(self) -> dict[str, str]:
        """Variables that libraries read when they start; those that the user set stay."""
        return {CUBLAS: REPEATABLE} | ({ALGORITHM: RING} if self.deterministic else {})

    def __post_init__(self) -> None:
        if self.width % self.heads:
            _refuse("width", self.width, f"a multiple of heads={self.heads}")
        if self.samples % self.global_batch:
            wanted = (
                f"a multiple of global_batch={self.global_batch}, so that each sample is seen once"
            )
            _refuse("samples", self.samples, wanted)
        if self.global_batch % self.accumulation:
            _refuse(
                "global_batch", self.global_batch, f"a multiple of accumulation={self.accumulation}"
            )

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a JSON file. Raises UsageError, one line that names file, key and value."""
        try:
            return TypeAdapter(cls).validate_json(Path(path).read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        except ValidationError as error:
            raise UsageError(f"{path}: {_refused(error)}") from None
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def write(self, path: str | Path) -> Path:
        """Write the JSON file that `read` reads, and return its path."""
        path = Path(path)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path

    @property
    def records(self) -> Path:
        return Path(self.directory) / "records"

    @property
    def checkpoints(self) -> Path:
        return Path(self.directory) / "checkpoints"

    def held_after(self, step: int) -> Path:
        """File that appears when the job begins to wait after this step, and stays."""
        return Path(self.directory) / f"HELD-{step}"

    def local_batch(self, ranks: int) -> int:
        """Samples of one pass of one rank. Raises UsageError if they do not divide evenly."""
        if self.global_batch % (ranks * self.accumulation):
            wanted = f"a multiple of {ranks} ranks × accumulation={self.accumulation}"
            _refuse("global_batch", self.global_batch, wanted)
        return self.global_batch // (ranks * self.accumulation)


def device_for(accelerators_per_node: int) -> DeviceName:
    """The device of ranks on such nodes: CPUs only if there are no accelerators."""
    return "accelerator" if accelerators_per_node else "cpu"


def spans_of(config: JobConfig) -> int:
    """The number of timed spans in one pass of the model: embedding, blocks, head."""
    return config.layers + 2


def _refused(error: ValidationError) -> str:
    """The first fault in one line; an unknown key first, as it often explains a missing one."""
    unknown = "unexpected_keyword_argument"
    first = min(error.errors(), key=lambda one: one["type"] != unknown)
    key, value = ".".join(map(str, first["loc"])), f"{first['input']!r:.60}"
    if first["type"] == unknown:
        known = ", ".join(sorted(field.name for field in fields(JobConfig)))
        return f"unknown key {key!r}; known keys are {known}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    return f"{key}={value}: {first['msg']}" if key else f"no config of a run: {first['msg']}"


def _refuse(name: str, value: Any, wanted: str) -> None:
    raise UsageError(f"{name}={value!r}: give {wanted}")
