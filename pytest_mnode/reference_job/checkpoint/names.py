"""Names of the directories in a store."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
HOLDING = "HOLDING"

PARTIAL, REPLACED, REMOVED = "partial", "replaced", "removed"
_NAME = re.compile(r"step-(\d{8,18})(?:\.(partial|replaced|removed)-([0-9a-f]{8}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Name:
    """What a directory's name says. `kind` is None for a checkpoint in its place."""

    step: int
    kind: str | None

    @property
    def is_leftover(self) -> bool:
        """Never a checkpoint: what was being written or removed when its run was killed."""
        return self.kind in (PARTIAL, REMOVED)


def step_name(step: int) -> str:
    """ "step-00000020" for 20."""
    return f"step-{step:08d}"


def aside(step: int, kind: str) -> str:
    """A name that nobody else uses, not even a rank of a killed run that still writes."""
    return f"{step_name(step)}.{kind}-{secrets.token_hex(4)}"


def read_name(name: str) -> Name | None:
    """None: not one of ours."""
    match = _NAME.fullmatch(name)
    if match is None or step_name(int(match[1])) != f"step-{match[1]}":
        return None
    return Name(int(match[1]), match[2])


def order(text: str) -> tuple[int, bool, bool, str]:
    """Sorts names of ours: later steps are greater; of one step the checkpoint in its place."""
    name = read_name(text)
    assert name is not None, text
    return name.step, name.kind is None, not name.is_leftover, text
