"""Faults that no collective or no pair of nodes shows by itself: found and named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.certified import certify
from tests.red import turns_red


@turns_red("fabric", "test_every_path_reaches_the_line_rate")
def test_slow_paths_beside_the_ring_are_named(tmp_path: Path) -> None:
    fault = "--mnode-fault=slow_path:node1+node3:100,slow_pair:node0+node2:60"
    done = certify(tmp_path, "-k", "every_path", fault, files=["test_fabric.py"])
    measured = done.measurements("fabric")
    slow, paths = measured["slow nodes, rails and paths"], measured["ordered paths measured"]
    assert (paths["verdict"], paths["value"]) == ("pass", 12)
    assert paths["note"] == "12 of 12 ordered paths measured"
    assert re.search(r"\d+ tests in \d+ rounds, \d+\.\d s$", slow["note"])
    assert "locate: round 1 (all pairs), 2 pairs at once, slowest node" in done.run.output
    assert (slow["value"], slow["verdict"], slow["where"]) == (2, "fail", "all 4 ranks")
    culprit = (
        r"the paths node0↔node2 \(\d+ Mbit/s\), node1→node3 \(\d+ Mbit/s\): their nodes are .*"
    )
    assert re.fullmatch(culprit, slow["culprit"]), slow["culprit"]
    coverage = done.certificate["coverage"]
    [block] = coverage["paths"]
    assert block["rates"]["states"] == ["-pfp", "p-pf", "fp-p", "ppp-"]
    suspects = {node["name"] for node in coverage["nodes"] if node["state"] == "suspect"}
    assert suspects == {f"node{number}" for number in range(4)}


def test_a_node_that_is_slow_only_in_collectives_is_named(tmp_path: Path) -> None:
    fault = "--mnode-fault=small_buffers:node2"
    # Up to five trials, because other programs on the cores disturb some.
    args = ("-k", "line_rate and all_reduce", fault, "--mnode-locate-budget=60")
    done = certify(tmp_path, *args, files=["test_fabric.py"])
    [culprit] = done.culprits("fabric")
    found = re.fullmatch(
        r"node2, slow only in collectives: every pair of nodes keeps the rate, and so does "
        r"all_reduce without node2 \((0\.\d+) GB/s; with it (0\.\d+)\)",
        culprit,
    )
    assert found, culprit
    # Of 0.025; other programs on the cores reduce the second value more than the fault does.
    assert float(found[1]) > 0.02 > float(found[2])


@pytest.mark.parametrize("size", ["128 KiB", "500 B"])
def test_a_node_whose_wire_changes_payloads_is_named(tmp_path: Path, size: str) -> None:
    """Even if it changes messages of the collective library and ranks hang: messages of 500 B."""
    fault = f"--mnode-fault=corrupt_payload:node2:{size}"
    # A rate that all pairs reach, so that the limit for hung ranks is short.
    args = ("-k", "every_path", fault, "--mnode-locate-budget=1")
    done = certify(tmp_path, *args, files=["test_fabric.py"], cold=False)
    changed = done.measurements("fabric")["paths that corrupt the data sent"]
    assert (changed["verdict"], changed["culprit"]) == ("fail", "node2 fab0"), done.run.output
    assert 2 <= changed["value"] <= 6


@turns_red("fabric", "test_small_messages_are_as_fast_as_between_other_nodes")
def test_a_node_whose_packets_are_delayed_by_turns_is_named(tmp_path: Path) -> None:
    """Its rate below the plateau is a tenth of the line, and no bound holds there."""
    fault = "--mnode-fault=delay:node2:0.001:3"
    done = certify(tmp_path, "-k", "small_messages", fault, files=["test_fabric.py"])
    assert done.culprits("fabric") == {"node2"}
