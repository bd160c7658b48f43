"""Shared items of ranks: a directory of the test, and recorded properties of every rank."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_mnode.certificate.files import read_certificate
from pytest_mnode.outcome.merge import recorded_by_all
from tests.inner import InnerRun, run_pytest, write_files

TESTS = """
    import pytest

    def test_written_and_read_by_all(process_group, rank, shared_tmp_path):
        import torch.distributed as dist
        assert not list(shared_tmp_path.iterdir())
        dist.barrier()
        (shared_tmp_path / f"of_rank{rank}").touch()
        dist.barrier()
        assert len(list(shared_tmp_path.iterdir())) == 4

    def test_fails_and_leaves_a_file(rank, shared_tmp_path):
        (shared_tmp_path / f"of_rank{rank}").touch()
        assert 0

    @pytest.mark.criterion
    def test_records(rank, record_property, record_testsuite_property, pytestconfig):
        assert pytestconfig.option.basetemp.endswith("/tmp/ranks")  # never what pytest empties
        record_property("same", 7)
        record_property("own", rank // 2)
        record_property("loss", rank and float("nan"))
        record_property("shape", (2, 3))
        record_testsuite_property("versions", "1.2")
        record_testsuite_property("host", rank // 2)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def run(directory: Path) -> InnerRun:
    write_files(directory, test_it=TESTS)
    options = ("--mnode-nodes=2", "--mnode-procs-per-node=2", "--mnode-launcher=local")
    kept = ("-o", "tmp_path_retention_policy=failed", f"--basetemp={directory}/tmp")
    return run_pytest(directory, *options, *kept, "--mnode-report=report", "-Werror")


def test_all_ranks_write_and_read_one_directory(run: InnerRun) -> None:
    assert run.outcomes() == {
        "test_written_and_read_by_all": "passed",
        "test_fails_and_leaves_a_file": "failure",
        "test_records": "passed",
    }, run.output


def test_pytests_retention_policy_applies(run: InnerRun, directory: Path) -> None:
    [kept] = (directory / "tmp" / "shared").iterdir()
    assert kept.name.startswith("test_fails_and_leaves_a_file")
    assert sorted(p.name for p in kept.iterdir()) == [f"of_rank{rank}" for rank in range(4)]


def test_every_ranks_value_is_recorded(run: InnerRun) -> None:
    properties = run.properties("test_records")
    recorded = {name: value for name, value in properties.items() if not name.startswith("mnode.")}
    loss = {"loss (rank 0)": "0", "loss (ranks 1-3)": "nan"}
    own = {"own (ranks 0-1)": "0", "own (ranks 2-3)": "1"}
    assert recorded == {"same": "7", **own, **loss, "shape": "(2, 3)"}


def test_the_certificate_has_every_ranks_value(run: InnerRun, directory: Path) -> None:
    certificate = read_certificate(directory / "report")
    [case] = (case for one in certificate.criteria for case in one.cases)
    assert {one.name: one.value for one in case.recorded} == {
        **{"same": 7, "own (ranks 0-1)": 0, "own (ranks 2-3)": 1},
        **{"loss (rank 0)": 0, "loss (ranks 1-3)": "nan", "shape": "(2, 3)"},
    }


def test_suite_properties_from_ranks_are_recorded(run: InnerRun) -> None:
    suite = ElementTree.parse(run.junit).getroot().find("testsuite/properties")
    assert suite is not None, run.output
    recorded = {one.get("name"): one.get("value") for one in suite}
    assert recorded == {"versions": "1.2", "host (ranks 0-1)": "0", "host (ranks 2-3)": "1"}


def test_values_that_differ_name_their_ranks() -> None:
    by_rank = {0: [("a", 1), ("a", 1), ("b", 2)], 2: [("a", 1), ("b", 3)]}
    differ = [("a (rank 0)", 1), ("b (rank 0)", 2), ("b (rank 2)", 3)]
    assert recorded_by_all(by_rank, ranks=2) == [("a", 1), *differ]
    assert recorded_by_all(by_rank, ranks=3) == [("a (ranks 0,2)", 1), *differ]
