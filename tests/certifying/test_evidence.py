"""A run writes its evidence as it goes, and the certificate of a killed run is made from it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate.gathered import Kept
from pytest_mnode.commands import main
from pytest_mnode.evidence.file import COLLECTED, END, NAME, ROWS, read
from tests.acceptance.certified import ACCEPTANCE
from tests.inner import InnerRun, run_here, run_pytest, write_files

SPEC = """\
name: tiny
accelerators: {per_node: 0}
fabric:
  {kind: ethernet, interfaces: [fab0], line_rate: 200 Mbit/s, nics_per_node: 1, mtu: 1500}
management: {interfaces: [mgmt0], line_rate: 20 Mbit/s, mtu: 1500}
criteria: {mesh: {}, preflight: {mtu: {}}}
certificate: {valid_for: 7 days}
"""
TESTS = {
    "test_preflight": """
        import pytest, pytest_mnode
        from pytest_mnode.charts import Level, Lines, Series
        from pytest_mnode.culprit import Culprit
        from pytest_mnode.installed import Fact, Installed
        from pytest_mnode.path_rates import PathRates
        from pytest_mnode.evidence.file import record_rows
        from pytest_mnode.evidence.row import row
        pytestmark = pytest.mark.criterion

        def test_node(node, measure, request, record_property):
            \"\"\"Is the node as the spec says?\"\"\"
            record_property("cables", 3)
            record_rows(request.config, "preflight.it", [row("mtu", 1500, node=node)])
            measure("mtu", 1500, "B", equals=1500, source="fabric.mtu")
            if node == "local1":
                measure("rate", 48, "Mbit/s", at_least=170, culprit=Culprit(node, [node]))
            measure("recorded", float("nan"), "s", note="none")
            measure.chart(Lines("A", "x", "y", (Series("s", ((0, 1.5), (1, 2))),)),
                          Installed((Fact("kernel", "kernel", (("6.1", node),)),)))

        def test_open():
            pytest_mnode.not_promised(key="preflight.speed")
    """,
    "test_mesh": """
        import pytest
        from pytest_mnode.path_rates import PathRates
        pytestmark = pytest.mark.criterion

        def test_paths(world, measure):
            \"\"\"Is every path fast?\"\"\"
            measure.chart(PathRates(("local0", "local1"), ("fab0",), 170.0, ("-p", "f-"),
                                    ("- 190", "48 -"), ("p", "p"), ("190", "190")))
            measure("wrong", 0, equals=0, source="none")

        def test_skipped(): pytest.skip("no switch")
        def test_end(request): {end}
        def test_after(): pass
    """,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def run(directory: Path, end: str = "pass", *args: str) -> InnerRun:
    texts = {name: text.replace("{end}", end) for name, text in TESTS.items()}
    write_files(directory, **texts)
    nodes = ("--mnode-nodes=2", "--mnode-launcher=local", "--mnode-spec=spec.yaml")
    files = ("test_preflight.py", "test_mesh.py")
    return run_pytest(directory, *nodes, "--mnode-report=report", *args, *files)


def written(directory: Path, name: str = "report") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / name / "certificate.json").read_text())
    return found


def cases(certificate: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for criterion in certificate["criteria"]:
        for case in criterion["cases"]:
            yield case["test"].partition("::")[2], case


def made(directory: Path, status: int = 1) -> dict[str, Any]:
    """The certificate that the command makes in another directory."""
    report, again = directory / "report", directory / "again"
    assert main(["certificate", str(report), f"--report={again}"]) == status
    return written(directory, "again")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, InnerRun]:
    directory = tmp_path_factory.mktemp("finished")
    (directory / "spec.yaml").write_text(SPEC)
    return directory, run(directory)


@pytest.mark.parametrize("workers", [False, True])
def test_a_finished_run_gives_the_same_certificate_again(
    finished: tuple[Path, InnerRun], directory: Path, workers: bool
) -> None:
    directory, done = (directory, run(directory, "pass", "-n1")) if workers else finished
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.output
    own = written(directory)
    assert own["verdict"] == "not certified"
    assert made(directory) == own
    rows = [one for one in read(directory / "report" / NAME) if one["kind"] == ROWS]
    assert {(one["check"], one["node"]) for one in rows} == {
        ("preflight.it", "local0"),
        ("preflight.it", "local1"),
    }
    report = directory / "report"
    before = {path.name: path.read_bytes() for path in report.iterdir()}
    assert main(["certificate", str(report), f"--at={own['run']['end']}"]) == 1  # as a run asks
    assert {path.name: path.read_bytes() for path in report.iterdir()} == before


def test_a_killed_run_loses_no_test_that_had_ended(
    finished: tuple[Path, InnerRun], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = dict(cases(written(finished[0])))
    done = run(directory, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode not in (0, 1, 2), done.output
    assert not (directory / "report" / "certificate.json").exists()
    found = made(directory)
    assert found["verdict"] == "not certified"
    assert "cut short by interrupted (its controller wrote no end of the run)" in found["reasons"]
    by_test = dict(cases(found))
    assert by_test.keys() == whole.keys() - {"test_after"}
    end = by_test.pop("test_end")
    assert (end["outcome"], end["stopped_by"]) == ("error", "interruption")
    for test, case in by_test.items():
        assert {**case, "duration_s": 0} == {**whole[test], "duration_s": 0}
    assert by_test["test_node[node1]"]["measurements"][1]["culprit_nodes"] == ["local1"]
    states = {one["name"]: one["state"] for one in found["coverage"]["nodes"]}
    assert states == {"local0": "suspect", "local1": "failed"}
    assert found["installed"]
    assert found["coverage"]["paths"][0]["rates"]["states"] == ["-p", "f-"]
    assert "evidence of a run without an end: 6 tests, 2 rows of checks" in capsys.readouterr().out


def test_a_row_that_was_cut_is_ignored_and_said(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the file ends, what stands whole before counts, and nothing is certified."""
    kept = """
        import pytest
        pytestmark = pytest.mark.criterion

        def test_a(measure): measure("x", 1, at_least=1)
        def test_b(measure): measure("x", 1, at_least=1)
    """
    write_files(directory, test_mesh=kept)
    (directory / "spec.yaml").write_text(SPEC.replace(", preflight: {mtu: {}}", ""))
    run_pytest(directory, "--mnode-spec=spec.yaml", "--mnode-report=report")
    path = directory / "report" / NAME
    whole = gzip.decompress(path.read_bytes())
    lines = whole.splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["evidence", "run", "collected", "run", *["began", "test"] * 2, "end"]
    due = ["test_mesh.py::test_a", "test_mesh.py::test_b"]
    capsys.readouterr()
    for number in range(2, len(lines)):
        for part in (0, 1, len(lines[number]) - 1):
            path.write_bytes(gzip.compress(b"".join(lines[:number]) + lines[number][:part]))
            found = made(directory)
            assert found["verdict"] == "incomplete"
            passed = [c["test"] for _, c in cases(found) if c["verdict"] == "pass"]
            assert len(passed) == kinds[:number].count("test")
            not_run = due[kinds[:number].count("began") :] if "collected" in kinds[:number] else []
            assert found["run"]["manifest"]["not_run"] == not_run
            said = f"ignored the last row, which is cut after {part} byte"
            assert (said in capsys.readouterr().out) is (part > 0)
    rows = lines[:-1]  # the end tells those before it
    for content, why in (
        (lines[:1], "no 'facts'; accepted: the evidence of a run"),
        ([*lines[:2], b'{"kind": "test", "record": {}}\n'], "no 'test'; accepted: the evidence"),
        ([line.replace(b'"value":1.0', b'"value":"x"') for line in rows], "should be a valid"),
        ([line.replace(b'"ranks":0', b'"ranks":-1') for line in rows], "ranks: input should be"),
        ([line.replace(b'"phases":', b'"phases":3') for line in rows], "line 6: no JSON"),
        ([line.replace(b'"value":1.0', b'"value":2.0') for line in lines], "not those of the run"),
        ([*lines[:4], b'{"kind":"began","test":[],"at":1}\n'], "unhashable type"),
        ([*lines[:4], b'{"kind":"began","test":"a","at":1e300}\n'], "accepted: the evidence"),
        ([*lines[:4], b'{"kind":"began","test":7,"at":1}\n'], "accepted: the evidence"),
    ):
        path.write_bytes(gzip.compress(b"".join(content)))
        assert main(["certificate", str(path)]) == 2
        assert why in capsys.readouterr().err


def test_a_test_that_ctrl_c_ends_is_in_both(pytester: pytest.Pytester) -> None:
    text = """
        import pytest
        pytestmark = pytest.mark.criterion

        @pytest.fixture
        def interrupts(): raise KeyboardInterrupt
        def test_before(measure): measure("x", 1, at_least=1)
        def test_interrupted(interrupts): pass
        def test_after(): pass
    """
    write_files(pytester.path, test_mesh=text)
    (pytester.path / "spec.yaml").write_text(SPEC)
    done = run_here(pytester, "--mnode-spec=spec.yaml", "--mnode-report=report")
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.output
    own = written(pytester.path)
    assert own["verdict"] == "incomplete"
    found = dict(cases(own))
    assert found.keys() == {"test_before", "test_interrupted"}
    assert found["test_interrupted"]["stopped_by"] == "interruption"
    assert made(pytester.path) == own


def test_only_history_and_what_it_gives_to_coverage_differ(pytester: pytest.Pytester) -> None:
    text = """
        import pytest
        pytestmark = pytest.mark.criterion
        def test_it(measure): measure("x", 1, at_least=1)
    """
    write_files(pytester.path, test_mesh=text)
    (pytester.path / "spec.yaml").write_text(SPEC)
    args = ("--mnode-spec=spec.yaml", "--mnode-report=report", "--mnode-history=kept")
    for _ in range(2):
        done = run_here(pytester, *args)
    assert "history: 2 runs" in done.output
    own, again = written(pytester.path), made(pytester.path)
    assert {key for key in own if own[key] != again[key]} == {"history"}


def test_evidence_that_cannot_be_written_is_named_and_the_run_goes_on(
    pytester: pytest.Pytester,
) -> None:
    write_files(pytester.path, test_mesh="import pytest\npytestmark = pytest.mark.criterion\n"
                "def test_it(measure): measure('x', 1, at_least=1)")  # fmt: skip
    (pytester.path / "report" / NAME).mkdir(parents=True)
    done = run_here(pytester, "--mnode-report=report")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"NOT written: {pytester.path / 'report' / NAME}: is a directory" in done.output
    assert written(pytester.path)["criteria"]


def test_the_collected_tests_and_the_end_are_in_the_evidence(pytester: pytest.Pytester) -> None:
    text = """
        import pytest
        @pytest.mark.criterion
        def test_a(): pass
        @pytest.mark.criterion
        def test_b(): pass
        def test_other(): pass
    """
    write_files(pytester.path, test_mesh=text)
    run_here(pytester, "--mnode-report=report", "-k", "not test_b")
    rows = {one["kind"]: one for one in read(pytester.path / "report" / NAME)}
    assert rows[COLLECTED]["tests"] == ["test_mesh.py::test_a"]
    assert rows[END]["facts"]["manifest"]["deselected"] == ["test_mesh.py::test_b"]


def test_what_a_check_reads_on_the_nodes_is_judged_by_another_spec(directory: Path) -> None:
    spec = directory / "spec.yaml"
    promised = SPEC.replace("mtu: {}", "huge_pages: same").replace("mesh: {}, ", "")
    spec.write_text(promised)
    suite = str(ACCEPTANCE / "test_preflight.py")
    nodes = ("--mnode-nodes=2", "--mnode-launcher=local", "--mnode-spec=spec.yaml")
    args = (*nodes, "--mnode-report=report", "-k", "huge_pages", suite)
    done = run_pytest(directory, *args)
    rows = [one for one in read(directory / "report" / NAME) if one["kind"] == ROWS]
    kept = Kept()
    for one in rows:
        kept.add(one)
    survey = kept.survey(("local0", "local1"))
    assert survey is not None, done.output
    [here], _ = survey.rows("test_huge_pages_are_alike").values()
    others = {"always", "madvise", "never"} - {str(here.value)}
    for mode, verdict in ((here.value, "pass"), (others.pop(), "fail")):
        spec.write_text(promised.replace("same", str(mode)))
        main(
            [
                "judge",
                str(directory / "report"),
                f"--spec={spec}",
                f"--report={directory / 'again'}",
            ]
        )
        found = dict(cases(written(directory, "again")))
        assert [case["verdict"] for case in found.values()] == [verdict] * 2
        assert all(f"huge_pages {mode}" in c["measurements"][0]["source"] for c in found.values())
