"""Trials of a benchmark's program on the rack, which prints a line "TRIAL {…}" after each."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import peers


def trials_of(
    program: str, nodes: int, trials: int, limit_s: float, beside: int = 1
) -> tuple[list[dict[str, Any]], str]:
    """What each completed trial printed, and the whole output. program: in `peers.PROGRAMS`.

    beside: racks at the same time, which share the trials out, where a trial mostly waits and its
    rates do not count; the program begins with the trial FIRST.
    """
    options = ("-q", "-p", "no:cacheprovider", "--mnode-launcher=rack", f"--mnode-nodes={nodes}")
    limit = f"--mnode-timeout={limit_s:g}"
    argv = [sys.executable, "-m", "pytest", *options, limit, str(peers.PROGRAMS / program)]
    beside = min(beside, trials)
    firsts = [trials * one // beside for one in range(beside + 1)]
    with tempfile.TemporaryFile("w+") as output:
        running = [
            subprocess.Popen(
                argv,
                env={**os.environ, "FIRST": str(first), "TRIALS": str(after - first)},
                cwd=peers.ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for first, after in itertools.pairwise(firsts)
        ]
        end = time.monotonic() + limit_s
        try:
            for one in running:
                with contextlib.suppress(subprocess.TimeoutExpired):  # completed trials count
                    one.wait(max(0.0, end - time.monotonic()))
        finally:
            for one in running:
                one.kill()
                one.wait()
        output.seek(0)
        text = output.read()
    lines = [line for line in text.splitlines() if line.startswith("TRIAL ")]
    return [json.loads(line.removeprefix("TRIAL ")) for line in lines], text
