"""A site's own checks: in an installed package with an entry point, and in a conftest.py."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pytest_mnode.commands.check import runs_of
from pytest_mnode.spec import default_spec_path
from tests.inner import clean_env, need_rack, run_pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "fixtures" / "example_site"
CASE = "test_swap_is_off"
PREFLIGHT = ROOT / "acceptance" / "test_preflight.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example package installed, and its metadata."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    # A copy, for what a build writes beside its sources.
    source = shutil.copytree(SITE, tmp_path_factory.mktemp("source") / "site")
    subprocess.run([*pip, *offline, str(source)], check=True, timeout=120)
    return target


def spec(directory: Path, promise: Any = "none") -> str:
    """The rack's spec, which promises of preflight the example's key alone."""
    page = yaml.safe_load(default_spec_path().read_text())
    page["criteria"] = {"preflight": {"swap": promise}}
    (directory / "spec.yaml").write_text(yaml.safe_dump(page))
    return f"--mnode-spec={directory / 'spec.yaml'}"


def path_with(*directories: Path) -> dict[str, str]:
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join([*map(str, directories), *inherited])}


SWAPS = "other_text:node2:/proc/swaps:/dev/sda2 partition 8388604 0 -2"


def test_a_package_brings_its_check_to_all_nodes(tmp_path: Path, site: Path) -> None:
    need_rack()
    hidden = f"full_disk:node1:{site}"  # node1 has not the package
    done = run_pytest(
        tmp_path,
        "--mnode-nodes=3",
        f"--mnode-report={tmp_path / 'report'}",
        f"--mnode-fault={SWAPS},{hidden}",
        spec(tmp_path),
        *("-k", CASE, str(PREFLIGHT)),
        env=path_with(site),
    )
    assert (tmp_path / "report/certificate.json").exists(), done.output
    certificate = json.loads((tmp_path / "report/certificate.json").read_text())
    [preflight] = [one for one in certificate["criteria"] if one["name"] == "preflight"]
    found = {case["test"].partition("::")[2]: case for case in preflight["cases"]}
    verdicts = {name: case["verdict"] for name, case in found.items()}
    assert verdicts == {
        f"{CASE}[node0]": "pass",
        f"{CASE}[node1]": "inconclusive",
        f"{CASE}[node2]": "fail",
    }
    [one] = found[f"{CASE}[node2]"]["measurements"]
    assert (one["value"], one["culprit_nodes"]) == (1, ["node2"])
    assert one["source"] == "preflight.swap none"
    [unread] = found[f"{CASE}[node1]"]["measurements"]
    assert "node1: no module 'example_site': install it on the node" in unread["note"]


GREEN = """

@check("preflight.green")
class StaysGreen(SwapIsOff):
    "Is it green?"

    fault = "other_text:{node}:/sys/no-such:0"

    def read(self, root: Path) -> Iterator[Row]:
        yield row("swap areas", 0)
"""
ISOLATED = """
from collections import Counter

from pytest_mnode import RankRows, RowsOfRanks

"""


def test_a_command_shows_which_checks_of_a_conftest_turn_red(tmp_path: Path) -> None:
    need_rack()
    text = (SITE / "example_site.py").read_text() + GREEN
    (tmp_path / "conftest.py").write_text(f"from __future__ import annotations\n{text}")
    (tmp_path / "pytest.ini").touch()
    argv = [sys.executable, "-m", "pytest_mnode", "check", CASE, "test_stays_green"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**clean_env(), **path_with(ROOT), "TMPDIR": str(temporary)}
    done = subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    red, green = done.stdout.splitlines()
    assert red.startswith(f"{CASE}: red on node2 alone, by other_text:node2:/proc/swaps:")
    assert "test_stays_green: NOT red there alone: node0 pass, node1 pass, node2 pass" in green
    assert done.returncode == 1
    assert done.stderr == ""
    assert list(temporary.glob("tmp*")) == []


def test_checks_of_ranks_are_tried_each_by_itself() -> None:
    checks: list[Any] = [SimpleNamespace(on=on) for on in ("node", "world", "rank")]
    a, b, c = checks
    assert runs_of([*checks, b]) == [[a, c], [b], [b]]


RAISES = """
from pytest_mnode import Check, Measurement, RowsOfRanks, check, row
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck

@check("numa.broken")
class RanksAnswer(RowsOfRanks):
    "Does every rank answer?"
    promise: int
    def read_rank(self, world, device):
        yield row("before", 1)
        if world.rank == 1:
            raise ValueError("no such tool")
    def rule(self, found):
        yield Measurement.none_allowed("silent", [], "all")

class _Survey(SurveyCheck):
    promise: int
    def rows(self, node):
        if node.name == "node1":
            raise ValueError("no such tool")
        yield row("found", 1)
    def rule(self, rows):
        yield rows.at_most("found", self.promise)

@check("preflight.broken_rows")
class BrokenRows(_Survey):
    "Are rows there?"

@check("preflight.broken_rule")
class BrokenRule(_Survey):
    "Is a rule there?"
    rows = lambda self, node: [row("found", 1)]
    def rule(self, rows):
        return 1 // 0
"""


def test_a_check_of_a_site_that_raises_is_inconclusive_and_harms_no_other(tmp_path: Path) -> None:
    """One of the others is the check of ranks that the docs show, which blames its node."""
    need_rack()
    docs = (ROOT / "docs" / "own-checks.md").read_text()
    [shown] = re.findall(r"(?ms)^```python\n(@check\(\"numa.*?)^```$", docs)
    text = (SITE / "example_site.py").read_text() + ISOLATED + shown + RAISES
    (tmp_path / "conftest.py").write_text(f"from __future__ import annotations\n{text}")
    page = yaml.safe_load(default_spec_path().read_text())
    page["criteria"] = {
        "numa": {"broken": 1, "isolated": "same"},
        "preflight": {"broken_rows": 1, "broken_rule": 1, "huge_pages": "same"},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(page))
    suite = ["test_preflight.py", "test_numa.py"]  # beside conftest.py, which is read for them
    for name in suite:
        shutil.copy(PREFLIGHT.with_name(name), tmp_path)
    options = (f"--mnode-report={tmp_path / 'report'}", f"--mnode-spec={tmp_path / 'spec.yaml'}")
    fault = "--mnode-fault=other_text:node2:/sys/devices/system/cpu/isolated:0"
    chosen = ("-k", "broken or answer or huge_pages or isolated")
    done = run_pytest(tmp_path, "--mnode-nodes=3", *options, fault, *chosen, *suite)
    assert "Traceback" not in done.output
    assert (tmp_path / "report/certificate.json").exists(), done.output
    certificate = json.loads((tmp_path / "report/certificate.json").read_text())
    every = [case for one in certificate["criteria"] for case in one["cases"]]
    cases = {case["test"].partition("::")[2]: case for case in every}
    assert {name: case["verdict"] for name, case in cases.items()} == {
        **{f"test_huge_pages_are_alike[node{n}]": "pass" for n in range(3)},
        **{f"test_broken_rows[node{n}]": "pass" for n in (0, 2)},
        "test_broken_rows[node1]": "inconclusive",
        **{f"test_broken_rule[node{n}]": "inconclusive" for n in range(3)},
        "test_ranks_answer": "inconclusive",
        "test_same_cpus_are_isolated": "fail",
    }, done.output
    found = {name: case["measurements"][0]["note"] for name, case in cases.items()}
    [odd] = cases["test_same_cpus_are_isolated"]["measurements"]
    assert odd["culprit_nodes"] == ["node2"]
    tool = "its reading raised ValueError: no such tool (conftest.py, line"
    assert f"node1: {tool}" in found["test_broken_rows[node1]"]
    assert f"rank 1 on node1: {tool}" in found["test_ranks_answer"]
    assert "its rule raised ZeroDivisionError" in found["test_broken_rule[node0]"]


def test_the_command_names_the_checks_that_it_can_try(tmp_path: Path) -> None:
    done = python("from pytest_mnode.commands import main; print(main(['check', 'test_x']))")
    assert done.stdout == "2\n"
    assert "no check with a fault: test_x; accepted: " in done.stderr
    assert "test_huge_pages_are_alike" in done.stderr


def python(code: str, *directories: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **path_with(*directories, ROOT)}
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_its_promise_is_of_the_type_it_declares(tmp_path: Path, site: Path) -> None:
    load = (
        "from pathlib import Path; from pytest_mnode.spec import load_spec\n"
        "for directory in 'none', 'some':\n"
        " try: print(load_spec(Path(directory, 'spec.yaml')).criteria.preflight.swap)\n"
        " except Exception as error: print(type(error).__name__, error)\n"
    )
    for promise in ("none", "some"):
        (tmp_path / promise).mkdir()
        spec(tmp_path / promise, promise)
    load = load.replace("Path(d", f"Path({str(tmp_path)!r}, d")
    kept, line = python(load, site).stdout.splitlines()
    assert kept == "none"
    assert re.search(r"SpecError .*spec\.yaml: criteria\.preflight\.swap: 'some'.*'none'", line)
    line, _ = python(load).stdout.splitlines()  # without the package
    assert "SpecError" in line
    assert "criteria.preflight.swap: unknown key" in line


MINE = """
from pytest_mnode import Check, check
@check("preflight.{key}")
class {name}(Check):
    "Is it?"
    promise: int
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        (
            MINE.format(key="x", name="HugePagesAreAlike"),
            "has one of that name",
        ),
        (
            MINE.format(key="huge_pages", name="Mine"),
            "preflight.huge_pages has another type of promise",
        ),
    ],
    ids=["import", "error", "syntax", "name", "key"],
)
def test_a_broken_package_is_one_line_and_no_run(
    tmp_path: Path, site: Path, text: str, why: str
) -> None:
    broken = shutil.copytree(site, tmp_path / "broken")
    (broken / "example_site.py").write_text(text)
    done = run_pytest(
        tmp_path,
        spec(tmp_path),
        "--mnode-nodes=2",
        str(PREFLIGHT),
        env=path_with(broken),
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.output
    [line] = [one for one in done.output.splitlines() if one.strip()]
    assert "example_site" in line
    assert why in line
