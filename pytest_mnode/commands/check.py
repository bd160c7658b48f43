"""Turn checks red on the rack: each by its own fault, on one node of four.

All checks that have a fault are tried, or those that are named by their tests, such as
test_huge_pages_are_alike: those of nodes in one run, and each of devices by itself. Checks of
./conftest.py are found too. Prints one line for each; the exit status is 1 if a check did not blame
the node with the fault, or blamed another one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.evidence.check import Check

NODES, FAULTY, OTHER = 4, "node2", "node3"
_SUITE = "pytest_mnode.acceptance.test_{}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="TEST", help="default: all that have a fault")


def run(options: argparse.Namespace) -> int:
    green = False
    for together in runs_of(_chosen(options.cases)):
        certificate = red_run(together)
        for one in together:
            right, words = tried(one, certificate)
            print(f"{one.case()}: {words}, by {_fault(one)}", flush=True)
            green |= not right
    return int(green)


def tried(one: type[Check], certificate: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a check blames the nodes with its fault, and no other; and words for it."""
    every = (case for criterion in certificate["criteria"] for case in criterion["cases"])
    cases = {case["test"].rpartition("::")[2]: case for case in every}
    mine = {name: case for name, case in cases.items() if name.partition("[")[0] == one.case()}
    failed = [m for case in mine.values() for m in case["measurements"] if m["verdict"] == "fail"]
    blamed = {(*m["culprit_nodes"], *map(tuple, m["culprit_either"])) for m in failed}
    if blamed == ({((FAULTY, OTHER),)} if "{other}" in one.fault else {(FAULTY,)}):
        return True, f"red on {FAULTY}{' or ' + OTHER if '{other}' in one.fault else ''} alone"
    shown = (f"{name.partition('[')[2][:-1]} {case['verdict']}" for name, case in mine.items())
    return False, f"NOT red there alone: {', '.join(map(str.strip, shown))}"


def runs_of(checks: Sequence[type[Check]]) -> list[Sequence[type[Check]]]:
    """The checks of each run: ranks that compute wrongly for one spoil what others measure."""
    of_nodes = [one for one in checks if one.on != "world"]
    return [*([of_nodes] if of_nodes else []), *([one] for one in checks if one.on == "world")]


def red_run(checks: Sequence[type[Check]]) -> Mapping[str, Any]:
    """The certificate of a run of the rack in which one node has the faults of all.

    Raises UsageError, with pytest's output, if there was no run.
    """
    import yaml

    from pytest_mnode.errors import UsageError
    from pytest_mnode.spec import default_spec_path

    page = yaml.safe_load(default_spec_path().read_text())
    rack, page["criteria"] = page["criteria"], {}
    for one in checks:
        for criterion, _, key in (key.partition(".") for key in one.all_keys()):
            promise = yaml.safe_load(one.promised_as) if one.promised_as else rack[criterion][key]
            page["criteria"].setdefault(criterion, {})[key] = promise
    suites = [_SUITE.format(criterion) for criterion in page["criteria"]]
    with tempfile.TemporaryDirectory() as directory:
        spec, report = Path(directory, "spec.yaml"), Path(directory, "report")
        spec.write_text(yaml.safe_dump(page))
        options = (f"--mnode-nodes={NODES}", f"--mnode-spec={spec}", f"--mnode-report={report}")
        faults = f"--mnode-fault={','.join(map(_fault, checks))}"
        only = ("-k", " or ".join(one.case() for one in checks))
        argv = [sys.executable, "-m", "pytest", *options, faults, *only, "--pyargs", *suites]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        certificate = report / "certificate.json"
        if not certificate.exists():
            raise UsageError(f"there was no run:\n{done.stdout}{done.stderr}")
        found: Mapping[str, Any] = json.loads(certificate.read_text())
    return found


def _fault(one: type[Check]) -> str:
    return one.fault.format(node=FAULTY, other=OTHER)


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
