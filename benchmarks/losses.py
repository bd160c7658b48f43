"""Injects the losses that a healthy run states as detectable, and counts those detected."""

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

_TRIAL_S = 180.0


def measure(trials: int) -> str:
    """The table, for a terminal; or why there is none."""
    title = "Losses on one node of the rack around the limit that a healthy run states (all_reduce)"
    head = ("loss, in limits", "found", "of")
    if reason := Rack.unavailable():
        return table.terminal(title, head, [("no rack here", reason, "")])
    program = str(peers.PROGRAMS / "injected_losses.py")
    options = ("-q", "-p", "no:cacheprovider", "--mnode-launcher=rack", "--mnode-nodes=4")
    limit_s = _TRIAL_S * (trials + 2)
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
        return table.terminal(title, head, [("no trial", text[-400:], "")])
    limits = [one["limit"] for one in found]
    rows = [
        (factor, str(sum(one["found"][factor] for one in found)), str(len(found)))
        for factor in found[0]["found"]
    ]
    stated = f"{min(limits):.1%} to {max(limits):.1%}, median {statistics.median(limits):.1%}"
    return table.terminal(f"{title}; limits stated: {stated}", head, rows)
