"""The live line in a real terminal: the screen at a given moment, and what remains."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from pytest_mnode.controller.console import terminal_of
from tests.debugging.screen import ScreenRun
from tests.inner import clean_env, command, released_plugins, write_files

HELD = """
    import os, pathlib, time
    import pytest
    from pytest_mnode.progress import progress

    def until(name):
        end = time.monotonic() + 90
        while not pathlib.Path(name).exists() and time.monotonic() < end:
            time.sleep(0.05)
"""
RANKS = (
    HELD.replace("\n    ", "\n")
    + """
import sys
if "torch" in sys.modules: import torch.distributed as dist  # not in the controller
ROOT = pathlib.Path(__file__).parent

def test_ends_in_one(world):
    if world.rank == 0:
        progress("waiting for a file", 1, 4)
        until(ROOT / "ended")

def test_meets_in_one(world, process_group):
    if world.rank == 0:
        until(ROOT / "met")
    dist.barrier()

@pytest.mark.criterion
def test_from_here(cluster):
    with cluster.world() as world:
        progress("kill 2 of 3: rank", 1, 3)
        world.run(until, ROOT / "killed")
"""
)
PLAIN = (
    HELD
    + """
    @pytest.mark.criterion
    def test_kills():
        progress("kill 2 of 3: rank", 1, 3)
        until("killed")
        assert not os.environ.get("FAILS")

    @pytest.mark.criterion
    def test_is_interrupted():
        progress("kill 3 of 3: rank", 1, 3)
        until("never")
"""
)
LINE = "live: kill 2 of 3: rank [###.......] 1 of 3, 0:0"
FILE = "test_live.py"
NO_RANKS = "--mnode-report=report"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    write_files(tmp_path, test_live=PLAIN)
    (tmp_path / "pytest.ini").touch()
    return tmp_path


def has_no_line(rows: list[str]) -> bool:
    return not any("kill 2" in row or " 1 of 3" in row for row in rows)


def test_the_line_names_ranks_that_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "test_live.py").write_text(RANKS)
    (tmp_path / "pytest.ini").touch()
    args = "--mnode-launcher=local", "--mnode-nodes=1", "--mnode-procs-per-node=2", "-v"
    with ScreenRun(command(*args), tmp_path, clean_env()) as run:
        line = run.see_below("test_live.py::test_ends_in_one", "waiting for rank 0 of 2 on local0")
        assert line.startswith("test_ends_in_one: waiting for a file [##........] 1 of 4, 0:")
        assert ", limit 5:00, waiting" in line
        (tmp_path / "ended").touch()
        line = run.see_below("test_live.py::test_meets_in_one", "waiting for rank 0 of 2 on local0")
        assert line.startswith("test_meets_in_one, 0:")
        (tmp_path / "met").touch()
        line = run.see_below("test_live.py::test_from_here", "waiting for 2 ranks")
        assert line.startswith(LINE)
        (tmp_path / "killed").touch()
        assert run.wait() == 0
        rows = run.rows
    assert has_no_line(rows)
    assert not any("waiting for" in row for row in rows)
    ends = [row.split() for row in rows if row.startswith("test_live.py")]
    assert [(test, result) for test, result, *_ in ends] == [
        (f"test_live.py::{name}", "PASSED")
        for name in ("test_ends_in_one", "test_meets_in_one", "test_from_here")
    ]


def test_the_line_is_hidden_while_a_debugger_uses_the_terminal(plain: Path) -> None:
    """A first run has noted a duration, then ctrl-c ended it."""
    with ScreenRun(command(NO_RANKS), plain, clean_env()) as run:
        assert "of about" not in run.see_below(FILE, LINE)
        (plain / "killed").touch()
        run.see_below(f"{FILE} .", LINE.replace("kill 2", "kill 3"))
        run.type("\x03")
        assert run.wait() == pytest.ExitCode.INTERRUPTED
        assert not any(row.startswith("live:") for row in run.rows)
        [row] = [row for row in run.rows if row.startswith(FILE)]
        assert row.split() == [FILE, ".^C"]
        assert "KeyboardInterrupt" in "\n".join(run.rows)
    (plain / "killed").unlink()
    with ScreenRun(command(NO_RANKS, "--pdb"), plain, clean_env() | {"FAILS": "1"}) as run:
        assert " of about 0:" in run.see_below(FILE, LINE)
        (plain / "killed").touch()
        rows = run.see(lambda rows: rows[-1] == "(Pdb)")
        # Source lines are shown, which contain the text of the line.
        assert not any(row.startswith("live:") for row in rows)
        run.type("q\r")
        run.wait()
        assert not any(row.startswith("live:") for row in run.rows)


def test_nothing_is_left_if_pytest_is_killed(plain: Path) -> None:
    with ScreenRun(command(NO_RANKS), plain, clean_env()) as run:
        run.see_below(FILE, LINE)
        run.process.kill()
        assert run.see(has_no_line)[-1] == FILE


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Terminal output of runs with a slow test, by the option that turns the line off."""
    directory = tmp_path_factory.mktemp("quiet")
    slow = PLAIN.partition("@pytest.mark.criterion\n    def test_is_interrupted")[0]
    write_files(directory, test_live=slow.replace('until("killed")', "time.sleep(2.5)"))
    (directory / "pytest.ini").touch()
    cases: dict[str, tuple[list[str], dict[str, str]]] = {
        "sugar": ([], {"PYTHONPATH": str(released_plugins())}),
        "workers": (["-n1"], {}),
    }
    runs = {}
    for name, (args, env) in cases.items():
        argv = command(f"--mnode-report={name}", "-p", "no:cacheprovider", *args)
        runs[name] = ScreenRun(argv, directory, clean_env() | env)
    wrote = {}
    for name, run in runs.items():
        with run:
            run.wait()
            wrote[name] = run.output
    return wrote


@pytest.mark.parametrize("why", ["sugar", "workers"])
def test_the_line_is_off_beside_another_or_with_workers(quiet: dict[str, str], why: str) -> None:
    assert "passed" in quiet[why]
    assert "kill 2" not in quiet[why]
    assert "\x1bD" not in quiet[why]


@pytest.fixture
def coloured(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Where pytest would write in colour to a terminal, also on CI."""
    for name in ("CI", "BUILD_NUMBER", "NO_COLOR", "PY_COLORS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return pytester


@pytest.mark.parametrize(
    ("args", "env", "shown"),
    [
        ((), {}, True),
        (("-v",), {}, True),
        (("-q",), {}, False),
        (("-s",), {}, False),
        (("--capture=sys",), {}, False),
        (("--color=no",), {}, False),
        ((), {"BUILD_NUMBER": "7"}, False),
        ((), {"TERM": "dumb"}, False),
    ],
)
def test_settings_that_turn_the_line_off(
    args: tuple[str, ...],
    env: dict[str, str],
    shown: bool,
    coloured: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        config = coloured.parseconfig(*args)
        monkeypatch.setattr(sys, "__stdout__", terminal)
        config.pluginmanager.register(pytest.TerminalReporter(config, terminal), "terminalreporter")
        fd = terminal_of(config)
        assert (fd is not None) == shown
        if fd is not None:
            assert os.ttyname(fd) == os.ttyname(theirs)
            os.close(fd)


def test_a_pipe_is_no_terminal(coloured: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads), os.fdopen(writes, "w") as pipe:
        config = coloured.parseconfig("--color=yes")
        monkeypatch.setattr(sys, "__stdout__", pipe)
        config.pluginmanager.register(pytest.TerminalReporter(config, pipe), "terminalreporter")
        assert terminal_of(config) is None
