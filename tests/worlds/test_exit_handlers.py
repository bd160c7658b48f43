"""Handlers of atexit are called in ranks, within a limit, and what they raise is said.

Finalizers of objects are called where the objects were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import InnerRun, run_pytest, write_files
from tests.waiting import until
from tests.watched import Watched

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
        global OWN
        OWN = tempfile.TemporaryDirectory()
        assert Path(SHARED.name).is_dir()
        assert Path(SHARED.name).parent == Path(OWN.name).parent == HERE / "temporary"
"""
OWN_IMPORTS = """
    import tempfile, threading, time

    threading.Thread(target=time.sleep, args=[600], daemon=True).start()
    MADE = tempfile.TemporaryDirectory()

    def test_own_imports(world): pass
"""
KILLED = """
    import os, time, weakref
    from pathlib import Path
    from pytest_mnode import processes

    PID = Path(__file__).with_name("busy")

    def note():
        (PID.parent / "ended").write_text(str(processes.has_ended(int(PID.read_text()))))

    weakref.finalize(note, note)

    def test_it(world):
        PID.write_text(str(os.getpid()))
        time.sleep(120)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("exit_handlers")
    write_files(directory, test_it=TESTS, test_own=OWN_IMPORTS)
    (directory / "temporary").mkdir()
    env = {"TMPDIR": str(directory / "temporary")}
    args = ("--mnode-nodes=2", "--mnode-launcher=local")
    return run_pytest(directory, *args, env=env, limit_s=100)


def test_they_run_in_every_rank(run: InnerRun) -> None:
    assert run.outcomes() == {
        "test_passes": "passed",
        "test_fresh": "passed",
        "test_fails": "failure",
        "test_slow": "passed",
        "test_shared": "passed",
        "test_own_imports": "passed",
    }, run.output
    for what in ("import", "pass", "fresh", "failure"):
        for rank in (0, 1):
            assert (run.junit.parent / f"ran_{what}_{rank}").exists(), (what, rank)


def test_what_they_raise_is_said(run: InnerRun) -> None:
    both = "mnode: ranks 0-1 of 2 on local0,local1: a handler of atexit "
    assert f"{both}raised ValueError: not flushed (test_it.py:" in run.output
    slow = "mnode: rank 1 of 2 on local1: a handler of atexit "
    assert f"{slow}did not end within 5 s" in run.output


def test_no_temporary_directory_is_left(run: InnerRun) -> None:
    """Of a module that ranks share, of a test, and of a module that each rank imports."""
    assert list((run.junit.parent / "temporary").glob("tmp*")) == []


def test_ranks_of_a_killed_run_end_before_what_they_share(tmp_path: Path) -> None:
    write_files(tmp_path, test_it=KILLED)
    with Watched(tmp_path, "--mnode-nodes=1", "--mnode-launcher=local") as run:
        run.wait_until_busy(1)
        until((tmp_path / "busy").read_text, "no pid")
        run.kill()
    assert (tmp_path / "ended").read_text() == "True"
