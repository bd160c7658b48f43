"""A run of a part of the tests certifies nothing, however the others were deselected."""

from __future__ import annotations

import json

import pytest

from tests.inner import run_here, run_pytest, write_files

TESTS = """
    import pathlib
    import pytest

    pytestmark = pytest.mark.criterion

    def test_right():
        pass

    def test_mended():
        assert pathlib.Path("mended").exists()
"""


def cut_short(pytester: pytest.Pytester, *args: str) -> list[str]:
    """Why a run is of a part of the tests; in a process of its own if it has workers."""
    if "-n2" in args:
        run = run_pytest(pytester.path, "--mnode-report=report", *args)
    else:
        run = run_here(pytester, "--mnode-report=report", *args)
    page = pytester.path / "report" / "certificate.json"
    assert page.exists(), run.output
    found: list[str] = json.loads(page.read_text())["run"]["cut_short"]
    page.unlink()
    return found


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_deselected_tests_are_noted(pytester: pytest.Pytester, workers: list[str]) -> None:
    write_files(pytester.path, test_it=TESTS)
    assert cut_short(pytester) == []
    (pytester.path / "mended").touch()
    assert cut_short(pytester, *workers, "--lf", ".") == ["--lf"]
    assert cut_short(pytester, "--lf", ".") == []  # no test failed before
    assert cut_short(pytester, *workers, "-k", "right") == ["1 tests deselected"]


def test_deselected_tests_are_noted_if_only_tests_request_nodes(pytester: pytest.Pytester) -> None:
    module = """
        import pytest
        pytestmark = pytest.mark.criterion
        def test_a(cluster): pass
        def test_b(cluster): pass
    """
    write_files(pytester.path, test_it=module)
    run = run_here(pytester, "--mnode-launcher=local", "-k", "test_a")
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
LEFT_OUT = "1 collected test without a result (a plugin?): test_it.py::test_mended"


@pytest.mark.parametrize(
    ("conftest", "workers", "reasons"),
    [
        *(pytest.param(text, (), [LEFT_OUT], id=how) for how, text in SHORTENING.items()),
        *(pytest.param(text, (), [], id=how) for how, text in KEEPING.items()),
        pytest.param(SHORTENING["in-place"], ("-n2",), [LEFT_OUT], id="in-place with workers"),
        pytest.param(KEEPING["grouped"], ("-n2", "--dist=loadgroup"), [], id="grouped workers"),
    ],
)
def test_only_tests_that_a_plugin_leaves_out_are_noted(
    pytester: pytest.Pytester, conftest: str, workers: tuple[str, ...], reasons: list[str]
) -> None:
    (pytester.path / "mended").touch()
    write_files(pytester.path, test_it=TESTS, conftest=conftest)
    assert cut_short(pytester, *workers) == reasons
