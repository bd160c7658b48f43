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
        "rx": [("node3", "rx", 70)],
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
        return {"report": str(it), "culprit": it.culprit, "again": bool(it.unsteady), **effort}

    from pytest_mnode.protocol.launcher_requests import SetLinkRate, SetPairRate

    def put(ask, fault, rate):
        if len(fault) == 2:
            ask(SetPairRate(*fault[0], "fab0", rate))
        else:
            ask(SetLinkRate(fault[0], "fab0", rate or 200.0, fault[1]))

    def searched(world):
        # Again where the product advises that because pairs do not keep a rate.
        for _ in range(8):
            ranks = world.run(found, group=True)
            if not ranks[0]["again"]:
                break
        return ranks

    def test_faults(cluster, request):
        ask = run_of(request.config).client.ask_launcher
        reports = {}
        with cluster.world() as world:
            reports["healthy"] = [searched(world) for _ in range(2)]
            for name, faults in FAULTS.items():
                for fault in faults:
                    put(ask, fault, fault[-1])
                reports[name] = [searched(world)]
                for fault in faults:
                    put(ask, fault, None)
            reports["healed"] = [searched(world)]
        pathlib.Path("reports.json").write_text(json.dumps(reports))
"""

Reports = Mapping[str, list[list[dict[str, Any]]]]
PATH = re.compile(r"node\d[→↔]node\d")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Results of each rank by fault, one list per search."""
    need_rack()
    directory = tmp_path_factory.mktemp("rack")
    write_files(directory, test_it=TESTS)
    run = run_pytest(directory, "--mnode-nodes=4")
    assert run.returncode == 0, run.output
    found: Reports = json.loads((directory / "reports.json").read_text())
    return found


def test_all_ranks_find_the_same(reports: Reports) -> None:
    for searches in reports.values():
        for ranks in searches:
            assert ranks == [ranks[0]] * 4


def test_a_healthy_rack_has_no_culprit(reports: Reports) -> None:
    searches = [ranks[0] for ranks in [*reports["healthy"], *reports["healed"]]]
    assert [found["culprit"] for found in searches] == [None] * 3
    assert all(
        found["report"].startswith("no culprit: every measured pair keeps the rate")
        for found in searches
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "rx",
            r"node3 fab0 rx \(RATE, alone with node0 or node1( or node2)?; other nodes \d\d\d\)",
        ),
        ("pair", r"the path node1↔node3 \(RATE\): both nodes are fast with others"),
        (
            "two nodes",
            r"node0 fab0 \(RATE, alone with .*?; other nodes \d\d\d\); "
            r"node3 fab0 tx \(RATE, alone with .*?; other nodes \d\d\d\)",
        ),
        (
            "node and path",
            r"node0 fab0 \(RATE, alone with .*?; other nodes \d\d\d\); "
            r"the paths? (.*, )?node2→node1 \(RATE\).*: (both|their) nodes are fast with others",
        ),
        ("fabric", r"the fabric as a whole: every pair is slow, e\.g\. RATE"),
    ],
)
def test_each_fault_is_named(reports: Reports, fault: str, words: str) -> None:
    [[found, *_]] = reports[fault]
    # A third partner, if other programs used the cores while one of the two was measured.
    named = re.match(words.replace("RATE", r"\d\d\d? Mbit/s"), found["report"])
    assert named, found
    # And paths of a node that is slow by itself, if one was even slower for a moment.
    further = found["report"][named.end() :]
    assert re.fullmatch(r"(; (suspected, not confirmed: )?the paths? .*)?", further), found
    slow = set(re.findall(r"(node\d) fab0", words))
    paths = {text: set(re.findall(r"node\d", text)) for text in PATH.findall(found["report"])}
    assert all(text in words or slow & nodes for text, nodes in paths.items()), found
