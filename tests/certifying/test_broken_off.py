"""An interrupted run certifies nothing, whatever its exit status."""

from __future__ import annotations

import json

import pytest

from tests.inner import run_here, run_pytest, write_files

SPEC = """\
name: tiny
accelerators: {per_node: 0}
fabric:
  {kind: ethernet, interfaces: [fab0], line_rate: 200 Mbit/s, nics_per_node: 1, mtu: 1500}
management: {interfaces: [mgmt0], line_rate: 20 Mbit/s, mtu: 1500}
criteria: {mesh: {}}
certificate: {valid_for: 7 days}
"""
TESTS = """
    import pytest
    pytestmark = pytest.mark.criterion

    def test_a(measure): measure("x", 1, at_least=1)
    def test_b(): pass
"""


@pytest.mark.parametrize(
    ("end", "options", "why"),
    [
        ("raise RuntimeError('a plugin breaks')", (), "an internal error of pytest"),
        ("pytest.exit('enough', returncode=0)", (), "interrupted"),
        ("os._exit(3)", ("-n1",), "the end of a pytest-xdist worker in test_mesh.py::test_b"),
    ],
)
def test_an_interrupted_run_is_incomplete(
    pytester: pytest.Pytester, end: str, options: tuple[str, ...], why: str
) -> None:
    if options:
        pytest.importorskip("xdist")
    conftest = f"""
        import os, pytest
        def pytest_runtest_protocol(item):
            if item.name == "test_b" and ("PYTEST_XDIST_WORKER" in os.environ) is {bool(options)}:
                {end}
    """
    write_files(pytester.path, conftest=conftest, test_mesh=TESTS)
    (pytester.path / "spec.yaml").write_text(SPEC)
    args = ("--mnode-spec=spec.yaml", "--mnode-report=report", *options)
    found = run_pytest(pytester.path, *args) if options else run_here(pytester, *args)
    certificate = json.loads((pytester.path / "report" / "certificate.json").read_text())
    assert certificate["verdict"] == "incomplete", found.output
    assert certificate["reasons"] == [f"cut short by {why}"]
