"""What was located in this run, so that one slow node is not looked for once a collective.

Pairs of nodes are as fast for one collective as for the next, so a finding explains them all. It
lies in a file of rank 0's node, as the ranks of a test that failed do not live on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pytest_mnode.rank.world import World

_VALID_S = 300.0
"""A fault may come or go: what was found longer ago is looked for again."""
_NAME = "located.json"


@dataclass(frozen=True, slots=True)
class Finding:
    """Who was found to blame, on which nodes, when by the clock of rank 0's node.

    instead: what carried the traffic then where the fabric did not. told_by: the collective that
    fell short.
    """

    nodes: tuple[str, ...]
    instead: str | None
    culprit: str
    told_by: str
    at_s: float

    def explains(self, nodes: tuple[str, ...], instead: str | None, now_s: float) -> bool:
        """Whether it may stand for a search over `nodes` now, with traffic as it is now."""
        fresh = 0 <= now_s - self.at_s <= _VALID_S
        return fresh and self.nodes == nodes and self.instead == instead


class Findings:
    """The last finding of a run, in a directory that is the run's own."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = directory / _NAME
        self._clock = clock

    def explaining(self, world: World, instead: str | None) -> Finding | None:
        """What was found before, where that explains; the same on every rank. All call this."""
        found = [self._read(world, instead) if world.rank == 0 else None]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def keep(self, world: World, instead: str | None, culprit: str, told_by: str) -> None:
        """Keep what was found. A file that cannot be written costs one more search."""
        finding = Finding(world.nodes, instead, culprit, told_by, self._clock())
        if world.rank == 0:
            with contextlib.suppress(OSError):
                self._path.write_text(json.dumps(asdict(finding)))

    def _read(self, world: World, instead: str | None) -> Finding | None:
        try:
            told: dict[str, Any] = json.loads(self._path.read_text())
            found = Finding(**{**told, "nodes": tuple(told["nodes"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return found if found.explains(world.nodes, instead, self._clock()) else None
