"""Transparent huge pages, from the text of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.checks.node.huge_pages import HugePagesAreAlike
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts

FILE = "sys/kernel/mm/transparent_hugepage/enabled"


@pytest.mark.parametrize(
    ("promise", "texts", "expected", "culprits"),
    [
        ("same", ["[always] madvise never"] * 2 + ["always [madvise] never"], "p p f", {"2"}),
        ("same", ["[always] madvise never", "garbage", "[always] madvise never"], "p i p", set()),
        ("always", ["[always] madvise never", "always madvise [never]"], "p f", {"1"}),
        ("madvise", ["[always] madvise never", ""], "f i", {"0"}),
    ],
)
def test_another_mode_is_found(
    tmp_path: Path, promise: str, texts: list[str], expected: str, culprits: set[str]
) -> None:
    nodes = {str(i): tree(tmp_path / str(i), {FILE: text}) for i, text in enumerate(texts)}
    found = judged(HugePagesAreAlike, promise, nodes)
    assert verdicts(found) == expected
    assert blamed(found) == culprits


def test_a_drafted_promise_is_what_nodes_have_in_common(tmp_path: Path) -> None:
    rows = rows_of(HugePagesAreAlike, "same", tree(tmp_path, {FILE: "[always] never"})).rows
    assert HugePagesAreAlike.draft({"a": rows, "b": rows}) == "same"
    assert HugePagesAreAlike.draft({"a": rows}) is None
    assert HugePagesAreAlike.draft({"a": rows, "b": ()}) is None
