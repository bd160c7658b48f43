"""Text from tests made fit for a report: no colours, nothing XML cannot carry, no megabytes."""

from __future__ import annotations

import re

# A message longer than this keeps its end, where the error stands.
LONGEST = 8_000

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# What XML 1.0 forbids (section 2.2), and the controls and non-characters it discourages.
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


def first_line(text: str, longest: int = 500) -> str:
    """The first line of `text` that says something, cut with an ellipsis."""
    line = next((line.strip() for line in fit(text).splitlines() if line.strip()), "")
    return line if len(line) <= longest else line[: longest - 1] + "…"
