"""Loading the newest checkpoint that is proven whole, the same on all ranks."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint.dcp import MisfitError, one_line, plain, read_shards
from pytest_mnode.reference_job.checkpoint.layout import (
    STALE,
    Found,
    Manifest,
    examine,
    list_names,
    order,
    wrong_files,
)
from pytest_mnode.reference_job.checkpoint.ranks import Ranks, StageError
from pytest_mnode.reference_job.checkpoint.results import OWN, Loaded, Refused

_LOOK_AGAIN_S = 0.2


class Loading:
    """One search for a checkpoint; `refused` newest first, none of them older than the loaded."""

    def __init__(self, directory: Path, ranks: Ranks, settle_s: float, reshard: bool) -> None:
        self.directory = directory
        self.ranks = ranks
        self.settle_s = settle_s
        self.reshard = reshard
        self.refused: list[Refused] = []

    def run(self, state: dict[str, Any]) -> Loaded | None:
        """Fill `state` from the newest checkpoint that may be used; see Store.load."""
        half_read = False
        for path in self._paths():
            found, reason, usable = self._agree_on(path)
            manifest = found.manifest
            if reason is None:
                assert manifest is not None
                reason = self._other_size(manifest)
                usable = reason is not None
            if reason is None and manifest is not None:
                reason = self._damage(path, manifest)
            if reason is None and manifest is not None:
                try:
                    own = self._read(state, path, manifest)
                except RuntimeError as error:
                    reason, half_read = str(error), True
                else:
                    self.refused = [one for one in self.refused if one.step >= manifest.step]
                    return Loaded(
                        step=manifest.step,
                        path=path,
                        saved_at=manifest.saved_at,
                        world_size=manifest.world_size,
                        refused=tuple(self.refused),
                        own=own,
                    )
            assert reason is not None
            self.refused.append(Refused(found.step, path, reason, usable))
        self._check_nothing_is_lost(half_read)
        return None

    def _paths(self) -> list[Path]:
        """Directories that any rank sees, newest first."""

        def names() -> list[str]:
            try:
                return list_names(self.directory)
            except FileNotFoundError:
                return []

        try:
            seen = self.ranks.run(
                names, lambda e: f"cannot list {self.directory}: {getattr(e, 'strerror', e)}"
            )
        except StageError as error:
            raise CheckpointError(
                f"no checkpoint can be looked for: {self.ranks.by_rank(error.reasons)}"
            ) from None
        every = {name for of_rank in seen for name in of_rank}
        keys = sorted(filter(None, map(order, every)), reverse=True)
        return [self.directory / name for _, _, name in keys]

    def _agree_on(self, path: Path) -> tuple[Found, str | None, bool]:
        """As this rank sees it; why not all see it whole; and whether some do.

        Looks again while some do and others do not.
        """
        end = time.monotonic() + self.settle_s
        while True:
            found = examine(path)
            seen = self.ranks.gather((found.reason, found.fingerprint, time.monotonic() >= end))
            whole = {print_ for reason, print_, _ in seen if reason is None}
            bad = {rank: reason for rank, (reason, _, _) in enumerate(seen) if reason is not None}
            if len(whole) + bool(bad) == 1:
                break
            if seen[0][2]:
                break
            time.sleep(_LOOK_AGAIN_S)
        if not bad and len(whole) > 1:
            first = seen[0][1]
            bad = {
                rank: f"another manifest than rank 0 on {self.ranks.nodes[0]} sees: {STALE}"
                for rank, (_, print_, _) in enumerate(seen)
                if print_ != first
            }
        if not bad:
            return found, None, False
        alike = not whole and len(set(bad.values())) == 1
        text = next(iter(bad.values())) if alike else self.ranks.by_rank(bad)
        return found, text, bool(whole)

    def _other_size(self, manifest: Manifest) -> str | None:
        saved_by, size = manifest.world_size, self.ranks.size
        if self.reshard or saved_by == size:
            return None
        return f"it is of {saved_by} ranks, and these are {size} (reshard accepts it)"

    def _damage(self, path: Path, manifest: Manifest) -> str | None:
        """Why the checkpoint is not whole; each rank reads a share of the files."""
        largest_first = sorted(manifest.files, key=lambda name: (-manifest.files[name].bytes, name))
        share = largest_first[self.ranks.rank :: self.ranks.size]
        by_rank = self.ranks.gather(wrong_files(path, manifest, share))
        reasons = {rank: ", ".join(wrong) for rank, wrong in enumerate(by_rank) if wrong}
        return self.ranks.by_rank(reasons) or None

    def _read(self, state: dict[str, Any], path: Path, manifest: Manifest) -> Any:
        """Fill the state; this rank's own part. Raises RuntimeError where it is half read."""
        has_own = manifest.own and manifest.world_size == self.ranks.size
        rank = str(self.ranks.rank)
        asked: dict[str, Any] = {}
        try:
            self.ranks.run(lambda: asked.update(plain(state)), one_line)
            if has_own:
                asked[OWN] = {rank: ()}
            read_shards(asked, path, self.ranks)
            self.ranks.run(partial(_hand_over, state, asked), one_line)
        except MisfitError as error:
            raise CheckpointError(
                f"{path} is whole, and does not fit this job: {error}; it was written with "
                f"torch {manifest.torch}. Give the job that it is of, or another directory"
            ) from None
        except StageError as error:
            raise CheckpointError(
                f"{path} cannot be loaded: {self.ranks.by_rank(error.reasons)}"
            ) from None
        return asked[OWN][rank][0] if has_own else None

    def _check_nothing_is_lost(self, half_read: bool) -> None:
        """Loading nothing is right at the first start, and wrong where a good one is there."""
        usable = [one for one in self.refused if one.usable]
        if usable:
            raise CheckpointError(
                f"no checkpoint of {self.directory} may be used, and starting anew would lose what "
                f"is there: {'; '.join(map(str, usable))}"
            )
        if half_read:
            raise CheckpointError(
                f"no checkpoint of {self.directory} could be read, and the state is no longer as "
                f"it was: {'; '.join(map(str, self.refused))}"
            )


def _hand_over(state: dict[str, Any], loaded: dict[str, Any]) -> None:
    for key, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(loaded[key])
        else:
            state[key] = loaded[key]
