"""Each check that names its fault is turned red by it, on the node that has it and no other."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.evidence.check import catalogue
from tests.acceptance.certified import certify, spec_with
from tests.red import turns_red

NODE = "node2"
WITH_FAULT = {one.case(): one for one in catalogue() if one.fault}


@turns_red("preflight", *WITH_FAULT)
def test_each_check_finds_its_fault(tmp_path: Path) -> None:
    keys = {one.key.removeprefix("preflight."): one for one in WITH_FAULT.values()}
    promises = "".join(f"\n    {key}: {one.promised_as}" for key, one in keys.items())
    faults = ",".join(one.fault.format(node=NODE) for one in WITH_FAULT.values())
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
    assert failed == {f"{case}[{NODE}]" for case in WITH_FAULT}, done.run.output
    for name in failed:
        bad = [m for m in cases[name]["measurements"] if m["verdict"] == "fail"]
        assert {tuple(m["culprit_nodes"]) for m in bad} == {(NODE,)}, name
