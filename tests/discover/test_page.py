from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.discover.page import WIDTH, Entry, listed, mapped, rendered, scalar


def test_a_page_loads_with_the_intended_values() -> None:
    text = rendered(
        ["First.", "- a list", "Last."],
        [
            Entry("name", "x", "What it is called.", gap=True),
            Entry("lines", items=("one: 1", "two")),
            Entry(
                "part", children=(Entry("inner", "1", "Why."), Entry("gone", "2", left_out=True))
            ),
        ],
    )
    assert text == (
        "# First.\n#\n# - a list\n#\n# Last.\n\n# What it is called.\nname: x\n"
        'lines:\n  - "one: 1"\n  - two\n'
        "part:\n  # Why.\n  inner: 1\n  # gone: 2\n"
    )
    assert yaml.safe_load(text) == {"name": "x", "lines": ["one: 1", "two"], "part": {"inner": 1}}


def test_long_comments_are_wrapped() -> None:
    text = rendered([], [Entry("key", "1", "word " * 60)])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert yaml.safe_load(text) == {"key": 1}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fab0", "fab0"),
        ("mlx5_*", '"mlx5_*"'),
        ("on", '"on"'),
        ("NVIDIA H100 80GB HBM3", '"NVIDIA H100 80GB HBM3"'),
        ("1500", '"1500"'),
        ("a: b # c", '"a: b # c"'),
        ("", '""'),
    ],
)
def test_texts_that_yaml_could_misread_are_quoted(text: str, shown: str) -> None:
    assert scalar(text) == shown


@given(st.lists(st.text(), max_size=4))
def test_any_text_stays_a_text_on_one_line(texts: list[str]) -> None:
    line = f"key: {mapped({'a': listed(texts)})}"
    assert len(line.splitlines()) == 1
    assert all(isinstance(text, str) for text in yaml.safe_load(line)["key"]["a"])


@given(st.text())
def test_no_comment_becomes_a_key(text: str) -> None:
    page = rendered([text], [Entry("key", "1", text)])
    assert yaml.safe_load(page) == {"key": 1}
