"""The documentation of faults shows each fault in its written form."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_mnode.faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_every_fault_is_documented_as_it_is_written() -> None:
    shown = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(fault.form for fault in FAULTS.values())
