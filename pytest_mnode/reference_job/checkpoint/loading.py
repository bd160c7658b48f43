"""Loading the newest checkpoint that is proven whole, the same on all ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint.dcp import OWN, MisfitError, plain, read_shards
from pytest_mnode.reference_job.checkpoint.layout import (
    STALE,
    Manifest,
    examine,
    list_names,
    newest_first,
    seal,
    step_of,
    wrong_files,
)
from pytest_mnode.reference_job.checkpoint.ranks import Ranks, StageError

_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that was not used, and why, in one line.

    usable: it is whole, and may be used by a job of its world size, or once all ranks see it.
    """

    step: int
    path: Path
    reason: str
    usable: bool = False

    def __str__(self) -> str:
        return f"{self.path.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checkpoint that all ranks loaded.

    saved_at: seconds since the epoch. world_size: of the ranks that saved it. refused: newer ones.
    own: what this rank gave as its own when it was saved; None where it gave nothing, or the world
    has another size now.
    """

    step: int
    path: Path
    saved_at: float
    world_size: int
    refused: tuple[Refused, ...]
    own: Any = None


class _RefusedError(Exception):
    """A checkpoint is not used, on any rank. half_read: some of it is in the state already."""

    def __init__(self, reason: str, *, usable: bool = False, half_read: bool = False) -> None:
        super().__init__(reason)
        self.usable = usable
        self.half_read = half_read


def load(
    directory: Path, state: dict[str, Any], ranks: Ranks, settle_s: float, reshard: bool
) -> tuple[Loaded | None, tuple[Refused, ...]]:
    """See Store.load. The second value: those that were refused, newest first."""
    refused: list[Refused] = []
    half_read = False
    for path in _seen_by_any(directory, ranks):
        try:
            manifest = _agree_on(path, ranks, settle_s)
            if not reshard and manifest.world_size != ranks.size:
                raise _RefusedError(
                    f"it is of {manifest.world_size} ranks, and these are {ranks.size} "
                    "(reshard accepts it)",
                    usable=True,
                )
            _check_digests(path, manifest, ranks)
            own = _read(state, path, manifest, ranks)
        except _RefusedError as error:
            refused.append(Refused(step_of(path), path, str(error), error.usable))
            half_read = half_read or error.half_read
            continue
        newer = tuple(refused)
        return Loaded(
            manifest.step, path, manifest.saved_at, manifest.world_size, newer, own
        ), newer
    _check_nothing_is_lost(directory, refused, half_read)
    return None, tuple(refused)


def _seen_by_any(directory: Path, ranks: Ranks) -> list[Path]:
    """The checkpoints that any rank sees, newest first."""
    try:
        seen = ranks.run(
            lambda: list_names(directory),
            lambda error: f"cannot list {directory}: {getattr(error, 'strerror', error)}",
        )
    except StageError as error:
        raise CheckpointError(
            f"no checkpoint can be looked for: {ranks.by_rank(error.reasons)}"
        ) from None
    names = {name for of_rank in seen for name in of_rank}
    return [directory / name for name in newest_first(names)]


def _agree_on(path: Path, ranks: Ranks, settle_s: float) -> Manifest:
    """The manifest that all ranks see. Raises _RefusedError where they do not.

    Looks again while some do and others do not.
    """
    end = time.monotonic() + settle_s
    while True:
        found = examine(path)
        proof = seal(found.manifest.text()) if found.manifest else None
        seen = ranks.gather((found.reason, proof, time.monotonic() >= end))
        whole = {proof for reason, proof, _ in seen if reason is None}
        bad = {rank: reason for rank, (reason, _, _) in enumerate(seen) if reason is not None}
        if len(whole) + bool(bad) == 1 or seen[0][2]:
            break
        time.sleep(_LOOK_AGAIN_S)
    if len(whole) > 1 and not bad:
        first = seen[0][1]
        bad = {
            rank: f"another manifest than rank 0 on {ranks.nodes[0]} sees: {STALE}"
            for rank, (_, proof, _) in enumerate(seen)
            if proof != first
        }
    if bad:
        reasons = set(bad.values())
        alike = not whole and len(reasons) == 1
        raise _RefusedError(reasons.pop() if alike else ranks.by_rank(bad), usable=bool(whole))
    assert found.manifest is not None
    return found.manifest


def _check_digests(path: Path, manifest: Manifest, ranks: Ranks) -> None:
    """Raise _RefusedError where a file was changed; each rank reads a share of them."""
    largest_first = sorted(manifest.files, key=lambda name: (-manifest.files[name].bytes, name))
    share = largest_first[ranks.rank :: ranks.size]
    by_rank = ranks.gather(wrong_files(path, manifest, share))
    reasons = {rank: ", ".join(wrong) for rank, wrong in enumerate(by_rank) if wrong}
    if reasons:
        raise _RefusedError(ranks.by_rank(reasons))


def _read(state: dict[str, Any], path: Path, manifest: Manifest, ranks: Ranks) -> Any:
    """Fill the state; this rank's own part. Raises _RefusedError where it is half read."""
    has_own = manifest.own and manifest.world_size == ranks.size
    rank = str(ranks.rank)
    asked: dict[str, Any] = {}
    try:
        ranks.run(lambda: asked.update(plain(state)))
        if has_own:
            asked[OWN] = {rank: ()}
        read_shards(asked, path, ranks)
        ranks.run(lambda: _hand_over(state, asked))
    except MisfitError as error:
        raise CheckpointError(
            f"{path} is whole, and does not fit this job: {error}; it was written with "
            f"torch {manifest.torch}. Give the job that it is of, or another directory"
        ) from None
    except StageError as error:
        raise CheckpointError(f"{path} cannot be loaded: {ranks.by_rank(error.reasons)}") from None
    except RuntimeError as error:
        raise _RefusedError(str(error), half_read=True) from None
    return asked[OWN][rank][0] if has_own else None


def _hand_over(state: dict[str, Any], loaded: dict[str, Any]) -> None:
    for key, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(loaded[key])
        else:
            state[key] = loaded[key]


def _check_nothing_is_lost(directory: Path, refused: list[Refused], half_read: bool) -> None:
    """Loading nothing is right at the first start, and wrong where a good one is there."""
    usable = [one for one in refused if one.usable]
    if usable:
        raise CheckpointError(
            f"no checkpoint of {directory} may be used, and starting anew would lose what "
            f"is there: {'; '.join(map(str, usable))}"
        )
    if half_read:
        raise CheckpointError(
            f"no checkpoint of {directory} could be read, and the state is no longer as "
            f"it was: {'; '.join(map(str, refused))}"
        )
