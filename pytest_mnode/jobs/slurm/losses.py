"""Nodes that Slurm gave up under a submitted job, and what that means for its next start."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.slurm.names import Names
from pytest_mnode.launchers.slurm import Slurm, SlurmError

_LOOK_S = 2.0


class Losses:
    """Of one start of a job after the other. pinned: it had to begin on certain nodes, and may move
    when one of them is gone. lost: nodes of the last start that are."""

    def __init__(self, slurm: Slurm, names: Names, pinned: bool) -> None:
        self.lost: tuple[str, ...] = ()
        self._slurm = slurm
        self._names = names
        self._pinned = pinned
        self._looked_at = -_LOOK_S
        self._waits_since: float | None = None

    @property
    def due(self) -> bool:
        """Whether nobody has looked for a while."""
        return time.monotonic() - self._looked_at > _LOOK_S

    def look(self, nodes: Sequence[str]) -> dict[str, str]:
        """Those of these nodes that Slurm gave up since the last look, and what it says of them;
        none where it does not answer now."""
        self._looked_at = time.monotonic()
        found = {}
        with contextlib.suppress(ClusterError):
            for node in self._slurm.nodes(self._names.for_slurm(nodes)) if nodes else ():
                [name] = self._names.for_run([node.name])
                if node.lost and name not in self.lost:
                    found[name] = node.text
        self.lost += tuple(found)
        return found

    def started(self) -> None:
        """The job runs, on nodes that are there."""
        self.lost, self._waits_since = (), None

    def requeued(self) -> None:
        """It waits for its next start."""
        self._waits_since = time.monotonic()

    def let_move(self, number: int) -> None:
        """Have Slurm forget on which nodes the job had to begin, once one of them is gone.

        It does so for a job that waits only, and not while the last start is being taken down.
        """
        if self._pinned and self.lost:
            with contextlib.suppress(SlurmError):
                self._slurm.run("scontrol", "update", f"JobId={number}", "ReqNodeList=")
                self._pinned = False

    def waited_long(self, limit_s: float) -> str:
        """For which nodes it has waited in vain; "" while it may go on waiting."""
        if self._waits_since is None or not self.lost:
            return ""
        if time.monotonic() - self._waits_since < limit_s:
            return ""
        return f"{', '.join(self.lost)} not back within {limit_s:g} s"
