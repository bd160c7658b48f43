"""Cost of the controller by the number of ranks.

One light client speaks the protocol for all nodes and ranks, over the real channel, so
that only the controller is measured:

- the time of a warm test that passes, and the controller's CPU time during it,
- the time of a test in which every rank fails with a different error,
- the time from the limit of a test until its hang is reported with the one rank that is absent,
- the controller's peak memory.

The client and the controller share the cores of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers, table

LIMIT_S = 2.0
_RUN_LIMIT_S = 900.0
SIZES = ((8, 8), (64, 8), (512, 8))
"""(nodes, ranks per node)."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Results of one size.

    hang_s: from the test's limit to the report of its hang. named: whether that names the absent
    rank.
    """

    ranks: int
    warm_s: tuple[float, ...]
    warm_cpu_s: tuple[float, ...]
    differ_s: float
    hang_s: float
    named: bool
    report_chars: int
    peak_mib: float


def measure(repeats: int, sizes: tuple[tuple[int, int], ...] = SIZES) -> str:
    """The table, for a terminal."""
    rows = []
    for nodes, per_node in sizes:
        found = run(nodes, per_node, repeats)
        rows.append(
            (
                f"{found.ranks:,}",
                table.ms(found.warm_s),
                table.ms(found.warm_cpu_s),
                f"{found.differ_s * 1e3:,.0f}",
                f"{found.hang_s * 1e3:,.0f}",
                "yes" if found.named else "no",
                f"{found.report_chars:,}",
                f"{found.peak_mib:,.0f}",
            )
        )
    head = (
        "ranks",
        "warm test ms",
        "its CPU ms",
        "all differ ms",
        "hang named after limit ms",
        "named",
    )
    title = "What the controller costs by number of ranks, which one light client speaks for"
    return table.terminal(title, (*head, "largest report chars", "peak MiB"), rows)


def run(nodes: int, per_node: int, repeats: int) -> Growth:
    """One pytest run: `repeats` tests that pass, one that fails in all ranks, one that hangs."""
    passing = "".join(f"def test_warm{n}(rank): pass\n" for n in range(repeats + 1))
    with tempfile.TemporaryDirectory(prefix="mnode-bench-") as folder:
        test, record = Path(folder) / "test_growth.py", Path(folder) / "record"
        test.write_text(
            f"import pytest\n{passing}"
            f"@pytest.mark.mnode(timeout={LIMIT_S})\ndef test_hang(rank): pass\n"
            "def test_new_world(rank): pass\ndef test_differ(rank): pass\n"
        )
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.programs.light_cluster"]
        argv += ["-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", str(test)]
        argv += [
            f"--mnode-nodes={nodes}",
            f"--mnode-procs-per-node={per_node}",
            "--rootdir",
            folder,
        ]
        environment = {
            **os.environ,
            "MNODE_BENCH_RECORD": str(record),
            "PYTHONPATH": str(peers.ROOT),
        }
        done = subprocess.run(
            argv,
            cwd=folder,
            env=environment,
            timeout=_RUN_LIMIT_S,
            capture_output=True,
            text=True,
            check=False,
        )
        if not record.exists():
            raise RuntimeError(f"no test was run:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
        records = [json.loads(line) for line in record.read_text().splitlines()]
    seconds = {r["test"].rpartition("::")[2]: r["seconds"] for r in records if "seconds" in r}
    cpu = {r["test"].rpartition("::")[2]: r["cpu_s"] for r in records if "cpu_s" in r}
    failed = {r["test"].rpartition("::")[2]: r["failed"] for r in records if "failed" in r}
    if os.environ.get("MNODE_BENCH_SHOW"):
        print(done.stdout[-6000:])
    absent = f"[rank {nodes * per_node - 1} of {nodes * per_node} on"
    return Growth(
        nodes * per_node,
        tuple(seconds[f"test_warm{n}"] for n in range(1, repeats + 1)),
        tuple(cpu[f"test_warm{n}"] for n in range(1, repeats + 1)),
        seconds["test_differ"],
        seconds["test_hang"] - LIMIT_S,
        failed["test_hang"].startswith(absent),
        max(r["chars"] for r in records if "chars" in r),
        next(r["peak_kib"] for r in records if "peak_kib" in r) / 1024,
    )
