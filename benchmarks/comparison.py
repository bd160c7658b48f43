"""`python -m benchmarks.comparison`: runs one fault after another with every peer.

Each run has two ranks on loopback over gloo. Rank 1 has one fault in the first of two tests; the
second test is trivial. Every peer that has a time limit per test gets the same (`--limit`); a run
that has not ended by the hard limit is killed with all its processes, and counts as never ended.
Each cell is one run. Reports are those of pytest in each of the peer's pytest processes, recorded
as they are made; seconds are from the fault to the report. It writes docs/comparison.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import judge, peers, table, wall_clock
from benchmarks.programs import bodies

RANKS = 2
HARD_LIMIT_FACTOR = 6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds a test may take")
    parser.add_argument("--fault", action="append", help="only faults whose name has this in it")
    parser.add_argument("--peer", action="append", help="only peers whose name has this in it")
    parser.add_argument("--output", type=Path, default=peers.ROOT / "docs" / "comparison.md")
    options = parser.parse_args()
    contenders = [p for p in _contenders(options.limit) if _chosen(p.name, options.peer)]
    faults = [name for name in bodies.FAULTS if _chosen(name, options.fault)]
    rows = [[fault, *_row(fault, contenders, options.limit)] for fault in faults]
    old = options.output.read_text() if options.output.exists() else ""
    _, times = wall_clock.without_section(old)
    options.output.write_text(f"{_page(contenders, rows, options.limit)}\n{times}")
    print(f"written: {options.output}")


def _contenders(limit_s: float) -> Sequence[peers.Peer]:
    return (
        peers.mnode_recorded(limit_s),
        peers.PROCESSES_RECORDED,
        peers.CONTINUOUS_RECORDED,
        peers.TORCHRUN_PYTEST,
        peers.PYTEST_MPI,
    )


def _chosen(name: str, words: list[str] | None) -> bool:
    return words is None or any(word.lower() in name.lower() for word in words)


def _row(fault: str, contenders: Sequence[peers.Peer], limit_s: float) -> list[str]:
    cells = []
    hard_limit_s = HARD_LIMIT_FACTOR * limit_s
    for peer in contenders:
        if peer.missing:
            cells.append("not installed")
            continue
        ran = peer.run(RANKS, 2, hard_limit_s, fault=fault, own_limit_s=limit_s)
        cells.append(judge.cell(ran, hard_limit_s).text)
        print(f"{fault} | {peer.name} | {cells[-1]}", flush=True)
    return cells


def _page(contenders: Sequence[peers.Peer], rows: Sequence[Sequence[str]], limit_s: float) -> str:
    head = ("in a test of two ranks", *(peer.name for peer in contenders))
    return f"""# What different test tools report of a failing rank

Written by `python -m benchmarks.comparison` on {time.strftime("%Y-%m-%d", time.gmtime())}; run this
command to write the page again. {_versions()}, {os.cpu_count()} cores.

Rank 1 has one fault in the first of two tests; the second test is trivial. Each cell is one run
with two ranks and gloo on loopback. Every tool that accepts a time limit per test got a limit of
{limit_s:.0f} s. A run that had not ended after {HARD_LIMIT_FACTOR * limit_s:.0f} s was killed.

{table.markdown(head, rows)}

How to read a cell:

- the outcome of the faulty test in its reports, and the seconds from the fault to the report.
  "no report" means that no pytest process reported the test. If every rank runs its own pytest
  (`torchrun -m pytest`, pytest-mpi), the outcome is failed if any of them reports a failure,
  otherwise skipped if any of them reports a skip. A rank that died without a report does not
  count;
- if the outcome is failed, the first rank that the text of the failure names, except in source
  lines. The fault is always in rank 1;
- the outcome of the next, trivial test, or that it did not run;
- the exit code of the run, or that it did not end;
- the number of processes that were left running after the run, if any.

torch's MultiProcessTestCase and MultiProcContinuousTest are in `torch.testing._internal` and need
`expecttest`; pytest-mpi needs `mpi4py` and an `mpirun`. The programs are in
[`benchmarks/programs`](../benchmarks/programs). [`benchmarks/judge.py`](../benchmarks/judge.py)
reads the reports.
"""


def _versions() -> str:
    parts = [f"Python {platform.python_version()}"]
    for name in ("torch", "pytest", "pytest-mnode", "pytest-mpi", "mpi4py"):
        try:
            parts.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            parts.append(f"{name} not installed")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
