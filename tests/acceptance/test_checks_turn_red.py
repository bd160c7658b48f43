"""Each check that names its fault is turned red by it, on the nodes that have it and no other."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.spec import default_spec_path, load_spec
from tests.acceptance.certified import certify, spec_with
from tests.red import turns_red

NODE, OTHER = "node2", "node3"
WITH_FAULT = {one.case(): one for one in catalogue() if one.fault}


@turns_red("preflight", *WITH_FAULT)
def test_each_check_finds_its_fault(tmp_path: Path) -> None:
    rack = load_spec(default_spec_path())
    keys = {one.key.removeprefix("preflight."): one for one in WITH_FAULT.values()}
    promises = "".join(
        f"\n    {key}: {one.promised_as}" for key, one in keys.items() if not promise_of(one, rack)
    )
    faults = ",".join(one.fault.format(node=NODE, other=OTHER) for one in WITH_FAULT.values())
    done = certify(
        tmp_path,
        f"--mnode-fault={faults}",
        spec_with(tmp_path, (r"(?m)^  preflight:$", f"  preflight:{promises}")),
        "-k",
        " or ".join(WITH_FAULT),
        files=("test_preflight.py",),
    )
    cases = done.cases("preflight")
    failed = {name for name, case in cases.items() if case["verdict"] == "fail"}
    pairs = {case for case, one in WITH_FAULT.items() if "{other}" in one.fault}
    expected = {f"{case}[{NODE}]" for case in WITH_FAULT} | {f"{case}[{OTHER}]" for case in pairs}
    assert failed == expected, done.run.output
    for name in failed:
        bad = [m for m in cases[name]["measurements"] if m["verdict"] == "fail"]
        sure, suspect = [NODE], []
        if name.partition("[")[0] in pairs:
            sure, suspect = [], [[NODE, OTHER]]
        assert [(m["culprit_nodes"], m["culprit_either"]) for m in bad] == [(sure, suspect)], name
