"""Injects the losses that a healthy run states as detectable, and counts those detected."""

from __future__ import annotations

import statistics

from benchmarks import table
from benchmarks.trials import trials_of
from pytest_mnode.launchers.rack import Rack

_TRIAL_S = 180.0


def measure(trials: int) -> str:
    """The table, for a terminal; or why there is none."""
    title = "Losses on one node of the rack around the limit that a healthy run states (all_reduce)"
    head = ("loss, in limits", "found", "of")
    if reason := Rack.unavailable():
        return table.terminal(title, head, [("no rack here", reason, "")])
    limit_s = _TRIAL_S * (trials + 2)
    found, text = trials_of("injected_losses.py", 4, trials, limit_s)
    if not found:
        return table.terminal(title, head, [("no trial", text[-400:], "")])
    limits = [one["limit"] for one in found]
    rows = [
        (factor, str(sum(one["found"][factor] for one in found)), str(len(found)))
        for factor in found[0]["found"]
    ]
    stated = f"{min(limits):.1%} to {max(limits):.1%}, median {statistics.median(limits):.1%}"
    return table.terminal(f"{title}; limits stated: {stated}", head, rows)
