"""Writing a checkpoint: all ranks do, or none."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint.choose import by_rank, where
from pytest_mnode.reference_job.checkpoint.files import (
    free_text,
    sync_directory,
    told,
    write_synced,
)
from pytest_mnode.reference_job.checkpoint.found import Saved
from pytest_mnode.reference_job.checkpoint.manifest import FileEntry, Manifest
from pytest_mnode.reference_job.checkpoint.names import HOLDING, step_name
from pytest_mnode.reference_job.checkpoint.peers import Peers, StageError
from pytest_mnode.reference_job.checkpoint.placing import Begun, Order, begin, commit, discard, tidy
from pytest_mnode.reference_job.checkpoint.shards import ElsewhereError, plain, write_shards

HOLD_S = 60.0
SETTLE_S = 5.0
"""How long a directory that rank 0 made may take to be seen by all: NFS remembers absence."""
_LOOK_AGAIN_S = 0.1
_OWN = {True: "with a part of its own", False: "without one"}


def save(order: Order, state: dict[str, Any], peers: Peers) -> Saved:
    """Write a checkpoint. Raises CheckpointError, the same on all ranks; nothing is left then."""
    began = time.monotonic()
    begun: Begun | None = None
    try:
        begun = _on_first(peers, order, lambda: begin(order))
        assert begun is not None
        path = order.directory / begun.name
        _all_see(peers, order, path)
        plain_state: dict[str, Any] = {}
        # An object's own state_dict() may fail on one rank, and torch would leave the others alone.
        peers.stage(lambda: plain_state.update(plain(state)), lambda e: told(e, order.directory))
        files = _write(peers, order, plain_state, path)
        if begun.hold:
            _hold(peers, order, path)
        manifest = Manifest(
            step=order.step,
            world_size=peers.size,
            saved_at=time.time(),
            torch=str(torch.__version__),
            own=order.own,
            nodes=tuple(peers.nodes),
            files=files,
        )
        _on_first(peers, order, lambda: commit(order, manifest, path))
        notes = _on_first(peers, order, lambda: tidy(order))
    except StageError as error:
        left = _abandon(peers, order, begun)
        raise CheckpointError(
            f"the checkpoint of step {begun.step if begun else order.step} could not be written: "
            f"{by_rank(error.reasons, peers.nodes)}. {left}"
        ) from None
    seconds = max(peers.gather(time.monotonic() - began))
    final = order.directory / step_name(order.step)
    return Saved(order.step, final, manifest.total_bytes, seconds, begun.notes + notes)


def _on_first(peers: Peers, order: Order, work: Any) -> Any:
    """Have rank 0 do something; its result on all ranks."""
    return peers.stage(
        lambda: work() if peers.rank == 0 else None, lambda error: told(error, order.directory)
    )[0]


def _all_see(peers: Peers, order: Order, path: Path) -> None:
    """Raises StageError where a rank does not see what rank 0 made, or saves something else."""
    end = time.monotonic() + SETTLE_S
    while not path.is_dir() and time.monotonic() < end:
        with contextlib.suppress(OSError):
            list(order.directory.iterdir())  # has a network file system look again
        time.sleep(_LOOK_AGAIN_S)

    def look() -> tuple[int, bool]:
        if not path.is_dir():
            raise _NotSharedError(
                f"{order.directory} is not the directory that rank 0 sees on {peers.nodes[0]} "
                f"({free_text(order.directory)} in it); checkpoints need one that all nodes share"
            )
        return order.step, order.own

    first, *others = peers.stage(look, str)
    wrong = {
        rank: f"saves step {step} {_OWN[own]}, and rank 0 step {first[0]} {_OWN[first[1]]}"
        for rank, (step, own) in enumerate(others, start=1)
        if (step, own) != first
    }
    if wrong:
        raise StageError(wrong)


class _NotSharedError(Exception):
    pass


def _write(peers: Peers, order: Order, state: dict[str, Any], path: Path) -> dict[str, FileEntry]:
    """Have every rank write its shard; all files of all ranks, seen by rank 0 as they were made."""

    def write() -> dict[str, FileEntry]:
        files = write_shards(state, path, peers)
        sync_directory(path)
        return files

    def tell(error: Exception) -> str:
        return "" if isinstance(error, ElsewhereError) else told(error, order.directory)

    try:
        by_ranks = peers.stage(write, tell)
    except StageError as error:
        raise StageError({rank: why for rank, why in error.reasons.items() if why}) from None
    files = {name: entry for of_rank in by_ranks for name, entry in of_rank.items()}

    def check() -> None:
        end = time.monotonic() + SETTLE_S
        for rank, of_rank in enumerate(by_ranks):
            for name, entry in of_rank.items():
                while (there := _size(path / name)) != entry.bytes:
                    if time.monotonic() > end:
                        raise _NotSharedError(
                            f"sees {there or 'none'} of the {entry.bytes} bytes that "
                            f"{where([rank], peers.nodes)} wrote to {path / name}"
                        )
                    time.sleep(_LOOK_AGAIN_S)

    _on_first(peers, order, check)
    return files


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _hold(peers: Peers, order: Order, path: Path) -> None:
    """Stay here, shards written and nothing committed, for somebody to kill the run."""
    _on_first(peers, order, lambda: write_synced(path / HOLDING, b""))
    end = time.monotonic() + HOLD_S
    # Ranks keep in touch: of one that is killed the others hear at once.
    while peers.gather(time.monotonic() < end)[0]:
        time.sleep(_LOOK_AGAIN_S)
    _on_first(peers, order, (path / HOLDING).unlink)


def _abandon(peers: Peers, order: Order, begun: Begun | None) -> str:
    """Remove what was written; says what there is still, the same on all ranks."""
    text = discard(order, begun) if peers.rank == 0 else ""
    return peers.gather(text)[0]
