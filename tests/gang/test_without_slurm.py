"""A spec that names Slurm on a machine without Slurm: one line each, and nothing passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.acceptance.certified import ACCEPTANCE, spec_edited
from tests.inner import run_pytest


def _gangs(page: dict[str, Any]) -> None:
    page["criteria"] = {"gang": {"node_loss": "either"}, "mesh": {}}
    page["scheduler"] = {"kind": "slurm"}
    page["not_promised"] = []


def test_without_slurms_commands_nothing_is_certified(tmp_path: Path) -> None:
    files = [str(ACCEPTANCE / f"test_{name}.py") for name in ("mesh", "gang")]
    report = tmp_path / "report"
    done = run_pytest(
        tmp_path,
        *files,
        *("--mnode-launcher=slurm", "--mnode-nodes=2", spec_edited(tmp_path, _gangs)),
        *(f"--mnode-report={report}", f"--mnode-shared-dir={tmp_path}"),
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.output
    certificate = json.loads((report / "certificate.json").read_text())
    found = {c["name"]: c for c in certificate["criteria"]}
    assert {name: c["verdict"] for name, c in found.items()} == {
        "mesh": "inconclusive",
        "gang": "inconclusive",
    }, done.output
    # Gangs run first, although their file was named last; no nodes were requested before.
    assert done.output.index("test_gang.py") < done.output.index("test_mesh.py")
    for case in found["gang"]["cases"]:
        [tried] = case["measurements"]
        assert tried["name"] == "experiments that could not be conducted"
        assert tried["note"].startswith("sinfo: no such command on this machine"), tried
    messages = {
        case["message"].splitlines()[0].removeprefix("Failed: ") for case in found["mesh"]["cases"]
    }
    assert len(messages) == 1, messages
    assert "slurm" in next(iter(messages)).lower()
    assert list(tmp_path.glob(".mnode*")) == []
