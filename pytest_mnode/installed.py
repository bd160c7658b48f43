"""What a certificate keeps of a test besides what it measured.

What nodes have installed and set, grouped by value, tells what changed between two runs; the keys
of the spec that the test asked for tell what its measurements follow from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that may change, such as the driver, a firmware or a kernel setting.

    part: such as "firmware". item: such as "mlx5_0"; the part itself where it has one only. values:
    (value, host list of the nodes that have it), the most frequent first.
    """

    part: str
    item: str
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return self.part if self.item == self.part else f"{self.part} {self.item}"


@dataclass(frozen=True, slots=True)
class Installed:
    """Everything that a survey read, in the order of its parts."""

    facts: tuple[Fact, ...]
    kind: Literal["installed"] = "installed"


@dataclass(frozen=True, slots=True)
class Asked:
    """Keys of the spec that a test asked for by `promised`, such as "fabric.all_reduce_busbw"."""

    keys: tuple[str, ...]
    kind: Literal["asked"] = "asked"
