"""A run of a part of the tests certifies nothing, however the others were deselected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inner import run_pytest, write_files

TESTS = """
    import pathlib
    import pytest

    pytestmark = pytest.mark.criterion

    def test_right():
        pass

    def test_mended():
        assert pathlib.Path("mended").exists()
"""


def cut_short(directory: Path, *args: str) -> list[str]:
    run = run_pytest(directory, "--mnode-report=report", *args)
    page = directory / "report" / "certificate.json"
    assert page.exists(), run.output
    found: list[str] = json.loads(page.read_text())["run"]["cut_short"]
    return found


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_deselected_tests_are_noted(tmp_path: Path, workers: list[str]) -> None:
    write_files(tmp_path, test_it=TESTS)
    assert cut_short(tmp_path, *workers) == []
    (tmp_path / "mended").touch()
    assert cut_short(tmp_path, *workers, "--lf", ".") == ["--lf"]
    assert cut_short(tmp_path, *workers, "--lf", ".") == []  # no test failed before
    assert cut_short(tmp_path, *workers, "-k", "right") == ["1 tests deselected"]


def test_deselected_tests_are_noted_if_only_tests_request_nodes(tmp_path: Path) -> None:
    module = """
        import pytest
        pytestmark = pytest.mark.criterion
        def test_a(cluster): pass
        def test_b(cluster): pass
    """
    write_files(tmp_path, test_it=module)
    run = run_pytest(tmp_path, "--mnode-launcher=local", "-k", "test_a")
    assert "cut short by 1 tests deselected" in run.output


SHORTENING = {
    "in-place": """
        def pytest_collection_modifyitems(items): items[:] = items[:1]
    """,
    "around-all-others": """
        import pytest
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(items):
            result = yield
            items[:] = items[:1]
            return result
    """,
    "when-collected": """
        import pytest
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_finish(session): del session.items[1:]
    """,
    "in-the-loop": """
        def pytest_runtest_protocol(item): return item.name != "test_right" or None
    """,
}


@pytest.mark.parametrize(
    ("how", "workers"), [*((how, ()) for how in SHORTENING), ("in-place", ("-n2",))]
)
def test_tests_that_a_plugin_leaves_out_are_noted(
    tmp_path: Path, how: str, workers: tuple[str, ...]
) -> None:
    (tmp_path / "mended").touch()
    write_files(tmp_path, test_it=TESTS, conftest=SHORTENING[how])
    assert cut_short(tmp_path, *workers) == [
        "1 collected test without a result (a plugin?): test_it.py::test_mended"
    ]


KEEPING = {
    "reversed": "def pytest_collection_modifyitems(items): items.reverse()",
    "replaced": """
        import copy
        def pytest_collection_modifyitems(items): items[:] = map(copy.copy, items)
    """,
    "grouped": """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.xdist_group("one"))
    """,
}


@pytest.mark.parametrize(
    ("how", "workers"), [*((how, ()) for how in KEEPING), ("grouped", ("-n2", "--dist=loadgroup"))]
)
def test_a_plugin_that_leaves_nothing_out_narrows_nothing(
    tmp_path: Path, how: str, workers: tuple[str, ...]
) -> None:
    (tmp_path / "mended").touch()
    write_files(tmp_path, test_it=TESTS, conftest=KEEPING[how])
    assert cut_short(tmp_path, *workers) == []
