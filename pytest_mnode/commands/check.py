"""Turn checks of nodes red on the rack: each by its own fault, on one node of four.

All checks that have a fault are tried in one run, or those that are named by their tests, such as
test_huge_pages_are_alike. Checks of ./conftest.py are found too. Prints one line for each; the exit
status is 1 if a check did not fail on the node with the fault, or failed on another one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.evidence.check import Check

NODES, FAULTY, OTHER = 4, "node2", "node3"
_SUITE = ("--pyargs", "pytest_mnode.acceptance.test_preflight")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="TEST", help="default: all that have a fault")


def run(options: argparse.Namespace) -> int:
    chosen = _chosen(options.cases)
    verdicts = red_run(chosen)
    green = False
    for one in chosen:
        found = verdicts.get(one.case(), {})
        failed = [node for node, verdict in found.items() if verdict == "fail"]
        # Of a path, both ends fail.
        right = failed == ([FAULTY, OTHER] if "{other}" in one.fault else [FAULTY])
        shown = ", ".join(f"{node} {verdict}" for node, verdict in found.items())
        words = f"red on {' and '.join(failed)} alone" if right else f"NOT red there alone: {shown}"
        print(f"{one.case()}: {words}, by {_fault(one)}")
        green |= not right
    return int(green)


def red_run(checks: Sequence[type[Check]]) -> dict[str, dict[str, str]]:
    """Verdicts by case and node, of a run of the rack in which one node has the faults of all.

    Raises UsageError, with pytest's output, if there was no run.
    """
    import yaml

    from pytest_mnode.errors import UsageError
    from pytest_mnode.spec import default_spec_path

    page = yaml.safe_load(default_spec_path().read_text())
    rack = page["criteria"]["preflight"]
    keys = {one: one.key.removeprefix("preflight.") for one in checks}
    promises = {
        key: yaml.safe_load(one.promised_as) if one.promised_as else rack[key]
        for one, key in keys.items()
    }
    page["criteria"] = {"preflight": promises}
    with tempfile.TemporaryDirectory() as directory:
        spec, report = Path(directory, "spec.yaml"), Path(directory, "report")
        spec.write_text(yaml.safe_dump(page))
        options = (f"--mnode-nodes={NODES}", f"--mnode-spec={spec}", f"--mnode-report={report}")
        faults = f"--mnode-fault={','.join(map(_fault, checks))}"
        only = ("-k", " or ".join(one.case() for one in checks))
        argv = [sys.executable, "-m", "pytest", *options, faults, *only, *_SUITE]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        certificate = report / "certificate.json"
        if not certificate.exists():
            raise UsageError(f"there was no run:\n{done.stdout}{done.stderr}")
        criteria = json.loads(certificate.read_text())["criteria"]
    return _verdicts(criteria)


def _fault(one: type[Check]) -> str:
    return one.fault.format(node=FAULTY, other=OTHER)


def _verdicts(criteria: Sequence[Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for case in (case for one in criteria for case in one["cases"]):
        name, _, node = case["test"].rpartition("::")[2].partition("[")
        found.setdefault(name, {})[node.removesuffix("]")] = case["verdict"]
    return found


def _chosen(cases: Sequence[str]) -> list[type[Check]]:
    from pytest_mnode.errors import UsageError
    from pytest_mnode.evidence.check import catalogue

    if (conftest := Path("conftest.py")).exists():
        spec = spec_from_file_location("conftest", conftest.resolve())
        assert spec is not None
        assert spec.loader is not None
        sys.modules["conftest"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    able = {one.case(): one for one in catalogue() if one.fault}
    if unknown := [case for case in cases if case not in able]:
        accepted = ", ".join(able)
        raise UsageError(f"no check with a fault: {', '.join(unknown)}; accepted: {accepted}")
    return [able[case] for case in cases or able]
