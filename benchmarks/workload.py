"""Injects losses into a job of the rack, and compares its ledger with the job's own clock."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import table
from benchmarks.trials import trials_of
from pytest_mnode.launchers.rack import Rack

_TRIAL_S = 120.0
_BESIDE = 2
"""A job mostly waits once its ranks have imported torch, and its truth is its own clock's."""
WITHIN = 0.02
"""Of the wall time."""


def measure(trials: int, seconds: float = float("inf")) -> str:
    """The table, for a terminal; or why there is none. seconds: for all trials."""
    title = f"Losses of a job, as its ledger attributes them, within {WITHIN:.0%} of its wall time"
    head = ("loss", "runs", "within", "named", "median error", "worst error", "worst, of the loss")
    if reason := Rack.unavailable():
        return table.terminal(title, head, [("no rack here", reason, *[""] * 5)])
    limit_s = min(_TRIAL_S * (trials + 2), seconds)
    found, text = trials_of("workload_losses.py", 3, trials, limit_s, beside=_BESIDE)
    if not found:
        return table.terminal(title, head, [("no trial", text[-800:], *[""] * 5)])
    faults = list(dict.fromkeys(one["fault"] for one in found))
    rows = [_row(fault, [one for one in found if one["fault"] == fault]) for fault in faults]
    return table.terminal(title, head, [*rows, _row("all", found)])


def _of_loss(one: dict[str, Any]) -> float:
    """The error as a fraction of the loss, which a slow machine makes a small part of the wall."""
    return abs(one["said"] - one["true"]) / one["true"] if one["true"] else 1.0


def _row(name: str, found: list[dict[str, Any]]) -> tuple[str, ...]:
    errors = [
        1.0 if one["true"] is None else abs(one["said"] - one["true"]) / one["wall"]
        for one in found
    ]
    return (
        name,
        str(len(found)),
        str(sum(error <= WITHIN for error in errors)),
        str(sum(one["named"] for one in found)),
        f"{statistics.median(errors):.2%}",
        f"{max(errors):.2%}",
        f"{max(map(_of_loss, found)):.1%}",
    )
