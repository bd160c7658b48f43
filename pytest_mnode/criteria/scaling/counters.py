"""How long this process has waited for CPUs so far."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.machine import sysfs


def starved_so_far_s(root: Path = Path("/")) -> float | None:
    """Seconds for which threads of this process were ready and had no CPU, all added up."""
    waited_ns = 0
    for path in sysfs.entries(root / "proc/self/task"):
        fields = (sysfs.text(path / "schedstat") or "").split()
        waited = sysfs.number_of(fields[1]) if len(fields) > 1 else None
        if waited is None:
            return None
        waited_ns += waited
    return waited_ns / 1e9


def grown(before: float | None, after: float | None) -> float | None:
    """By how much; None where either is not known."""
    return None if before is None or after is None else max(0.0, after - before)
