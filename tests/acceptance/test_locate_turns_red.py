"""A pair of nodes that no collective's ring goes over: slow, and found where it is asked for."""

from __future__ import annotations

import re
from pathlib import Path

from tests.acceptance.certified import certify
from tests.inner import need_rack


def test_a_slow_pair_beside_the_ring_is_found_when_asked_for(tmp_path: Path) -> None:
    need_rack()
    done = certify(
        tmp_path,
        *("-k", "line_rate and all_reduce", "--mnode-locate"),
        "--mnode-fault=slow_pair:node1+node3:60",
        files=["test_fabric.py"],
    )
    measured = done.measurements("fabric")
    slow = measured["slow nodes, rails and paths"]
    assert (slow["value"], slow["verdict"], slow["where"]) == (1, "fail", "all 4 ranks")
    assert re.fullmatch(
        r"the path node1↔node3 \(\d\d Mbit/s\): both nodes are fast with others", slow["culprit"]
    )
    assert re.search(r"\d+ tests in \d+ rounds, \d+\.\d s$", slow["note"])
    assert "locate: round 1 (all pairs), 2 pairs at once, slowest node" in done.run.output
    # The ring of four goes by neighbours, and is none the slower for it.
    judged = {name: m["verdict"] for name, m in measured.items() if "busbw" in name}
    assert "pass" in judged.values()
