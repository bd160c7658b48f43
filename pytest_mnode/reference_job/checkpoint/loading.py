"""Loading the newest checkpoint that is proven whole, the same on all ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint.choose import Choice, Seen, by_rank, choose, shares
from pytest_mnode.reference_job.checkpoint.found import Found, Loaded, Refused
from pytest_mnode.reference_job.checkpoint.manifest import Manifest
from pytest_mnode.reference_job.checkpoint.names import read_name
from pytest_mnode.reference_job.checkpoint.peers import Peers, StageError
from pytest_mnode.reference_job.checkpoint.shards import (
    MisfitError,
    one_line,
    plain,
    read_shards,
)
from pytest_mnode.reference_job.checkpoint.survey import survey, wrong_files

OWN = "own_by_rank"
"""The key of a state under which each rank has its own."""
_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of loading; `refused` newest first, none of them older than `loaded`."""

    loaded: Loaded | None
    refused: tuple[Refused, ...]


def load(
    directory: Path, state: dict[str, Any], peers: Peers, reshard: bool, settle_s: float
) -> Outcome:
    """Fill `state` from the newest checkpoint that may be used; see Store.load."""
    began = time.monotonic()
    found, choice = _agreed(directory, peers, settle_s)
    refused = [
        _refused(directory, name, reason, name in choice.disputed)
        for name, reason in choice.refused.items()
    ]
    touched = False
    for name in choice.candidates:
        path, manifest = directory / name, found[name].manifest
        assert manifest is not None
        reason = None if reshard else _other_size(manifest, peers)
        if reason is not None:
            refused.append(_refused(directory, name, reason, True))
            continue
        reason = _wrong(path, manifest, peers)
        if reason is None:
            try:
                own = _read(state, path, manifest, peers)
            except MisfitError as error:
                raise CheckpointError(
                    f"{path} is whole, and does not fit this job: {error}; it was written with "
                    f"torch {manifest.torch}. Give the job that it is of, or another directory"
                ) from None
            except StageError as error:
                raise CheckpointError(
                    f"{path} cannot be loaded: {by_rank(error.reasons, peers.nodes)}"
                ) from None
            except RuntimeError as error:
                reason, touched = str(error), True
        if reason is not None:
            refused.append(_refused(directory, name, reason, False))
            continue
        seconds = max(peers.gather(time.monotonic() - began))
        newer = tuple(r for r in _sorted(refused) if r.step >= manifest.step)
        loaded = Loaded(
            manifest.step,
            path,
            manifest.saved_at,
            manifest.world_size,
            newer,
            manifest.total_bytes,
            seconds,
            own,
        )
        return Outcome(loaded, newer)
    return _nothing(directory, tuple(_sorted(refused)), touched)


def _agreed(directory: Path, peers: Peers, settle_s: float) -> tuple[dict[str, Found], Choice]:
    """What this rank found, by name, and what all agree on; looks again while they do not."""
    began = time.monotonic()
    while True:
        late = time.monotonic() - began >= settle_s
        found: dict[str, Found] = {}
        try:
            answers = peers.stage(
                partial(_view, directory, found, late),
                lambda error: f"cannot list {directory}: {getattr(error, 'strerror', error)}",
            )
        except StageError as error:
            raise CheckpointError(
                f"no checkpoint can be looked for: {by_rank(error.reasons, peers.nodes)}"
            ) from None
        choice = choose([view for view, _ in answers], peers.nodes)
        if choice.settled or answers[0][1]:
            return found, choice
        time.sleep(_LOOK_AGAIN_S)


def _view(directory: Path, found: dict[str, Found], late: bool) -> tuple[dict[str, Seen], bool]:
    """What this rank sees, to be told to all; `found` gets all of it."""
    found.update((one.path.name, one) for one in survey(directory))
    seen = {
        name: Seen(one.fingerprint if one.complete else None, one.reason)
        for name, one in found.items()
    }
    return seen, late


def _other_size(manifest: Manifest, peers: Peers) -> str | None:
    if manifest.world_size == peers.size:
        return None
    return f"it is of {manifest.world_size} ranks, and these are {peers.size} (reshard accepts it)"


def _wrong(path: Path, manifest: Manifest, peers: Peers) -> str | None:
    """Have each rank read its share of the files; why the checkpoint is not whole, or None."""
    sizes = {name: entry.bytes for name, entry in manifest.files.items()}
    share = shares(sizes, peers.size)[peers.rank]
    wrong = peers.gather(wrong_files(path, manifest, share))
    reasons: dict[int, str | None] = {
        rank: ", ".join(names) for rank, names in enumerate(wrong) if names
    }
    return by_rank(reasons, peers.nodes) or None


def _read(state: dict[str, Any], path: Path, manifest: Manifest, peers: Peers) -> Any:
    """Fill the state; what is this rank's own."""
    has_own = manifest.own and manifest.world_size == peers.size
    asked: dict[str, Any] = {}
    peers.stage(lambda: asked.update(plain(state)), one_line)
    if has_own:
        asked[OWN] = {str(peers.rank): ()}
    read_shards(asked, path, peers)

    def hand_over() -> None:
        for key, value in state.items():
            if isinstance(value, Stateful):
                value.load_state_dict(asked[key])
            else:
                state[key] = asked[key]

    peers.stage(hand_over, one_line)
    return asked[OWN][str(peers.rank)][0] if has_own else None


def _nothing(directory: Path, refused: tuple[Refused, ...], touched: bool) -> Outcome:
    """No checkpoint is loaded: right at the first start, and wrong where a good one is there."""
    usable = [r for r in refused if r.usable]
    if usable:
        raise CheckpointError(
            f"no checkpoint of {directory} may be used, and starting anew would lose what is "
            f"there: {'; '.join(str(r) for r in usable)}"
        )
    if touched:
        raise CheckpointError(
            f"no checkpoint of {directory} could be read, and the state is no longer as it was: "
            f"{'; '.join(str(r) for r in refused)}"
        )
    return Outcome(None, refused)


def _refused(directory: Path, name: str, reason: str, usable: bool) -> Refused:
    read = read_name(name)
    assert read is not None
    return Refused(read.step, directory / name, reason, usable)


def _sorted(refused: list[Refused]) -> list[Refused]:
    return sorted(refused, key=lambda r: (r.step, r.path.name), reverse=True)
