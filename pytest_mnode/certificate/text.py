"""Text and values of tests made fit for a report: without colours, and as JSON types."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from pydantic.dataclasses import dataclass

# A message longer than this keeps its end, where the error is.
LONGEST = 8_000

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Characters that XML 1.0 forbids (section 2.2), and controls and non-characters it discourages.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufddf\ufffe\uffff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 17))
    + "]"
)


def fit(text: str, longest: int = LONGEST) -> str:
    """`text` without colours, unfit characters as escapes such as \\x00, trimmed to its end."""
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    if (cut := len(text) - longest) > 0:
        text = f"[{cut} characters left out]\n{text[-longest:]}"
    return _UNFIT.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def parameter_of(test: str) -> str:
    """The parameter in a node id, such as "node2" in "a/test_b.py::test_c[node2]"; else ""."""
    return test.partition("::")[2].partition("[")[2].removesuffix("]")


def with_case(name: str, test: str, which: str = "") -> str:
    """A measurement's name with its case and `which`, such as "clock skew (node2, 1 of 2)"."""
    which = ", ".join(filter(None, [parameter_of(test), which]))
    return f"{name} ({which})" if which else name


def first_line(text: str, longest: int = 500) -> str:
    """The first line of `text` that is not blank, cut with an ellipsis."""
    line = next((line.strip() for line in fit(text).splitlines() if line.strip()), "")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def one_line(text: str) -> str:
    """`text` fit for a report, with one blank for each run of blanks and line ends."""
    return " ".join(fit(text).split())


@dataclass(frozen=True)
class Recorded:
    """A value of a test's `record_property`; if only some ranks recorded it, `name` has them."""

    name: str
    value: str | bool | int | float | None


def recorded_from(properties: Sequence[tuple[Any, Any]]) -> tuple[Recorded, ...]:
    """The test's own properties of a report; values without a JSON type become text."""

    def plain(value: Any) -> Any:
        finite = isinstance(value, float) and math.isfinite(value)
        return value if finite or type(value) in (bool, int, type(None)) else fit(str(value))

    named = [(str(name), value) for name, value in properties]
    own = [(name, value) for name, value in named if not name.startswith("mnode.")]
    return tuple(Recorded(fit(name), plain(value)) for name, value in own)
