"""Runs a job with one injected loss after another through the workload criterion, on the rack.

benchmarks/workload.py runs it. It prints a line of JSON per trial: the loss as the job's own clock
saw it, as the ledger attributes it, the wall time, and whether the right rank or node was named.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from pytest_mnode.criteria.workload import Ran, judge_end, judge_goodput, run
from pytest_mnode.spec.workload import PartName, WorkloadCriterion

if TYPE_CHECKING:
    import pytest

    from pytest_mnode import Cluster, Spec

PART_OF: dict[str, PartName] = {
    "input": "input",
    "network": "communicating",
    "checkpoint": "checkpointing",
    "slow": "slow rank",
    "restart": "restarting",
    "hang": "stalled",
    "crash": "ending",
    "none": "slow rank",
}
"""By loss. Without one nobody may be named: what the machine's other work takes is the slow rank's.
"""
JOB = Path(__file__).with_name("training_job.py")
_SLOWER = 0.1


def test_losses(
    cluster: Cluster, spec: Spec, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    link, line = spec.fabric.interfaces[0], spec.fabric.line_rate_mbits_s
    first = int(os.environ.get("FIRST", "0"))  # so that one of a kind can be run again
    for trial in range(first, first + int(os.environ["TRIALS"])):
        fault = list(PART_OF)[trial % len(PART_OF)]
        rank = trial // len(PART_OF) % len(cluster.nodes)
        folder = tmp_path / str(trial)
        folder.mkdir()
        promise = WorkloadCriterion.model_validate(
            {
                "command": [str(JOB), str(folder), fault, str(rank)],
                "at_most": dict.fromkeys(PART_OF.values(), 0.05)
                if fault == "none"
                else {PART_OF[fault]: 0.01},
                "stalled_after": "10 s" if fault == "hang" else "100 s",
                "restarts": int(fault == "restart"),
                "within": "400 s",
            }
        )
        if fault == "network":
            cluster.set_rate(cluster.nodes[rank], link, line * _SLOWER)
        began = time.time()
        ran = run(cluster, promise, cluster.nodes, 1)
        ended = began + ran.seconds
        cluster.set_rate(cluster.nodes[rank], link, line)
        assert ran.ledger is not None
        found = {
            "fault": fault,
            "true": _truth(folder, fault, ended),
            "said": ran.ledger.parts[PART_OF[fault]],
            "wall": ran.ledger.wall,
            "named": _named(ran, promise, fault, cluster.nodes[rank]),
            "parts": {name: round(s, 3) for name, s in ran.ledger.parts.items() if s},
            "why": ran.why,
        }
        with capfd.disabled():
            print(f"\nTRIAL {json.dumps(found)}\n", end="", flush=True)


def _truth(folder: Path, fault: str, ended: float) -> float | None:
    """Seconds of the loss, by the job's own clock; None if the job did not say."""
    broke = folder / "broke"
    if fault in ("restart", "hang", "crash"):
        if not broke.exists():
            return None
        resumed = [float(one.read_text()) for one in folder.glob("resumed*")]
        return max(resumed, default=ended) - float(broke.read_text())
    if not (folder / "truth.json").exists():
        return None
    steps: list[tuple[list[float], ...]] = list(
        zip(*json.loads((folder / "truth.json").read_text()), strict=True)
    )
    if fault == "network":
        return sum(min(rank[2] for rank in step) for step in steps)
    if fault in ("slow", "none"):
        own = [[rank[1] for rank in step] for step in steps]
        return sum(max(step) - median_low(step) for step in own)
    return sum(max(rank[{"input": 0, "checkpoint": 3}[fault]] for rank in step) for step in steps)


def _named(ran: Ran, promise: WorkloadCriterion, fault: str, node: str) -> bool:
    """Whether the right rank, or node, was named, and no other."""
    if fault in ("hang", "crash"):
        judged = list(judge_end([ran]))
    else:
        judged = [one for one in judge_goodput(ran, promise) if one.expected is not None]
    if fault == "none":
        return not any(one.culprit for one in judged if not one.passed)
    culprits = [one.culprit for one in judged if one.culprit is not None]
    nodes = {name for one in culprits for name in one.nodes}
    return nodes == ({"node0"} if fault == "checkpoint" else {node})
