"""Which teardowns of a test another rank could notice."""

from __future__ import annotations

import pytest

from pytest_mnode.rank.wide_fixtures import ends_nothing


@pytest.mark.parametrize(
    ("hooks", "is_unnoticed"),
    [
        ("", True),
        ("def pytest_runtest_teardown(item): pass", False),
        ("def pytest_runtest_makereport(item, call): pass", False),
        ("@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_protocol(): return (yield)", False),
        ("@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_protocol(): yield", False),
        ("def pytest_runtest_protocol(): pass", True),  # ranks do not call it
        ("def pytest_runtest_setup(item): pass", True),
    ],
)
def test_hooks_that_run_after_the_body(
    pytester: pytest.Pytester, hooks: str, is_unnoticed: bool
) -> None:
    pytester.makeconftest(f"import pytest\n{hooks}")
    assert ends_nothing(pytester.getitem("def test_func(): pass"), {}) is is_unnoticed
