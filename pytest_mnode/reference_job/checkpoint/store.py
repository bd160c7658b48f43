"""The store of a run's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.checkpoint.layout import Found, survey
from pytest_mnode.reference_job.checkpoint.shared import VISIBLE_S

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World
    from pytest_mnode.reference_job.checkpoint.loading import Loaded
    from pytest_mnode.reference_job.checkpoint.saving import Saved


class Store:
    """The checkpoints below a directory that all ranks share; `keep` complete ones are kept.

    settle_s: how long ranks look again for what another rank wrote: a file server may show it late.
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 2, *, settle_s: float = VISIBLE_S
    ) -> None:
        if keep < 1:
            raise UsageError(f"keep={keep}: at least the newest checkpoint is kept")
        self.directory = Path(directory).absolute()
        self.keep = keep
        self.settle_s = settle_s
        self.refused: tuple[Found, ...] = ()
        """Checkpoints that the last `load` refused, newest first, even if it loaded nothing."""

    def save(
        self,
        state: dict[str, Any],
        *,
        step: int,
        world: World,
        group: Any = None,
        own: Any = None,
        before_commit: Callable[[Path], object] = lambda _: None,
    ) -> Saved:
        """Save the state of all ranks; every rank of `group` (None: of the world) calls this.

        state: nested dicts of tensors, DTensors and plain values, such as get_state_dict of
            torch.distributed.checkpoint.state_dict gives; the same keys on all ranks. Unsharded
            values have to be equal on all ranks: one rank writes them.
        own: this rank's private part, such as its random states; can be pickled. `load` returns it
            if the world has the same size.
        before_commit: called on every rank with the directory when all shards are written and the
            checkpoint is not complete yet.

        When it returns, the checkpoint is complete and on the disk, and old ones are removed.
        Raises CheckpointError with the same text on all ranks if any cannot write: the new
        checkpoint is removed, and all older ones stay. If a rank dies, the others raise the error
        of their process group.
        """
        from pytest_mnode.reference_job.checkpoint.ranks import Ranks
        from pytest_mnode.reference_job.checkpoint.saving import save

        return save(
            self.directory,
            state,
            Ranks(group, world),
            step=step,
            own=own,
            before_commit=before_commit,
            keep=self.keep,
            settle_s=self.settle_s,
            damaged=[one.path.name for one in self.refused if not one.usable],
        )

    def load(
        self, state: dict[str, Any], *, world: World, group: Any = None, reshard: bool = False
    ) -> Loaded | None:
        """Fill `state` in place from the newest checkpoint that may be used; all ranks call this.

        A checkpoint is used if all ranks see the same manifest, all of its files have the size
        and SHA-256 that it names (each rank reads a share of them), and it was saved by as many
        ranks, unless `reshard`. Else it is refused with the reason, and the one before is tried.
        None if there was nothing to load, or nothing whole; `refused` has the reasons.

        Raises CheckpointError with the same text on all ranks if the store cannot be listed, if a
        whole checkpoint lacks a part of the state, cannot be read, or is not seen by all ranks
        within `settle_s`, or if the only whole ones are of another world size: to go on without
        them would lose steps.
        """
        from pytest_mnode.reference_job.checkpoint.loading import load
        from pytest_mnode.reference_job.checkpoint.ranks import Ranks

        loaded, self.refused = load(
            self.directory, state, Ranks(group, world), self.settle_s, reshard
        )
        return loaded

    def survey(self, verify: bool = False) -> Sequence[Found]:
        """All checkpoints, complete or not, newest first, as this process sees them; without torch.

        Checks names, sizes and manifests; with `verify` all files are read and compared with their
        digests. Raises OSError if the directory cannot be listed.
        """
        return survey(self.directory, verify)

    def newest(self) -> Found | None:
        """The newest complete checkpoint, as `survey` sees it; None if there is none."""
        return next((found for found in self.survey() if found.complete), None)
