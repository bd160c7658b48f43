"""The whole acceptance suite on an engine, with a small promise of every criterion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.certified import ACCEPTANCE, Certified, certificate_of
from tests.engines.inside import Engine, page_for, run_pytest

ALL_REDUCE = "all_reduce_busbw"
RATES = {"devices", "fabric", "numa", "scaling"}
"""Criteria of rates: those of two cores that are four nodes vary while others use them, and what
varies too much is inconclusive."""


def short_page(engine: Engine, name: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """Criteria of the rack's spec, with few sizes, few rounds and one kill."""
    page = page_for(engine, name)
    criteria = page["criteria"]
    fabric = criteria["fabric"]
    for collective in [key for key in fabric if key.endswith("_busbw") and key != ALL_REDUCE]:
        del fabric[collective]
    fabric[ALL_REDUCE]["at_least_fraction"] = 0.6
    fabric["transport"] = {"size": "2 MiB", "calls": 2}
    criteria["launch"] |= {
        "rendezvous": {"ranks": 8, "within": "10 s"},
        "store": {"clients": [64], "within": "10 s"},
    }
    criteria["launch"].pop("deepspeed")
    criteria["scaling"] |= {"compute": "300 ms", "rounds": 2, "most_rounds": 8}
    criteria["scaling"]["at_most_uncertainty"] = 0.05
    # With few cores a command on a node takes half a second.
    criteria["restart"] |= {"kills": ["node"], "within": "120 s", "pause": "0.3 s"}
    del criteria["restart"]["resharded_tolerance"]
    for criterion in without:
        del criteria[criterion]
        page["not_promised"].append({"question": criterion, "reason": "shown on the rack"})
    return page


def certify_whole(
    engine: Engine,
    directory: Path,
    page: dict[str, Any],
    *args: str,
    before: Sequence[str] = (),
    limit_s: float = 560.0,
) -> Certified:
    """Run all of acceptance/ from the login node on four nodes; the run and its certificate.

    before: a command that runs it, such as salloc.
    """
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(page, sort_keys=False))
    report = directory / "report"
    given = ("--mnode-nodes=4", f"--mnode-spec={path}", f"--mnode-report={report}", *args)
    run = run_pytest(
        engine, directory, "--durations=20", *given, str(ACCEPTANCE), before=before, limit_s=limit_s
    )
    return certificate_of(run, report)


def assert_certified(
    done: Certified, page: dict[str, Any], launcher: str, nodes: Sequence[str]
) -> None:
    """Every criterion of the spec passes, including nodes that were switched off and on."""
    certificate = done.certificate
    promised = set(page["criteria"])
    verdicts = {c["name"]: c["verdict"] for c in certificate["criteria"] if c["name"] in promised}
    assert set(verdicts) == promised
    others = {name: verdict for name, verdict in verdicts.items() if verdict != "pass"}
    assert others.keys() <= RATES, done.run.output
    assert {*others.values()} <= {"inconclusive"}, done.run.output
    if not others:
        assert certificate["verdict"] == "certified", done.run.output
    assert certificate["run"]["launcher"] == launcher
    assert certificate["run"]["nodes"] == list(nodes)
    [lost] = [c for test, c in done.cases("restart").items() if test.endswith("[node]")]
    assert lost["verdict"] == "pass", done.run.output
    assert lost["measurements"]
