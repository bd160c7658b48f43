"""Tests of torch's own distributed suite, with torch's own runner and in worlds of two nodes.

Every test runs once in each way, with two ranks and gloo. Seconds are those of pytest's junit:
setup, body and teardown of a test, with the processes that it starts.

`python -m benchmarks.torch_suite` writes the section of docs/existing-suites.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks import peers, table

PAGE = peers.ROOT / "docs" / "existing-suites.md"
HEADING = "## torch's own suite, test by test\n"
RANKS = NODES = 2
LIMIT_S = 90
"""Time limit of a faulty test with both; torch's runner includes the start of processes."""
TESTS = (
    *("get_rank", "get_backend", "Backend_enum_class", "destroy_group", "get_rank_size_group"),
    *("barrier", "barrier_full_group", "broadcast", "reduce_sum", "reduce_full_group_max"),
    *("all_reduce_sum", "all_reduce_sum_async", "all_reduce_sum_complex"),
    *("all_reduce_coalesced_max", "scatter", "gather", "gather_checks", "all_gather"),
    *("all_gather_coalesced_simple", "send_recv", "send_recv_any_source", "send_recv_with_tag"),
    *("isend", "irecv", "batch_isend_irecv_gloo", "DistributedDataParallelCPU"),
    *("DistributedDataParallelCPU_grad_is_view", "ddp_logging_data_cpu", "ddp_create_graph"),
    *("static_graph_api_cpu", "all_gather_object_default_pg", "gather_object"),
    *("scatter_object_list", "monitored_barrier_gloo", "barrier_group", "stateless_api_with_ddp"),
)
FAULTS = {
    "all_reduce_sum": "rank 1 fails an assertion",
    "broadcast": "rank 1 sleeps, the others wait for it",
    "all_gather": "rank 1 exits with 3 after the last collective",
}
_SHOWN = 240
_OWN = ("-p", "no:mnode")
_WORLDS = (
    *("-p", "benchmarks.programs.marked", f"--mnode-nodes={NODES}"),
    *(f"--mnode-procs-per-node={RANKS // NODES}", "--mnode-launcher=local"),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a test. why: message of its failure or skip."""

    outcome: str
    seconds: float
    why: str


def run(ids: Sequence[str], way: Sequence[str], limit_s: int = 300) -> dict[str, Ended]:
    """Results of these tests, by name without "test_"."""
    program = str(peers.PROGRAMS / "torch_suite.py")
    env = {**os.environ, "BACKEND": "gloo", "WORLD_SIZE": str(RANKS)}
    env["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(limit_s)
    with tempfile.TemporaryDirectory() as directory:
        junit = Path(directory, "junit.xml")
        argv = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *way]
        argv += [f"--junitxml={junit}", *(f"{program}::{one}" for one in ids)]
        subprocess.run(argv, cwd=peers.ROOT, env=env, check=False, stdout=sys.stderr)
        return dict(map(_ended, ElementTree.parse(junit).iter("testcase")))


def _ended(case: ElementTree.Element) -> tuple[str, Ended]:
    what = next((c for c in case if c.tag in ("failure", "error", "skipped")), None)
    outcome = "passed" if what is None else what.tag.replace("failure", "failed")
    text = "" if what is None else what.get("message") or what.text or ""
    seconds = float(case.get("time", 0))
    return case.get("name", "").removeprefix("test_"), Ended(outcome, seconds, text)


def section(tests: int) -> str:
    load = os.getloadavg()[0]
    names = TESTS[:tests]
    ids = [f"TestTorch::test_{name}" for name in names]
    own, worlds = run(ids, _OWN), run(ids, _WORLDS)
    rows = [(name, *_cells(own.get(name)), *_cells(worlds.get(name))) for name in names]
    alike = sum(own[name].outcome == worlds[name].outcome for name in own.keys() & worlds.keys())
    totals = [f"{sum(one.seconds for one in way.values()):.0f}" for way in (own, worlds)]
    rows.append(("together", "", totals[0], "", totals[1]))
    ids = [f"TestFaults::test_{name}" for name in FAULTS]
    broken = [run(ids, way, LIMIT_S) for way in (_OWN, (*_WORLDS, f"--mnode-timeout={LIMIT_S}"))]
    faults = [
        (f"{name}: {what}", *(_report(way.get(name)) for way in broken))
        for name, what in FAULTS.items()
    ]
    return f"""{HEADING}
Written by `python -m benchmarks.torch_suite` on {time.strftime("%Y-%m-%d", time.gmtime())}; run
this command to write the section again. torch {importlib.metadata.version("torch")},
{os.cpu_count()} cores, load {load:.1f} before the first test and {os.getloadavg()[0]:.1f} after the
last.

Tests of `torch.testing._internal.distributed.distributed_test`, each run once by torch's own runner
and once in a world of {RANKS} ranks on {NODES} nodes, with gloo. Seconds are those
of pytest's junit. {alike} of {len(names)} have the same outcome in both. torch's
runner spends most of its time on the start of its processes, each of which imports torch.

{table.markdown(("test", "torch's runner", "s", "in a world", "s"), rows)}

The same tests with a fault in rank 1: their outcome, and the beginning of the report. The limit of
a test is {LIMIT_S} s in both.

{table.markdown(("test and fault", "torch's runner", "in a world"), faults)}
"""


def _cells(ended: Ended | None) -> tuple[str, str]:
    return ("no report", "-") if ended is None else (ended.outcome, f"{ended.seconds:.2f}")


def _report(ended: Ended | None) -> str:
    if ended is None:
        return "no report"
    text = re.sub(r"/\S*/site-packages/", "…/", " ".join(ended.why.split()))
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"**{ended.outcome}** in {ended.seconds:.1f} s" + (f": `{shown}`" if shown else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_suite")
    parser.add_argument("--tests", type=int, default=len(TESTS), help="the first N tests alone")
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    text = section(options.tests)
    before = options.output.read_text().partition(HEADING)[0]
    options.output.write_text(f"{before.rstrip()}\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
