"""Runs that end themselves because a node is lost for good, without an interruption."""

from __future__ import annotations

import json

import pytest

from pytest_mnode.spec import default_spec_path
from tests.inner import InnerRun, run_here, run_pytest, write_files

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


def ended(pytester: pytest.Pytester, ends: str, *args: str) -> tuple[int, list[str], str]:
    """Exit code, reasons in the certificate if one was written, and output."""
    write_files(pytester.path, test_mesh=TESTS.format(ends=ends))
    return how_ended(run_here(pytester, *args))


def how_ended(run: InnerRun) -> tuple[int, list[str], str]:
    written = run.junit.parent / "report/certificate.json"
    reasons = json.loads(written.read_text())["reasons"] if written.exists() else []
    return run.returncode, reasons, run.output


@pytest.mark.parametrize("xdist", [False, True])
def test_a_node_that_is_lost_for_good_is_no_interruption(
    pytester: pytest.Pytester, xdist: bool
) -> None:
    if xdist:
        write_files(pytester.path, test_mesh=TESTS.format(ends=LOSES))
        run = run_pytest(pytester.path, "--mnode-report=report", "-n1")
        code, reasons, output = how_ended(run)
    else:
        code, reasons, output = ended(pytester, LOSES, "--mnode-report=report")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert f"cut short by {LOST}" in reasons
    assert not any("interrupted" in reason for reason in reasons)
    assert LOST in output


def test_a_certificate_says_how_much_of_the_cluster_it_covers(pytester: pytest.Pytester) -> None:
    covered = "2 of 16 nodes: local[0-1]; not covered: 14 others"
    page = default_spec_path().read_text().replace("name: rack", "name: rack\nnodes: 16")
    (pytester.path / "spec.yaml").write_text(page)
    args = ("--mnode-spec=spec.yaml", "--mnode-nodes=2", "--mnode-launcher=local")
    _, _, output = ended(pytester, "pass", *args, "--mnode-report=report")
    assert f"covered: {covered}\n" in output
    assert f'value="{covered}"' in (pytester.path / "report/certificate.xml").read_text()


def test_a_test_of_one_node_counts_for_that_node_alone(pytester: pytest.Pytester) -> None:
    body = """
        import pytest
        pytestmark = pytest.mark.criterion

        def test_it(node): assert node != "local1"
    """
    write_files(pytester.path, test_mesh=body)
    args = (f"--mnode-spec={default_spec_path()}", "--mnode-nodes=2", "--mnode-launcher=local")
    run = run_here(pytester, *args, "--mnode-report=report")
    assert "covered: 2 of 2 nodes: local[0-1]\n" in run.output, "the spec names no number"
    written = json.loads((pytester.path / "report/certificate.json").read_text())
    [mesh] = [one for one in written["criteria"] if one["name"] == "mesh"]
    assert [case["nodes"] for case in mesh["cases"]] == [["local0"], ["local1"]]
    states = {node["name"]: node["state"] for node in written["coverage"]["nodes"]}
    assert states == {"local0": "not tested", "local1": "suspect"}


def test_without_a_certificate_the_exit_code_is_pytests_own(pytester: pytest.Pytester) -> None:
    spec = f"--mnode-spec={default_spec_path()}"
    code, _, output = ended(pytester, LOSES, spec, "--color=yes")
    assert code == pytest.ExitCode.INTERRUPTED, output
    assert f"cut short by {LOST}" in output
    assert "cut short by interrupted" not in output
    assert "\x1b[1m\x1b[33mincomplete\x1b[0m: " in output  # colours on a terminal


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (STOPS, "cut short by enough"),
        ("raise KeyboardInterrupt", "cut short by interrupted"),
        (f"{LOSES}; raise KeyboardInterrupt", "cut short by interrupted"),
    ],
)
def test_a_run_ended_by_others_is_an_interruption(
    pytester: pytest.Pytester, ends: str, reason: str
) -> None:
    code, reasons, output = ended(pytester, ends, "--mnode-report=report")
    assert code == pytest.ExitCode.INTERRUPTED, output
    assert reason in reasons
    assert "cut short by interrupted" in reasons


def test_an_outcome_changed_by_a_plugin_does_not_certify(pytester: pytest.Pytester) -> None:
    conftest = """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call":
                report.outcome = "rerun"
            return report
    """
    write_files(pytester.path, conftest=conftest)
    _, reasons, output = ended(pytester, "pass", "--mnode-report=report")
    assert "mesh inconclusive (a plugin reported the outcome 'rerun')" in reasons, (reasons, output)


def test_certificates_are_kept_and_used_by_the_next_run(pytester: pytest.Pytester) -> None:
    kept = pytester.path / "kept"
    for number in (1, 2):
        _, _, output = ended(pytester, "pass", "--mnode-history=kept", "--mnode-report=report")
        assert f"history: {number} run" in output, output
        assert len(list(kept.iterdir())) == number
    certificate = json.loads((pytester.path / "report/certificate.json").read_text())
    assert [run["verdict"] for run in certificate["history"]["runs"]] == ["incomplete"] * 2
    (pytester.path / "file").touch()
    run = run_here(pytester, "--mnode-history=file")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--mnode-history=" in run.output
    assert "accepted: a directory, or a new name" in run.output


def test_an_unwritable_file_is_named_and_other_files_are_written(pytester: pytest.Pytester) -> None:
    nowhere = ("--mnode-history=/proc/none/kept", "--mnode-prometheus=/proc/mnode.prom")
    code, reasons, output = ended(pytester, "pass", *nowhere, "--mnode-report=report")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert reasons
    assert "NOT written: /proc/none/kept: no such file or directory" in output, output
    assert "NOT written: /proc/mnode.prom: no such file or directory" in output
    assert f"written: {pytester.path}/report/certificate.json" in output
    code, _, output = ended(pytester, "pass", nowhere[0])
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "INTERNALERROR" not in output


def test_metrics_are_written_to_the_requested_path(pytester: pytest.Pytester) -> None:
    judges = "request.getfixturevalue('measure')('x', 1, at_least=1)"
    _, _, output = ended(pytester, judges, "--mnode-prometheus=mnode.prom")
    metrics = (pytester.path / "mnode.prom").read_text()
    assert 'mnode_criterion_verdict{criterion="mesh",spec="rack",verdict="pass"} 1.0' in metrics
    assert f"written: {pytester.path}/mnode.prom" in output
    run = run_here(pytester, "--mnode-prometheus=no/mnode.prom")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "accepted: a file in a directory that exists" in run.output
