"""How a run ends that ends itself: a node is lost for good, and nobody interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_mnode.spec import default_spec_path
from tests.inner import run_pytest, write_files

LOST = "node1 is lost: the connection was lost; it could not be booted again: no command"
TESTS = """
    import pytest
    pytestmark = pytest.mark.criterion

    def test_before(): pass
    def test_that_ends(request, pytestconfig): {ends}
    def test_after(): pass
"""
LOSES = f"from pytest_mnode.controller.session import run_of; run_of(pytestconfig).end({LOST!r})"
STOPS = "request.session.shouldstop = 'enough'"


def ended(directory: Path, ends: str, *args: str) -> tuple[int, list[str], str]:
    """Exit code, reasons of the certificate where one was written, and output."""
    write_files(directory, test_mesh=TESTS.format(ends=ends))
    run = run_pytest(directory, *args)
    written = directory / "report/certificate.json"
    reasons = json.loads(written.read_text())["reasons"] if written.exists() else []
    return run.returncode, reasons, run.output


@pytest.mark.parametrize("xdist", [(), ("-n1",)], ids=["alone", "xdist"])
def test_a_node_that_is_lost_for_good_is_no_interruption(
    tmp_path: Path, xdist: tuple[str, ...]
) -> None:
    code, reasons, output = ended(tmp_path, LOSES, "--mnode-report=report", *xdist)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert f"cut short by {LOST}" in reasons
    assert not any("interrupted" in reason for reason in reasons)
    assert LOST in output


@pytest.mark.parametrize(
    ("promise", "covered"),
    [
        ("", "2 of 2 nodes: local[0-1]"),
        ("nodes: 16", "2 of 16 nodes: local[0-1]; not covered: 14 others"),
    ],
)
def test_a_certificate_says_how_much_of_the_cluster_it_covers(
    tmp_path: Path, promise: str, covered: str
) -> None:
    page = default_spec_path().read_text().replace("name: rack", f"name: rack\n{promise}")
    (tmp_path / "spec.yaml").write_text(page)
    args = ("--mnode-spec=spec.yaml", "--mnode-nodes=2", "--mnode-launcher=local")
    _, _, output = ended(tmp_path, "pass", *args, "--mnode-report=report")
    assert f"covered: {covered}\n" in output
    assert f'value="{covered}"' in (tmp_path / "report/certificate.xml").read_text()


def test_without_a_certificate_the_exit_code_is_pytests_own(tmp_path: Path) -> None:
    spec = f"--mnode-spec={default_spec_path()}"
    code, _, output = ended(tmp_path, LOSES, spec, "--color=yes")
    assert code == pytest.ExitCode.INTERRUPTED, output
    assert f"cut short by {LOST}" in output
    assert "cut short by interrupted" not in output
    assert "\x1b[1m\x1b[33mincomplete\x1b[0m: " in output  # colours where there is a terminal


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (STOPS, "cut short by enough"),
        ("raise KeyboardInterrupt", "cut short by interrupted"),
        (f"{LOSES}; raise KeyboardInterrupt", "cut short by interrupted"),
    ],
)
def test_what_others_end_is_an_interruption(tmp_path: Path, ends: str, reason: str) -> None:
    code, reasons, output = ended(tmp_path, ends, "--mnode-report=report")
    assert code == pytest.ExitCode.INTERRUPTED, output
    assert reason in reasons
    assert "cut short by interrupted" in reasons


def test_an_outcome_that_a_plugin_made_up_does_not_certify(tmp_path: Path) -> None:
    conftest = """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call":
                report.outcome = "rerun"
            return report
    """
    write_files(tmp_path, conftest=conftest)
    _, reasons, output = ended(tmp_path, "pass", "--mnode-report=report")
    assert "mesh inconclusive (a plugin reported the outcome 'rerun')" in reasons, (reasons, output)


def test_certificates_are_kept_and_the_next_run_knows_them(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for number in (1, 2):
        _, _, output = ended(tmp_path, "pass", "--mnode-history=kept", "--mnode-report=report")
        assert f"history: {number} run" in output, output
        assert len(list(kept.iterdir())) == number
    certificate = json.loads((tmp_path / "report/certificate.json").read_text())
    assert [run["verdict"] for run in certificate["history"]["runs"]] == ["incomplete"] * 2
    (tmp_path / "file").touch()
    run = run_pytest(tmp_path, "--mnode-history=file")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--mnode-history=" in run.output
    assert "accepted: a directory, or a new name" in run.output


def test_metrics_are_written_where_they_were_asked_for(tmp_path: Path) -> None:
    _, _, output = ended(tmp_path, "pass", "--mnode-prometheus=mnode.prom")
    metrics = (tmp_path / "mnode.prom").read_text()
    assert 'mnode_criterion_verdict{criterion="mesh",spec="rack",verdict="pass"} 1.0' in metrics
    assert f"written: {tmp_path}/mnode.prom" in output
    run = run_pytest(tmp_path, "--mnode-prometheus=no/mnode.prom")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "accepted: a file in a directory that exists" in run.output
