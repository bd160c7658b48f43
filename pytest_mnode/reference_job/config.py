"""The config of a run: one JSON file, checked once, before torch is imported."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.checkpoint.shared import VISIBLE_S

PARALLEL = ("ddp", "fsdp2")
DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "accelerator", "cpu")
CUBLAS, REPEATABLE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""cuBLAS reads this variable when it starts; without it torch refuses deterministic products.
Source: cuBLAS library documentation, "Results Reproducibility"."""
ALGORITHM, RING = "NCCL_ALGO", "Ring"
"""NCCL reads this variable when it creates a communicator. A ring sums in the same order in each
call; switches that reduce (NVLS) do not. Source: NVIDIA/nccl, issue 1497."""

_MOST = (1 << 63) - 1
_LEAST = {
    **{"seed": 0, "vocab": 2, "context": 2, "width": 1, "heads": 1, "layers": 1, "samples": 1},
    **{"global_batch": 1, "accumulation": 1, "steps": 1, "warmup_steps": 0, "learning_rate": 0.0},
    **{"compute_s": 0.0, "checkpoint_every": 0, "keep": 1, "hold_checkpoint": 1, "pause_s": 0.0},
    "bucket_bytes": 1,
    "dropout": 0.0,
    "meet_s": 0.1,
    "visible_s": 0.1,
}


@dataclass(frozen=True, slots=True)
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
    hold_checkpoint: step whose checkpoint is held open while it is written, so that a kill hits it.
    hold_after: steps after which the job waits, once each, so that a kill finds it running.
    pause_s: sleep after every step, outside the measured time.
    """

    directory: str
    seed: int = 0
    vocab: int = 256
    context: int = 32
    width: int = 64
    heads: int = 4
    layers: int = 4
    dropout: float = 0.1
    samples: int = 1024
    global_batch: int = 16
    accumulation: int = 1
    steps: int = 20
    learning_rate: float = 3e-3
    warmup_steps: int = 5
    parallel: str = "ddp"
    dtype: str = "float32"
    device: str = "auto"
    bucket_bytes: int = 25 << 20
    compute_s: float | None = None
    checkpoint_every: int = 0
    keep: int = 2
    reshard: bool = False
    meet_s: float = 60.0
    visible_s: float = VISIBLE_S
    hold_checkpoint: int | None = None
    hold_after: tuple[int, ...] = ()
    deterministic: bool = True
    pause_s: float = 0.0

    @property
    def settings(self) -> dict[str, str]:
        """Variables that libraries read when they start; those that the user set stay."""
        return {CUBLAS: REPEATABLE} | ({ALGORITHM: RING} if self.deterministic else {})

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, str(field.type), getattr(self, field.name))
        for name, known in (("parallel", PARALLEL), ("dtype", DTYPES), ("device", DEVICES)):
            if getattr(self, name) not in known:
                _refuse(name, getattr(self, name), " or ".join(f'"{word}"' for word in known))
        if self.dropout >= 1:
            _refuse("dropout", self.dropout, "a number below 1")
        if self.seed >= 1 << 32:
            _refuse("seed", self.seed, "a number below 2**32")
        if not self.directory:
            _refuse("directory", self.directory, "the path of a directory")
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
            given = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{path}: not JSON: {error}") from None
        except RecursionError:
            raise UsageError(f"{path}: not the config of a run: nested too deeply") from None
        try:
            return cls.from_dict(given)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, given: Any) -> Self:
        """A config from keys and values. Raises UsageError for a key that is unknown or missing."""
        if not isinstance(given, Mapping):
            raise UsageError(f"the config of a run is a JSON object, not {given!r:.60}")
        known = {field.name for field in fields(cls)}
        for key in given:
            if key not in known:
                raise UsageError(f"unknown key {key!r}; known keys are {', '.join(sorted(known))}")
        if "directory" not in given:
            raise UsageError("key 'directory' is missing: the directory of the run")
        steps = given.get("hold_after", ())
        steps = tuple(steps) if isinstance(steps, list) else steps  # JSON has no tuples
        return cls(**{**given, "hold_after": steps})

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

    @property
    def holding(self) -> Path:
        """File that appears when the checkpoint of `hold_checkpoint` is held open, and stays."""
        return Path(self.directory) / "HOLDING"

    def held_after(self, step: int) -> Path:
        """File that appears when the job begins to wait after this step of `hold_after`."""
        return Path(self.directory) / f"HELD-{step}"

    def local_batch(self, ranks: int) -> int:
        """Samples of one pass of one rank. Raises UsageError if they do not divide evenly."""
        if self.global_batch % (ranks * self.accumulation):
            wanted = f"a multiple of {ranks} ranks × accumulation={self.accumulation}"
            _refuse("global_batch", self.global_batch, wanted)
        return self.global_batch // (ranks * self.accumulation)


def device_for(accelerators_per_node: int) -> str:
    """The device of ranks on such nodes: CPUs only if there are no accelerators."""
    return "accelerator" if accelerators_per_node else "cpu"


def spans_of(config: JobConfig) -> int:
    """The number of timed spans in one pass of the model: embedding, blocks, head."""
    return config.layers + 2


def _check(name: str, kind: str, value: Any) -> None:
    if value is None and kind.endswith("| None"):
        return
    kind = kind.removesuffix(" | None")
    if kind.startswith("tuple"):
        if not (isinstance(value, tuple) and all(type(one) is int and one >= 1 for one in value)):
            _refuse(name, value, "a list of whole numbers of at least 1")
        return
    accepted = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}[kind]
    wrong_bool = isinstance(value, bool) and kind != "bool"
    if wrong_bool or not isinstance(value, accepted):
        words = {"int": "a whole number", "float": "a number", "str": "a string"}
        _refuse(name, value, words.get(kind, "true or false"))
    if kind == "int" and value > _MOST:
        _refuse(name, f"a number of {value.bit_length()} bits", "less than 2**63")
    if kind in ("int", "float") and not (_finite(value) and value >= _LEAST[name]):
        _refuse(name, value, f"at least {_LEAST[name]}")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False


def _refuse(name: str, value: Any, wanted: str) -> None:
    raise UsageError(f"{name}={value!r}: give {wanted}")
