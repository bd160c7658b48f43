"""Promises about storage: speed, what nodes see of each other's files, and a full file system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pytest_mnode.spec.fields import (
    AbsolutePath,
    Bytes,
    BytesPerSecond,
    Positive,
    Seconds,
    Section,
    Share,
)
from pytest_mnode.spec.inventory import Criterion, Inventory

Model = Literal["8b", "70b", "405b", "1t"]
LockKind = Literal["flock", "fcntl"]
Tool = Literal["own", "fio", "elbencho"]
MODELS: dict[str, tuple[int, int]] = {
    "8b": (105 * 2**30, 8),
    "70b": (912 * 2**30, 64),
    "405b": (int(5.29 * 2**40), 512),
    "1t": (18 * 2**40, 1024),
}
"""Size of a checkpoint in bytes (weights and optimiser), and how many ranks write it. Source:
MLPerf Storage 3.0, Rules.md, table 2, whose GB and TB are binary, as the same page says."""
_FREE = 0.1
_REPEATS = 5
_Repeats = Annotated[int, Field(strict=True, ge=2)]


class CheckpointPromise(Section):
    """All nodes write a checkpoint at the same time, and each reads what another node wrote."""

    model: Model | None = None
    """The model whose checkpoint is written, as MLPerf Storage 3.0 has it: each rank of this
    cluster writes as much as a rank of that model's job."""
    size_bytes: Bytes | None = Field(None, alias="size")
    """Bytes of each node, in place of a model, such as 64 GiB."""
    at_most_bytes: Bytes | None = Field(None, alias="at_most")
    """Most bytes of each node; left out: the node's whole share of the model's checkpoint."""
    threads: Annotated[int, Field(strict=True, ge=1, le=256)] = 8
    """Files of each node, each written and read by a thread of its own."""
    write_at_least_bytes_s: BytesPerSecond | None = Field(None, alias="write_at_least")
    """Rate of all nodes together, from the common start to the end of the slowest."""
    read_at_least_bytes_s: BytesPerSecond | None = Field(None, alias="read_at_least")
    """The same for reading."""
    node_write_at_least_bytes_s: BytesPerSecond | None = Field(None, alias="node_write_at_least")
    """Rate of the slowest node, while all write."""
    node_read_at_least_bytes_s: BytesPerSecond | None = Field(None, alias="node_read_at_least")
    """Rate of the slowest node, while all read."""
    peers_at_least_fraction: Share = 0.7
    """Least rate of a node, as a fraction of the median of all nodes at the same time."""
    together_at_least_fraction: Share | None = None
    """Rate of all nodes at once, as a fraction of their number times the rate of one node alone."""
    repeats: _Repeats = _REPEATS
    """How often each is measured; up to four times as often while a bound is undecided."""

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if (self.model is None) == (self.size_bytes is None):
            raise ValueError("a checkpoint has a model or a size; accepted: one of the two")
        return self

    def node_bytes(self, ranks_per_node: int) -> int:
        """Bytes that a node writes, a multiple of `threads` whole blocks of 4 MiB, or of 4 KiB if
        these would be too many."""
        whole = self.whole_node_bytes(ranks_per_node)
        wanted = min(whole, self.at_most_bytes or whole)
        block = 2**22 if wanted >= 2**22 * self.threads else 2**12
        each = max(1, wanted // (block * self.threads))
        return each * block * self.threads

    def whole_node_bytes(self, ranks_per_node: int) -> int:
        """Bytes of a node's share of the whole checkpoint."""
        if self.model is None:
            return self.size_bytes or 0
        size, ranks = MODELS[self.model]
        return size // ranks * max(1, ranks_per_node)

    @property
    def what(self) -> str:
        """The checkpoint in few words."""
        return f"checkpoint of {self.model}" if self.model else "checkpoint"


class SmallFilesPromise(Section):
    """Small files are made, looked up and removed, each node in a directory of its own."""

    files: Annotated[int, Field(strict=True, ge=10, le=1_000_000)] = 1000
    """Files of each node; each holds 4 KiB."""
    threads: Annotated[int, Field(strict=True, ge=1, le=256)] = 8
    """Threads of each node."""
    create_at_least_per_s: Positive | None = Field(None, alias="create_at_least")
    """Files that all nodes together create in a second."""
    stat_at_least_per_s: Positive | None = Field(None, alias="stat_at_least")
    """Look-ups in a second of files that another node created."""
    delete_at_least_per_s: Positive | None = Field(None, alias="delete_at_least")
    """Files that all nodes together remove in a second."""
    repeats: _Repeats = _REPEATS
    """As of a checkpoint."""


class RandomReadsPromise(Section):
    """All nodes read at random places of files that another node wrote, as data loaders do."""

    block_bytes: Bytes = Field(65536, alias="block")
    """Size of a read, a multiple of 4 KiB."""
    size_bytes: Bytes = Field(alias="size")
    """Bytes of the files of each node."""
    threads: Annotated[int, Field(strict=True, ge=1, le=256)] = 8
    """Readers of each node."""
    duration_s: Seconds = Field(5.0, alias="for")
    """How long they read."""
    at_least_bytes_s: BytesPerSecond | None = Field(None, alias="at_least")
    """Rate of all nodes together."""
    reads_at_least_per_s: Positive | None = Field(None, alias="reads_at_least")
    """Reads of all nodes together in a second."""
    repeats: _Repeats = _REPEATS
    """As of a checkpoint."""

    @model_validator(mode="after")
    def _is_aligned(self) -> Self:
        if self.block_bytes % 4096 or self.size_bytes < self.block_bytes * self.threads:
            raise ValueError(
                f"block {self.block_bytes} B, size {self.size_bytes} B; accepted: a block of a "
                f"multiple of 4 KiB, and a size of {self.threads} blocks or more"
            )
        return self


class BesidePromise(Section):
    """A checkpoint is written while ranks of all nodes run all-reduces. A loss is the share of the
    rate that each has by itself."""

    size_bytes: Bytes = Field(64 << 20, alias="size")
    """Size of the all-reduce."""
    storage_loss_at_most: Share | None = None
    """Largest loss of the checkpoint's rate; left out: recorded."""
    collective_loss_at_most: Share | None = None
    """Largest loss of the all-reduces' rate; left out: recorded."""
    repeats: _Repeats = _REPEATS
    """As of a checkpoint."""


class PathPromise(Section):
    """What is promised of one path. What is left out is not promised."""

    local: Literal[True] | None = None
    """true: each node has its own, such as a local NVMe; left out: all nodes share it."""
    checkpoint: CheckpointPromise | None = None
    small_files: SmallFilesPromise | None = None
    random_reads: RandomReadsPromise | None = None
    beside_collectives: BesidePromise | None = None
    """The checkpoint's size is that of `checkpoint`."""
    renamed_within_s: Seconds | None = Field(None, alias="renamed_within")
    """Limit until all other nodes see a file that one wrote and renamed, with its content."""
    locks: tuple[LockKind, ...] = ()
    """Locks that exclude processes on other nodes."""
    replaced_files: Literal["readable"] | None = None
    """readable: a file that one node replaces stays readable to those that have it open."""
    limit_bytes: Bytes | None = Field(None, alias="limit")
    """Most bytes that this path holds, by its size or by a quota: a checkpoint that exceeds it ends
    with an error, and the one before stays whole. Only for a path whose filling disturbs nobody."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for key in ("renamed_within_s", "locks", "replaced_files"):
            if self.local and getattr(self, key):
                name = key.removesuffix("_s")
                raise ValueError(f"{name} of a local path; accepted: of one that nodes share")
        if self.beside_collectives and not self.checkpoint:
            raise ValueError("beside_collectives without checkpoint; accepted: with its size")
        if len(set(self.locks)) < len(self.locks):
            raise ValueError("locks lists one twice; accepted: flock, fcntl, each once")
        if not self.model_fields_set - {"local"}:
            raise ValueError("promises nothing; accepted: checkpoint, locks, limit and others")
        return self

    def expected_s(self, nodes: int, ranks_per_node: int) -> float:
        """Seconds that its questions take where each rate is as promised, and 0.5 GB/s of all nodes
        or more: what promises less, such as a floor that only a fault falls below, is faster.

        A rate that nothing is promised of is the other one, else 1 GB/s.
        """
        found, writes = 2.0, 1e9
        if (point := self.checkpoint) is not None:
            size = nodes * point.node_bytes(ranks_per_node)
            kinds = [
                max(getattr(point, key) or 0, nodes * (getattr(point, f"node_{key}") or 0))
                for key in ("write_at_least_bytes_s", "read_at_least_bytes_s")
            ]
            rates = [max(kind or max(kinds) or 1e9, 5e8) for kind in kinds]
            once_s, writes = sum(size / rate for rate in rates), rates[0]
            alone = 1 if point.together_at_least_fraction is None else 3
            found += point.repeats * alone * once_s
            found += 3 * self.beside_collectives.repeats * once_s if self.beside_collectives else 0
        if (reads := self.random_reads) is not None:
            write_s = nodes * reads.size_bytes / writes
            found += reads.repeats * (reads.duration_s + write_s)
        return found + (self.small_files.repeats if self.small_files is not None else 0)


class StorageCriterion(Criterion):
    """Storage is as fast as promised, and nodes see each other's files as programs need it."""

    paths: Annotated[Mapping[AbsolutePath, PathPromise], Field(min_length=1)]
    """What is promised of each path: a directory that jobs may write to."""
    tool: Tool | None = None
    """What measures rates of checkpoints and of random reads. Left out: fio, else elbencho, the
    first that all nodes have; else the suite's own writer."""
    free_at_most_fraction: Annotated[float, Field(strict=True, gt=0, le=0.9)] = _FREE
    """Most of a path's free space that may be used for a while; what needs more is not tried."""
    give_up_below_bytes_s: BytesPerSecond = Field(10_000_000, alias="give_up_below")
    """Rate of a node below which its transfer is given up: the limit of waits follows from it."""

    def expected_s(self, nodes: int, ranks_per_node: int) -> float:
        """Seconds that all questions take where each rate is as promised."""
        return sum(one.expected_s(nodes, ranks_per_node) for one in self.paths.values())

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each checkpoint that is too small to say anything."""
        for path, one in self.paths.items():
            key = f"criteria.storage.paths.{path}"
            point = one.checkpoint
            if point is None or point.model is None or not cluster.nodes:
                continue
            whole = point.whole_node_bytes(cluster.accelerators.per_node)
            if point.at_most_bytes and point.at_most_bytes < whole // 10:
                yield (
                    f"{key}.checkpoint.at_most: less than a tenth of a node's share of "
                    f"{point.model} ({whole / 2**30:.3g} GiB): servers' caches may take all of it"
                )
