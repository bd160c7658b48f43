"""Faults on real links of the rack, one after another in one run: each is found and named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.inner import need_rack, run_pytest, write_files

TESTS = """
    import json, pathlib
    import torch
    from pytest_mnode.controller.session import run_of

    FAULTS = {  # name: (node or two, way or nothing, Mbit/s), undone by the line rate
        "node": [("node2", "both", 70)],
        "tx": [("node1", "tx", 70)],
        "rx": [("node3", "rx", 70)],
        "path": [(("node1", "node3"), 60)],
        "pair": [(("node1", "node3"), 60), (("node3", "node1"), 60)],
        "two nodes": [("node0", "both", 90), ("node3", "tx", 60)],
        "node and path": [("node0", "both", 90), (("node2", "node1"), 60)],
        "fabric": [(f"node{i}", "both", 100) for i in range(4)],
    }

    def found(*, world):
        from pytest_mnode.measuring.locating.locate import find_slow_links
        from pytest_mnode.spec import default_spec_path, load_spec
        it = find_slow_links(world, load_spec(default_spec_path()), (), 170.0, torch.device("cpu"))
        effort = {"rounds": it.effort.rounds, "tests": it.effort.tests}
        return {"told": str(it), "culprit": it.culprit, **effort}

    from pytest_mnode.protocol.launcher_requests import SetLinkRate, SetPairRate

    def put(ask, fault, rate):
        if len(fault) == 2:
            ask(SetPairRate(*fault[0], "fab0", rate))
        else:
            ask(SetLinkRate(fault[0], "fab0", rate or 200.0, fault[1]))

    def test_faults(cluster, request):
        ask = run_of(request.config).client.ask_launcher
        told = {}
        with cluster.world() as world:
            told["healthy"] = [world.run(found, group=True) for _ in range(5)]
            for name, faults in FAULTS.items():
                for fault in faults:
                    put(ask, fault, fault[-1])
                told[name] = [world.run(found, group=True)]
                for fault in faults:
                    put(ask, fault, None)
            told["healed"] = [world.run(found, group=True)]
        pathlib.Path("told.json").write_text(json.dumps(told))
"""

Told = Mapping[str, list[list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """By fault: what each rank said of it, a list a search."""
    need_rack()
    directory = tmp_path_factory.mktemp("rack")
    write_files(directory, test_it=TESTS)
    run = run_pytest(directory, "--mnode-nodes=4")
    assert run.returncode == 0, run.output
    found: Told = json.loads((directory / "told.json").read_text())
    return found


def test_all_ranks_say_the_same(told: Told) -> None:
    for searches in told.values():
        for ranks in searches:
            assert ranks == [ranks[0]] * 4


def test_a_rack_that_is_well_is_never_accused(told: Told) -> None:
    searches = [ranks[0] for ranks in [*told["healthy"], *told["healed"]]]
    assert [found["culprit"] for found in searches] == [None] * 6
    assert all(found["told"].startswith("no culprit: pairs keep the rate") for found in searches)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "node",
            r"node2 fab0 \(RATE, alone with node[013]( or node[013]){1,2}; other nodes [12]\d\d\)",
        ),
        (
            "tx",
            r"node1 fab0 tx \(RATE, alone with (node0 or )?node2 or node3; other nodes [12]\d\d\)",
        ),
        (
            "rx",
            r"node3 fab0 rx \(RATE, alone with node0 or node1( or node2)?; other nodes [12]\d\d\)",
        ),
        ("path", r"the path node1→node3 \(RATE\): both nodes are fast with others"),
        ("pair", r"the path node1↔node3 \(RATE\): both nodes are fast with others"),
        (
            "two nodes",
            r"node0 fab0 \(RATE, alone with .*?; other nodes [12]\d\d\); "
            r"node3 fab0 tx \(RATE, alone with .*?; other nodes [12]\d\d\)",
        ),
        (
            "node and path",
            r"node0 fab0 \(RATE, alone with .*?; other nodes [12]\d\d\); "
            r"the path node2→node1 \(RATE\): both nodes are fast with others",
        ),
        ("fabric", r"the fabric as a whole: every pair is slow, e\.g\. RATE"),
    ],
)
def test_each_fault_is_named(told: Told, fault: str, words: str) -> None:
    [[found, *_]] = told[fault]
    # A third partner where the cores were busy while one of the two was measured.
    named = re.match(words.replace("RATE", r"\d\d\d? Mbit/s"), found["told"])
    assert named, found
    # And paths of a node that is slow by itself, where one was slower still for a moment.
    further = found["told"][named.end() :]
    assert re.fullmatch(r"(; (suspected, not confirmed: )?the paths? .*)?", further), found
    slow = set(re.findall(r"(node\d) fab0", words))
    paths = re.findall(r"(node\d)[→↔](node\d)", further)
    assert all(slow & {*path} for path in paths), found
