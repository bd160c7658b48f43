"""Transparent huge pages: a node with another mode allocates, and pins, at another speed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Measurement

_MODE = "mode of transparent huge pages"
_FILE = "sys/kernel/mm/transparent_hugepage/enabled"


@check("preflight.huge_pages")
class HugePagesAreAlike(Check):
    """Do all nodes use transparent huge pages alike?"""

    promise: Literal["same", "always", "madvise", "never"]
    """Mode of transparent huge pages; same: that of the other nodes, whatever it is."""

    def read(self, root: Path) -> Iterator[Row]:
        text = (root / _FILE).read_text()
        chosen = re.search(r"\[(\w+)\]", text)
        yield row(_MODE, chosen[1] if chosen else None, why=f"{_FILE} reads {text.strip()!r}")

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        same = self.promise == "same"
        yield rows.same(_MODE) if same else rows.equals(_MODE, self.promise)

    fault = f"other_text:{{node}}:/{_FILE}:always madvise [never]"
    promised_as = "same"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> str | None:
        return "same" if len(rows) > 1 and len(seen(rows, _MODE)) == 1 else None
