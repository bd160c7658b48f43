"""Input that is no terminal, and live output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import warm
from tests.inner import clean_env, command, run_pytest, write_files

NODES = ("--mnode-nodes=2", "--mnode-launcher=local")
TRACED = """
    import os, sys, time

    def test_first(world, process_group):
        for step in range(3):
            print("step", step)
            time.sleep(0.3)
        os.system("echo written by a child")
        print("a line without its end", end="")

    def test_second(world): pass
"""
LOGS = """
    import logging, os, time

    def test_logs(world):
        for step in range(3):
            logging.info("logged %d", step)
            time.sleep(0.3)
        print("printed")

    def test_stops(world):
        if world.rank == 0:
            breakpoint()

    def test_dies(world):
        print("last words")
        if world.rank == 1:
            os._exit(3)
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Output of a run with --trace -s whose input is a pipe with two lines."""
    directory = tmp_path_factory.mktemp("traced")
    write_files(directory, test_it=TRACED)
    (directory / "pytest.ini").touch()
    argv = command(*NODES, "-s", "--trace", "--mnode-debug-rank=1")
    typed = "p 'answer', 40 + world.rank\nc\n"
    return warm.run(argv, directory, clean_env(), 120, typed)[1]


def test_trace_stops_at_the_first_line(traced: str) -> None:
    assert "= 2 passed in " in traced  # at the end of input tests continue
    # Output of the other rank may come between.
    steps = ("-> for step in range(3):\n", "(Pdb rank 1 of 2 on local1) ", "('answer', 41)\n")
    found = [traced.index(step) for step in steps]
    assert found == sorted(found)


def test_output_is_shown_live(traced: str) -> None:
    lines = re.findall(r"^\[rank (\d) local(\d)\] (.*)$", traced, re.MULTILINE)
    wanted = ["step 0", "step 1", "step 2", "written by a child", "a line without its end"]
    for rank in ("0", "1"):
        assert [text for number, node, text in lines if number == node == rank] == wanted
    assert {number for number, _, text in lines[:2]} == {"0", "1"}  # not one after the other


def test_logs_tee_and_the_end_of_input(tmp_path: Path) -> None:
    write_files(tmp_path, test_it=LOGS)
    run = run_pytest(tmp_path, *NODES, "--log-cli-level=INFO", "--capture=tee-sys")
    shown = run.output.partition("= FAILURES")[0]
    steps = re.findall(r"^\[rank 0 local0\] .*logged (\d)", shown, re.MULTILINE)
    assert steps == ["0", "1", "2"]
    assert "[rank 1 local1] printed\n" in shown
    assert shown.rindex("printed\n") < shown.index("PASSED")
    assert shown.count("[rank 1 local1] last words\n") == 1
    assert "exited with code 3" in run.output
    assert "FAILED test_it.py::test_stops - rank 0 of 2 on local0: bdb.BdbQuit" in run.output
