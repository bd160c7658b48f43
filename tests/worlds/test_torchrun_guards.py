"""Modules that read RANK and WORLD_SIZE at import decide as under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import InnerRun, run_pytest, write_files

CONFTEST = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            if item.path.name != "test_here.py":
                item.add_marker(pytest.mark.mnode(nodes=2))
"""
LIBRARY = """
    import os
    RANK = int(os.getenv("RANK", -1))
    if RANK in (-1, 0):
        def is_first(): return True
    else:
        def is_first(): return False
"""
GUARDED = """
    import os
    import pytest, torch, torch.distributed as dist
    pytestmark = pytest.mark.skipif("RANK" not in os.environ, reason="start with torchrun")

    def test_total():
        dist.init_process_group("gloo")
        mine = torch.ones(1)
        dist.all_reduce(mine)
        assert mine.item() == 2
        dist.destroy_process_group()
"""
CONSTANTS = """
    import os
    import pytest
    RANKS = int(os.environ.get("WORLD_SIZE", "1"))
    DEVICE = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    RANK = int(os.environ.get("RANK", 0))

    def test_constants():
        assert (RANKS, RANK) == (int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
        assert DEVICE == f"cuda:{os.environ['LOCAL_RANK']}"

    @pytest.mark.skipif(RANKS != 2, reason="two ranks of torchrun")
    def test_two(): pass

    @pytest.mark.skipif(RANKS == 2, reason="never of two ranks")
    def test_not_two(): assert False

    @pytest.mark.skipif(RANK == 0, reason="not for the first")
    def test_others(): assert RANK == 1

    @pytest.mark.skipif(RANK == 0, reason="not for the first")
    def test_others_fail(): assert RANK == 0

    @pytest.mark.parametrize("number", range(RANKS))
    def test_each(number): assert number < 2

    def test_branch():
        if RANK == 1:
            assert False, "only here"

    if RANK == 1:
        def test_of_rank_1(): assert RANK == 1

        def test_of_rank_1_fails(): assert RANK == 0
    if RANK == 0:
        def test_of_rank_0(): assert RANK == 0

    class TestIt:
        if RANK == 1:
            def test_of_rank_1_in_a_class(self): pass
"""
BY_LIBRARY = """
    import os
    from library import RANK, is_first

    def test_library():
        assert RANK == int(os.environ["RANK"])
        assert is_first() == (RANK == 0)
"""
SKIPPED_AT_IMPORT = """
    import os
    import pytest
    if "RANK" not in os.environ:
        pytest.skip("start with torchrun", allow_module_level=True)

    def test_after_a_module_skip(): assert os.environ["RANK"]
"""
NEEDS_RANK = """
    import os
    RANK = int(os.environ["RANK"])

    def test_needs_rank(): assert RANK == int(os.environ["RANK"])
"""
HERE = """
    import os
    import pytest
    RANK = os.environ.get("RANK")

    @pytest.mark.skipif(RANK is None, reason="start with torchrun")
    def test_of_the_controller(): assert False

    def test_no_rank_here(): assert RANK is None and "RANK" not in os.environ
"""
PLAIN = """
    KEPT = []

    def test_first(): KEPT.append(1)

    def test_kept(): assert KEPT == [1]
"""
FILES = {
    "conftest": CONFTEST,
    "library": LIBRARY,
    "test_guarded": GUARDED,
    "test_constants": CONSTANTS,
    "test_library": BY_LIBRARY,
    "test_library_again": BY_LIBRARY.replace("test_library", "test_library_again"),
    "test_skipped": SKIPPED_AT_IMPORT,
    "test_needs": NEEDS_RANK,
    "test_here": HERE,
    "test_plain": PLAIN,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guards")
    write_files(directory, **FILES)
    return directory


@pytest.fixture(scope="module")
def ran(directory: Path) -> InnerRun:
    args = "--mnode-nodes=2", "--mnode-launcher=local", "--mnode-timeout=60"
    return run_pytest(directory, "-rA", *args)


def test_outcomes_are_those_under_torchrun(ran: InnerRun) -> None:
    assert ran.outcomes() == {
        "test_total": "passed",
        "test_constants": "passed",
        "test_two": "passed",
        "test_not_two": "skipped",
        "test_others": "passed",
        "test_others_fail": "failure",
        "test_each[0]": "passed",
        "test_each[1]": "passed",
        "test_branch": "failure",
        "test_of_rank_0": "passed",
        "test_of_rank_1": "passed",
        "test_of_rank_1_fails": "failure",
        "test_of_rank_1_in_a_class": "passed",
        "test_library": "passed",
        "test_library_again": "passed",
        "test_after_a_module_skip": "passed",
        "test_needs_rank": "passed",
        "test_of_the_controller": "skipped",
        "test_no_rank_here": "passed",
        "test_first": "passed",
        "test_kept": "passed",
    }, ran.output
    assert ran.returncode == 1
    assert "has no test here" not in ran.output


def test_the_run_says_which_ranks_left_a_test_out(ran: InnerRun) -> None:
    for line in (
        "test_others: rank 0 of 2 on local0 skipped it (not for the first); it ran in rank 1",
        "test_of_rank_1: rank 0 of 2 on local0 does not have it; it ran in rank 1",
        "test_of_rank_0: rank 1 of 2 on local1 does not have it; it ran in rank 0",
    ):
        assert line in " ".join(ran.output.split()), ran.output


def test_the_run_names_the_files_and_what_they_read(ran: InnerRun) -> None:
    lines = [line for line in ran.output.splitlines() if line.startswith("mnode: test_")]
    for start in (
        "mnode: test_constants.py: its import reads LOCAL_RANK, RANK, WORLD_SIZE; ",
        "mnode: test_guarded.py; test_library.py; test_library_again.py; test_needs.py; "
        "test_skipped.py: its import reads RANK; ",
    ):
        assert any(line.startswith(start) for line in lines), ran.output
    assert "test_plain.py" not in "".join(lines)


def test_failures_are_of_the_ranks_that_ran(ran: InnerRun) -> None:
    for name in ("test_others_fail", "test_of_rank_1_fails", "test_branch"):
        failure = ran.cases()[name].find("failure")
        assert failure is not None
        assert str(failure.get("message")).startswith("rank 1 of 2 on local1: "), name


def test_tests_of_some_ranks_with_xdist(tmp_path: Path) -> None:
    """pytest-xdist knows only what its workers collect."""
    test = """
        import os
        RANK = int(os.environ.get("RANK", 0))

        def test_of_all(rank): assert rank == RANK

        class TestIt:
            if RANK == 1:
                def test_of_rank_1(self, rank): pass
    """
    write_files(tmp_path, test_it=test)
    ran = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local", "-n1")
    assert ran.outcomes() == {"test_of_all": "error"}, ran.output
    assert "test_it.py::TestIt::test_of_rank_1: only ranks have it; pytest-xdist runs" in ran.output


WAITS = """
    import os, time
    import pytest, torch.distributed as dist
    RANK = int(os.environ.get("RANK", 0))

    @pytest.mark.mnode(timeout=3)
    @pytest.mark.skipif(RANK == 0, reason="not for the first")
    def test_waits(process_group): dist.barrier()

    if "RANK" not in os.environ:
        def test_of_one_process(rank): pass

    def test_skips_in_its_body(rank):
        if RANK == 0:
            pytest.skip("no device")

    @pytest.fixture
    def port(rank):
        if RANK == 0:
            pytest.skip("no port")

    @pytest.mark.skipif(RANK > 5, reason="too many")
    def test_skips_in_a_fixture(port): pass

    @pytest.mark.mnode(timeout=2)
    @pytest.mark.xfail(RANK == 0, reason="known")
    def test_xfail_of_one(rank): assert RANK

    if RANK == 1:
        def test_of_rank_1_hangs(rank): time.sleep(60)
"""
NO_MARK = """
    import os
    RANK = int(os.environ["RANK"])

    def test_no_mark(): pass
"""


NOWHERE = """
    import os
    if os.environ.get("RANK") == "1":
        def test_of_rank_1(rank): pass
"""
GUARDING_CONFTEST = """
    import os
    import pytest
    needs_torchrun = pytest.mark.skipif("WORLD_SIZE" not in os.environ, reason="torchrun")

    def pytest_collection_modifyitems(items):
        for item in items:
            if "RANK" not in os.environ:
                item.add_marker(pytest.mark.skip(reason="start with torchrun"))
"""
GUARDED_BY_CONFTEST = """
    from conftest import needs_torchrun

    @needs_torchrun
    def test_guarded(rank): pass
"""


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    """Tests that cannot be as under torchrun, beside a folder whose conftest.py decides by rank."""
    directory = tmp_path_factory.mktemp("unequal")
    plain = "def test_plain(rank): pass"
    write_files(directory, test_it=WAITS, test_nowhere=NOWHERE, test_plain=plain)
    write_files(directory, test_no_mark=NO_MARK)
    (directory / "guarded").mkdir()
    guarded = {"conftest": GUARDING_CONFTEST, "test_guarded": GUARDED_BY_CONFTEST}
    write_files(directory / "guarded", **guarded)
    return run_pytest(directory, "--mnode-nodes=2", "--mnode-launcher=local")


def test_conftest_files_that_decide_by_rank(unequal: InnerRun) -> None:
    """Guards in a conftest.py: a mark that tests import, and one given to collected tests."""
    outcomes = unequal.outcomes()
    assert outcomes["test_guarded"] == outcomes["test_plain"] == "passed", unequal.output
    line = "mnode: guarded/test_guarded.py: its import reads RANK, WORLD_SIZE; "
    assert line in unequal.output, unequal.output


def test_what_cannot_be_as_under_torchrun_fails_and_says_so(unequal: InnerRun) -> None:
    assert (
        "mnode: test_nowhere.py has no test here, and its import read RANK: tests that only some "
        "ranks define were not run"
    ) in unequal.output
    assert unequal.outcomes() == {
        "test_waits": "error",
        "test_of_one_process": "error",
        "test_skips_in_its_body": "failure",
        "test_skips_in_a_fixture": "error",
        "test_xfail_of_one": "skipped",
        "test_of_rank_1_hangs": "error",
        "test_no_mark": "error",
        "test_guarded": "passed",
        "test_plain": "passed",
    }, unequal.output
    messages = [str(child.get("message")) for case in unequal.cases().values() for child in case]
    for line in (
        "rank 0 of 2 on local0: skipped (not for the first), but rank 1 did not",
        "test_it.py::test_of_one_process was collected by the controller but not in the ranks",
        "rank 0 of 2 on local0: skipped (no device), but rank 1 did not",
        "rank 0 of 2 on local0: skipped (no port), but rank 1 did not",
        "test_it.py::test_of_rank_1_hangs was collected by another rank only",
        "to run it there, add @pytest.mark.mnode",
    ):
        assert any(line in message for message in messages), unequal.output
    assert "no end within 2 s: it is at test_it.py:" in unequal.output  # the limit of the last test
    assert "env_reads" not in unequal.output


def test_a_run_without_options_says_what_was_skipped_at_import(tmp_path: Path) -> None:
    write_files(tmp_path, test_skipped=SKIPPED_AT_IMPORT, test_it="def test_it(rank): pass")
    ran = run_pytest(tmp_path, "--mnode-launcher=local")
    assert ran.outcomes()["test_it"] == "passed"
    assert (
        "mnode: test_skipped.py was skipped at import, which read RANK; give --mnode-nodes, so "
        "that it is imported as by a rank"
    ) in ran.output
