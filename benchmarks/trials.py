"""Trials of a benchmark's program on the rack, which prints a line "TRIAL {…}" after each."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import peers


def trials_of(
    program: str, nodes: int, trials: int, limit_s: float
) -> tuple[list[dict[str, Any]], str]:
    """What each completed trial printed, and the whole output. program: in `peers.PROGRAMS`."""
    options = ("-q", "-p", "no:cacheprovider", "--mnode-launcher=rack", f"--mnode-nodes={nodes}")
    path = str(peers.PROGRAMS / program)
    with tempfile.TemporaryFile("w+") as output:
        with contextlib.suppress(subprocess.TimeoutExpired):  # completed trials count
            subprocess.run(
                [sys.executable, "-m", "pytest", *options, f"--mnode-timeout={limit_s:g}", path],
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
    return [json.loads(line.removeprefix("TRIAL ")) for line in lines], text
