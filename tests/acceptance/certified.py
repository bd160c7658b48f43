"""Runs the acceptance suite on the rack and reads its certificate."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pytest_mnode.spec import default_spec_path
from tests import red
from tests.inner import LIMIT_S, InnerRun, need_rack, run_pytest, write_files

PORTS = "test_fabric_ports_stay_up_and_free_of_errors"
AGAIN = "free the nodes of other work and run again"
"""Advice of a certificate if other programs used the cores: then no culprit is named."""
_RUNS = 3
ACCEPTANCE = Path(__file__).parents[2] / "acceptance"


@dataclass(frozen=True)
class Certified:
    """A run of the acceptance suite with its certificate."""

    run: InnerRun
    certificate: Mapping[str, Any]

    def __post_init__(self) -> None:
        red.register(self)

    def criterion(self, name: str) -> Mapping[str, Any]:
        return next(c for c in self.certificate["criteria"] if c["name"] == name)

    def cases(self, name: str) -> dict[str, Mapping[str, Any]]:
        """Cases of a criterion by the name of their test."""
        return {c["test"].partition("::")[2]: c for c in self.criterion(name)["cases"]}

    def case(self, name: str, test: str) -> tuple[str, dict[str, Mapping[str, Any]]]:
        """The verdict of a case, and its measurements."""
        case = self.cases(name)[test]
        return case["verdict"], {m["name"]: m for m in case["measurements"]}

    def measurements(self, name: str) -> dict[str, Mapping[str, Any]]:
        return {m["name"]: m for c in self.criterion(name)["cases"] for m in c["measurements"]}

    def failed(self, name: str) -> dict[str, str]:
        """Culprit of each failed measurement of a criterion."""
        found = self.measurements(name).items()
        return {which: str(m["culprit"]) for which, m in found if m["verdict"] == "fail"}

    def culprits(self, name: str) -> set[str]:
        cases = self.criterion(name)["cases"]
        named = {c["culprit"] for c in cases if c["verdict"] != "pass"}
        measured = [m for case in cases for m in case["measurements"]]
        named |= {m["culprit"] for m in measured if m["verdict"] == "fail"}
        return named - {None}


def certificate_of(run: InnerRun, report: Path) -> Certified:
    """A run with the certificate that it wrote into this directory."""
    page = report / "certificate.json"
    assert page.exists(), run.output
    return Certified(run, json.loads(page.read_text()))


def certify(
    directory: Path,
    *args: str,
    fault: str | None = None,
    env: Mapping[str, str] | None = None,
    files: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    cold: bool = True,
) -> Certified:
    """Run acceptance/, or the named files of it, on four nodes of a rack.

    fault: the text of a pytest plugin. files: names such as "test_mesh.py". cold: see `run_pytest`.
    The run is repeated at most twice, if its certificate advises that; repeats are counted.
    """
    need_rack()
    if fault is not None:
        write_files(directory, fault=fault)
        args = ("-p", "fault", *args)
    # Charts take half a second or more per run, and no test here uses them.
    write_files(directory, matplotlib="raise ImportError")
    report = directory / "report"
    what = [str(ACCEPTANCE / file) for file in files] or [str(ACCEPTANCE)]
    arguments = ("--mnode-nodes=4", *what, f"--mnode-report={report}", *args)
    path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
    more = {"PYTHONPATH": path, **(env or {})}
    page = report / "certificate.json"
    for left in reversed(range(_RUNS)):
        page.unlink(missing_ok=True)
        run = run_pytest(directory, *arguments, env=more, limit_s=limit_s, cold=cold)
        text = page.read_text() if page.exists() else ""
        if not left or AGAIN not in text:
            break
        red.register_repeat(next(line.strip() for line in text.splitlines() if AGAIN in line))
    return certificate_of(run, report)


def spec_with(directory: Path, *changes: tuple[str, str]) -> str:
    """--mnode-spec with the rack's spec after these regular expression replacements."""
    text = default_spec_path().read_text()
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        assert count == 1, pattern
    path = directory / "spec.yaml"
    path.write_text(text)
    return f"--mnode-spec={path}"


def spec_edited(directory: Path, edit: Callable[[dict[str, Any]], None]) -> str:
    """--mnode-spec with the rack's spec after `edit`."""
    page = yaml.safe_load(default_spec_path().read_text())
    edit(page)
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(page))
    return f"--mnode-spec={path}"


def promised(name: str) -> dict[str, Any]:
    """What the rack's spec promises of a criterion."""
    page: dict[str, Any] = yaml.safe_load(default_spec_path().read_text())["criteria"][name]
    return page


def spec_of(directory: Path, **changes: Any) -> str:
    """--mnode-spec with the rack's spec, except for these keys."""
    return spec_edited(directory, lambda page: page.update(changes))
