"""The page of checks is made from them, and the chapter on own checks shows the example package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pytest_mnode.evidence.check import catalogue

ROOT = Path(__file__).parents[2]
SITE = ROOT / "fixtures" / "example_site"


def test_the_page_of_checks_is_current() -> None:
    argv = [sys.executable, "-m", "pytest_mnode.checks.docs"]
    made = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    page = (ROOT / "docs" / "checks.md").read_text()
    assert made.stdout == page, (
        "out of date; run python -m pytest_mnode.checks.docs > docs/checks.md"
    )


def test_each_check_says_how_it_is_promised_read_and_turned_red() -> None:
    page = (ROOT / "docs" / "checks.md").read_text()
    for one in catalogue():
        [section] = [part for part in page.split("\n## ") if f"test `{one.case()}`" in part]
        assert section.startswith(one.question())
        assert f"- key {', '.join(f'`{key}`' for key in one.all_keys())}: " in section
        assert (f"--mnode-fault={one.fault.split(':')[0]}:" in section) is bool(one.fault)
        assert all(stopped in section for stopped in one.stops)
    assert "typing." not in page  # a type that nobody could write into a spec
    assert "<class" not in page


def test_the_example_in_the_docs_is_the_package_that_is_tested() -> None:
    page = (ROOT / "docs" / "own-checks.md").read_text()
    shown = dict(re.findall(r"(?ms)^```(python|toml)\n(.*?)^```$", page)[:2])
    assert shown["python"] == (SITE / "example_site.py").read_text()
    assert shown["toml"] == (SITE / "pyproject.toml").read_text()
