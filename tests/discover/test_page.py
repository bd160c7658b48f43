from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.discover.cluster import agreed, alike, named, where
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


@pytest.mark.parametrize(
    ("values", "value", "differences"),
    [
        ({"a": 1, "b": 1, "c": 1}, 1, ""),
        ({"a": 1, "b": 1, "c": 2}, 1, "c: 2"),
        ({"a": 1, "b": 1, "c": None}, 1, "c: unknown"),
        ({"a": 1, "b": 1, "c": 2, "d": 2}, None, "a, b: 1; c, d: 2"),
        ({"a": 1, "b": 2}, None, "a: 1; b: 2"),
        ({"a": 1, "b": None}, 1, "b: unknown"),
        ({"a": None, "b": None}, None, ""),
        ({}, None, ""),
    ],
)
def test_the_majority_value(
    values: dict[str, int | None], value: int | None, differences: str
) -> None:
    found = agreed(values)
    assert found.value == value
    assert found.differences == differences


def test_false_and_zero_are_values() -> None:
    assert agreed({"a": False, "b": False, "c": True}).value is False
    assert agreed({"a": 0, "b": 0, "c": None}).value == 0


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([], {}),
        ([None], {}),
        ([0, 5, None], {0: 0, 5: 5}),
        ([105, 100, 111, 110], {100: 100, 105: 100, 110: 100, 111: 111}),
    ],
)
def test_sizes_within_a_tenth_give_the_smallest(
    sizes: list[int | None], found: dict[int, int]
) -> None:
    assert alike(sizes) == found


def test_nodes_by_name() -> None:
    many = [f"node{i}" for i in range(12)]
    assert named(many).endswith("node7, and 4 more")
    assert where(many, 12) == "all 12 nodes"
    assert where(["node0"], 1) == "node0"
    assert where(["node0", "node2"], 3) == "2 of 3 nodes (node0, node2)"
