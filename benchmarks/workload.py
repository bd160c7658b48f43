"""Injects losses into a job of the rack, and compares its ledger with the job's own clock."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import peers, table
from pytest_mnode.launchers.rack import Rack

_TRIAL_S = 60.0
WITHIN = 0.02
"""Of the wall time."""


def measure(trials: int, seconds: float = float("inf")) -> str:
    """The table, for a terminal; or why there is none. seconds: for all trials."""
    title = f"Losses of a job, as its ledger attributes them, within {WITHIN:.0%} of its wall time"
    head = ("loss", "runs", "within", "named", "median error", "worst error")
    if reason := Rack.unavailable():
        return table.terminal(title, head, [("no rack here", reason, "", "", "", "")])
    program = str(peers.PROGRAMS / "workload_losses.py")
    options = ("-q", "-p", "no:cacheprovider", "--mnode-launcher=rack", "--mnode-nodes=3")
    limit_s = min(_TRIAL_S * (trials + 2), seconds)
    with tempfile.TemporaryFile("w+") as output:
        with contextlib.suppress(subprocess.TimeoutExpired):  # completed trials count
            subprocess.run(
                [sys.executable, "-m", "pytest", *options, f"--mnode-timeout={limit_s:g}", program],
                env={**os.environ, "TRIALS": str(trials)},
                cwd=peers.ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        output.seek(0)
        text = output.read()
    lines = [line for line in text.splitlines() if line.startswith("TRIAL ")]
    found: list[dict[str, Any]] = [json.loads(line.removeprefix("TRIAL ")) for line in lines]
    if not found:
        return table.terminal(title, head, [("no trial", text[-800:], "", "", "", "")])
    faults = list(dict.fromkeys(one["fault"] for one in found))
    rows = [_row(fault, [one for one in found if one["fault"] == fault]) for fault in faults]
    return table.terminal(title, head, [*rows, _row("all", found)])


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
    )
