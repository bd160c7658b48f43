"""Records of a run: one JSON line per step and rank, and their reader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pytest_mnode.errors import MnodeError

PARTS = (
    *("input", "forward", "backward", "exposed"),
    *("metrics", "optimiser", "checkpoint", "rest"),
)
"""Parts of a step's time; see `spans`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Fields of every line: the rank that wrote it, and the incarnation of the run.

    incarnation: "requeue.restart", the values of MNODE_REQUEUE and TORCHELASTIC_RESTART_COUNT.
    """

    rank: int
    world_size: int
    node: str
    pid: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord(_Written):
    """A rank is ready to train. time: wall clock, s.

    loaded: step of the checkpoint that it resumes from; None if it starts from the beginning.
    loaded_from: number of ranks that saved it; saved_at: wall clock, s. refused: checkpoints that
    were not accepted, each as "path: reason".
    """

    kind: Literal["start"] = "start"
    time: float
    loaded: int | None
    loaded_from: int | None = None
    saved_at: float | None = None
    load_s: float = 0.0
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(_Written):
    """One optimiser step of one rank. Durations in seconds.

    step: from 1. samples: data-set indices this rank consumed in it, in order. loss: mean over the
    tokens of all ranks; tokens: number on this rank. lr: learning rate of the step. rng: digest of
    the random states after it. began, ended: wall clock; wall_s: measured around the step,
    independently of its parts.
    """

    kind: Literal["step"] = "step"
    step: int
    epoch: int
    samples: tuple[int, ...]
    loss: float
    tokens: int
    lr: float
    rng: str
    began: float
    ended: float
    wall_s: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord(_Written):
    """A checkpoint is complete. begun, ended: wall clock, s; bytes: of the whole checkpoint.

    seconds: of the slowest rank; write_s: of this rank's own files, without waiting for others.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    seconds: float
    write_s: float
    bytes: int
    begun: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord(_Written):
    """A rank has ended normally. Digests are of this rank's own part of the state.

    preempted: the rank was asked to stop, and steps is less than in the config.
    """

    kind: Literal["end"] = "end"
    steps: int
    parameters: str
    optimiser: str
    lr: float
    time: float
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A line that is no record: torn by a kill, or not ours. line: from 1."""

    path: str
    line: int
    reason: str
    kind: Literal["unreadable"] = "unreadable"


Written = StartRecord | StepRecord | CheckpointRecord | EndRecord
Record = Written | UnreadableRecord
LINE: TypeAdapter[Written] = TypeAdapter(
    Annotated[Written, Field(discriminator="kind")],
    config=ConfigDict(ser_json_inf_nan="constants"),  # a loss may be NaN
)


class RecordFile:
    """Appends lines to one rank's file; each is written before `append` returns.

    origin: the fields that all records of this rank share. stored: lines are synced to the disk or
    its server, so that a node that loses power loses no line. A sync takes milliseconds, sometimes
    more.
    """

    def __init__(
        self, directory: Path, rank: int, world_size: int, node: str, stored: bool = True
    ) -> None:
        self.origin: dict[str, Any] = {
            **{"rank": rank, "world_size": world_size, "node": node},
            **{"pid": os.getpid(), "incarnation": incarnation(os.environ)},
        }
        self._stored = stored
        path = directory / f"rank{rank}.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
            size = self._file.tell()
            if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
                self._file.write(b"\n")  # the writer before was killed in the middle of a line
        except OSError as error:
            raise MnodeError(f"{path}: records cannot be written: {error.strerror}") from None

    def append(self, record: Written) -> None:
        """Write one line. Raises MnodeError if it is not written whole."""
        line, rank = LINE.dump_json(record) + b"\n", record.rank
        try:
            written = self._file.write(line)
            if self._stored:
                os.fdatasync(self._file.fileno())
        except OSError as error:
            raise MnodeError(f"rank {rank}: no record written: {error.strerror}") from None
        if written != len(line):
            raise MnodeError(f"rank {rank}: a record was cut at {written} of {len(line)} B")

    def close(self) -> None:
        self._file.close()


def incarnation(env: Mapping[str, str]) -> str:
    """The incarnation of the run: "0.0" is the first, "1.2" one requeue and two restarts later."""
    return f"{env.get('MNODE_REQUEUE', '0')}.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def read_records(directory: str | Path) -> list[Record]:
    """All records below a run's directory (or its `records/`), rank by rank, as written.

    A line that cannot be read, such as the last one of a rank that was killed, becomes an
    UnreadableRecord; no content raises an error. A missing directory has no records.
    """
    place = Path(directory)
    place = place / "records" if (place / "records").is_dir() else place
    found: list[Record] = []
    for path in sorted(place.glob("rank*.jsonl"), key=lambda p: (len(p.name), p.name)):
        try:
            lines = path.read_bytes().decode(errors="replace").split("\n")
        except OSError as error:
            found.append(UnreadableRecord(str(path), 0, f"cannot be read: {error.strerror}"))
            continue
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                found.append(LINE.validate_json(line, strict=True))
            except ValidationError as error:
                first, torn = error.errors()[0], "torn: " if number == len(lines) else ""
                where = ".".join(map(str, first["loc"]))
                why = f"{torn}not a record: {where}: {first['msg']}"
                found.append(UnreadableRecord(str(path), number, why))
    return found
