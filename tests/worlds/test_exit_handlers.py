"""Handlers of atexit are called in ranks, within a limit, and what they raise is said."""

from __future__ import annotations

import pytest

from tests.inner import InnerRun, run_pytest, write_files

TESTS = """
    import atexit, os, tempfile, time
    from pathlib import Path
    import pytest

    HERE = Path(__file__).parent
    SHARED = tempfile.TemporaryDirectory()

    def ran(what):
        (HERE / f"ran_{what}_{os.environ.get('RANK')}").touch()

    atexit.register(ran, "import")

    def test_passes(world):
        atexit.register(ran, "pass")

        @atexit.register
        def bad():
            raise ValueError("not flushed")


    @pytest.mark.mnode(reuse="fresh")
    def test_fresh(world):
        atexit.register(ran, "fresh")

    def test_fails(world):
        atexit.register(ran, "failure")
        assert world.rank

    @pytest.mark.mnode(reuse="fresh")
    def test_slow(world):
        if world.rank: atexit.register(time.sleep, 60)

    def test_shared(world):
        assert Path(SHARED.name).is_dir()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("exit_handlers")
    write_files(directory, test_it=TESTS)
    return run_pytest(directory, "--mnode-nodes=2", "--mnode-launcher=local", limit_s=100)


def test_they_run_in_every_rank(run: InnerRun) -> None:
    assert run.outcomes() == {
        "test_passes": "passed",
        "test_fresh": "passed",
        "test_fails": "failure",
        "test_slow": "passed",
        "test_shared": "passed",
    }, run.output
    for what in ("import", "pass", "fresh", "failure"):
        for rank in (0, 1):
            assert (run.junit.parent / f"ran_{what}_{rank}").exists(), (what, rank)


def test_what_they_raise_is_said(run: InnerRun) -> None:
    both = "mnode: ranks 0-1 of 2 on local0,local1: a handler of atexit "
    assert f"{both}raised ValueError: not flushed (test_it.py:" in run.output
    slow = "mnode: rank 1 of 2 on local1: a handler of atexit "
    assert f"{slow}did not end within 5 s" in run.output
