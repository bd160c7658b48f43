"""Whether a job that is submitted could start beside the allocation that the run holds. Pure.

The scheduler's own word is taken for it (`sbatch --test-only`): it knows of processors, memory,
GPUs, limits and who is before us.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

SOON = timedelta(seconds=30)
"""A start that is foretold for later waits for somebody to end: for us, most likely."""
_START = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Foretold:
    """When the scheduler says that a job would start, in its local time; None: it says why not."""

    at: datetime | None
    why: str = ""


def foretold(text: str) -> Foretold:
    """From what `sbatch --test-only` prints, whatever its exit status."""
    met = _START.search(text)
    if met is not None:
        return Foretold(datetime.fromisoformat(met[1]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = (
        lines[-1].removeprefix("sbatch: ").removeprefix("error: ") if lines else "it said nothing"
    )
    return Foretold(None, said)


def no_room(found: Foretold, now: datetime, allocation: str) -> str:
    """Why a job is run as steps of the run's own allocation instead; "" where it can start.

    now: local time, as the scheduler's.
    """
    if found.at is None:
        return f"Slurm would not start it beside allocation {allocation} of this run ({found.why})"
    if found.at <= now + SOON:
        return ""
    return (
        f"allocation {allocation} of this run holds the nodes whole: submitted, it would start at "
        f"{found.at:%Y-%m-%d %H:%M:%S} only"
    )
