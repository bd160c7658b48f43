"""Every error a user can meet.

    MnodeError                 base: says what, the value met, and the remedy
    ├── UsageError             a setting or a file the user wrote is wrong
    │   └── SpecError          the page that says what the cluster promises
    ├── ClusterError           nodes could not be started, reached or kept
    │   └── NodeLostError      a node that was there is gone
    ├── WorldError             ranks could not be started or did not answer
    │   ├── RankError          a function run in the ranks of a world failed in some
    │   └── EnvironmentContractError   RANK, WORLD_SIZE … are missing or contradict each other
    ├── CheckpointError        a checkpoint could not be written, or none may be used
    └── TimeLimitError         a wait reached its limit; names who did not arrive

Messages are one line unless they carry the traceback of other code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MnodeError(Exception):
    """Base of all errors of this package; its text is meant for the user as it stands."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor, whose parameters are not the arguments of every class.
        return _made, (type(self), *self.args), self.__dict__


def _made(kind: type[MnodeError], *args: Any) -> MnodeError:
    return kind.__new__(kind, *args)


class UsageError(MnodeError):
    """A setting or a file the user wrote is wrong: names it, its value and the accepted form."""


class SpecError(UsageError):
    """A cluster spec cannot be used: names file, key, value and the accepted form."""


class ClusterError(MnodeError):
    """Nodes could not be started, reached or kept."""


class NodeLostError(ClusterError):
    """A node that was there is gone; `node` is its name."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(message)
        self.node = node


class WorldError(MnodeError):
    """Ranks of a world could not be started, or did not answer."""


class RankError(WorldError):
    """A function that ran in every rank of a world failed in some of them.

    culprit: as `Culprit.record`, where some ranks are to blame and not all.
    """

    def __init__(self, message: str, culprit: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit


class EnvironmentContractError(WorldError):
    """RANK, WORLD_SIZE and the like are missing, not numbers, or contradict each other."""


class CheckpointError(MnodeError):
    """A checkpoint could not be written, or none may be used: names path and remedy."""


class TimeLimitError(MnodeError):
    """A wait reached its limit; the text names who did not arrive."""
