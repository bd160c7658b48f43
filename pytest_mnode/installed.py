"""Facts that a certificate keeps of a test besides its measurements.

Installed versions and settings of the nodes, grouped by value, show what changed between two runs;
the spec keys that the test requested show the promises that its measurements are judged by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Fact:
    """One version or setting of the nodes, such as of the driver, a firmware or the kernel.

    part: such as "firmware". item: such as "mlx5_0"; equal to `part` if the part has only one item.
    values: (value, host list of the nodes that have it), the most frequent first.
    """

    part: str
    item: str
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return self.part if self.item == self.part else f"{self.part} {self.item}"


@dataclass(frozen=True, slots=True)
class Installed:
    """All facts that a survey read, in the order of its parts."""

    facts: tuple[Fact, ...]
    kind: Literal["installed"] = "installed"


@dataclass(frozen=True, slots=True)
class RequestedKeys:
    """Keys of the spec that a test requested by `promised`, such as "fabric.all_reduce_busbw"."""

    keys: tuple[str, ...]
    kind: Literal["asked"] = "asked"
