"""Ranks debugged, interrupted and inspected by a user at a terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debugging.terminal import LIMIT_S, TerminalRun
from tests.inner import clean_env, command, need_rack, write_files
from tests.waiting import until

TESTS = """
    import sys, time, pytest
    if "torch" in sys.modules: import torch, torch.distributed as dist  # not in the controller

    @pytest.mark.mnode(timeout=1)
    def test_steps(world, process_group):
        total = torch.ones(1)
        print("captured of the test")
        breakpoint()
        dist.all_reduce(total)
        last = total.item()
        assert last == world.size

    def test_fails(world, process_group):
        wanted = 40 + world.rank
        print("printed before it failed")
        if world.rank == 1:
            assert wanted == 0
        dist.barrier()

    def test_between(world): breakpoint() if world.rank == 0 else None

    def test_quits(world, process_group):
        breakpoint()

    def test_never(world): pass
"""
HANGS = """
    import pathlib, sys, threading, time
    if "torch" in sys.modules:
        import torch.distributed as dist
    else:  # the controller: no rank runs yet
        end = time.monotonic() + 60
        while not pathlib.Path(__file__).with_name("asked").exists() and time.monotonic() < end:
            time.sleep(0.05)

    def test_nothing(world): pass

    def test_hangs(world, process_group, request):
        dist.barrier()
        if world.rank == 1:
            threading.Event().wait(1)  # the others come to the next barrier meanwhile
            pathlib.Path(request.config.rootpath, "busy").touch()
            threading.Event().wait(100)
        dist.barrier()
"""
PROMPT = "(Pdb rank 1 of 2 on node1) "


def started(directory: Path, *args: str) -> TerminalRun:
    (directory / "pytest.ini").touch()
    return TerminalRun(command(*args), directory, clean_env())


@pytest.fixture(scope="module")
def debugged(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str, int]:
    """The answer to each typed line on the rack, all output, and the exit status."""
    need_rack()
    directory = tmp_path_factory.mktemp("debugged")
    write_files(directory, test_it=TESTS)
    answers: dict[str, str] = {}
    with started(directory, "--mnode-nodes=2", "--pdb", "--mnode-debug-rank=1") as run:
        answers["header"] = run.expect(PROMPT)
        time.sleep(2.0)  # longer than the limit of the test
        for typed in ("p world.rank", "import socket, os; socket.gethostname(), os.isatty(0)", "n"):
            answers[typed] = run.ask(typed, PROMPT)
        answers["p total"] = run.ask("p total", PROMPT)
        run.type("\x03")
        answers["Ctrl-C at the prompt"] = run.expect(PROMPT)
        run.type("exec('print(12 * 12, flush=True)\\nwhile True: pass')\r")
        run.expect("144")
        time.sleep(0.5)  # printing has ended, and the loop has begun
        run.type("\x03")
        answers["Ctrl-C in a loop"] = run.expect(PROMPT)
        run.type("b 12\r")
        run.expect(PROMPT)
        answers["to a breakpoint"] = run.ask("c", PROMPT)
        answers["to the failure"] = run.ask("c", PROMPT)
        answers["p wanted"] = run.ask("p wanted", PROMPT)
        answers["to the last"] = run.ask("c", PROMPT)
        run.type("q\r")
        status = run.wait()
        return answers, run.output, status


def test_prompt_names_the_rank(debugged: tuple[dict[str, str], str, int]) -> None:
    answers, output, _ = debugged
    assert "PDB set_trace (IO-capturing turned off)" in answers["header"]
    assert "-> dist.all_reduce(total)" in answers["header"]
    assert "captured of the test" not in answers["header"]
    assert "rank 0 of 2" not in output.partition("= FAILURES")[0]


def test_statements_run_in_the_rank(debugged: tuple[dict[str, str], str, int]) -> None:
    answers, _, _ = debugged
    assert answers["p world.rank"].endswith("\n1\n")
    assert "('node1', True)" in answers["import socket, os; socket.gethostname(), os.isatty(0)"]


def test_other_ranks_wait_and_no_limit_runs(debugged: tuple[dict[str, str], str, int]) -> None:
    answers, output, _ = debugged
    assert "-> last = total.item()" in answers["n"]
    assert "tensor([2.])" in answers["p total"]
    assert "no end within" not in output


def test_ctrl_c_interrupts_the_rank(debugged: tuple[dict[str, str], str, int]) -> None:
    answers, _, _ = debugged
    assert "--KeyboardInterrupt--" in answers["Ctrl-C at the prompt"]
    assert "*** KeyboardInterrupt" in answers["Ctrl-C in a loop"]


def test_continue_runs_to_a_breakpoint_and_to_the_end(
    debugged: tuple[dict[str, str], str, int],
) -> None:
    answers, _, _ = debugged
    assert "PDB continue (IO-capturing resumed)" in answers["to a breakpoint"]
    assert "test_it.py(12)test_steps()" in answers["to a breakpoint"]


def test_pdb_stops_at_a_failure(debugged: tuple[dict[str, str], str, int]) -> None:
    answers, output, _ = debugged
    shown = answers["to the failure"]
    assert "assert 41 == 0" in shown
    assert "printed before it failed" in shown
    assert "entering PDB" in shown
    assert answers["p wanted"].endswith("\n41\n")
    assert "FAILED test_it.py::test_fails - rank 1 of 2 on node1: assert 41 == 0" in output


def test_another_rank_is_not_debugged(debugged: tuple[dict[str, str], str, int]) -> None:
    answers, _, _ = debugged
    assert "test_between" not in answers["to the last"]
    assert "test_quits" in answers["to the last"]


def test_quitting_ends_the_run(debugged: tuple[dict[str, str], str, int]) -> None:
    _, output, status = debugged
    assert status == pytest.ExitCode.INTERRUPTED
    assert "!! _pytest.outcomes.Exit: Quitting debugger !!" in output
    assert "= 1 failed, 2 passed in " in output
    assert "Traceback (" not in output


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str, int]]:
    """Output of SIGUSR1 before and in a test, output of Ctrl-C, and the exit status."""
    directory = tmp_path_factory.mktemp("looked_at")
    write_files(directory, test_it=HANGS)
    with started(directory, "--mnode-launcher=local", "--mnode-nodes=3", "-v") as run:
        run.expect("collecting")
        os.kill(run.process.pid, signal.SIGUSR1)
        idle = run.expect(" now")
        (directory / "asked").touch()
        until((directory / "busy").exists, run.output, LIMIT_S)
        os.kill(run.process.pid, signal.SIGUSR1)
        run.expect("mnode: where the ranks of test_it.py::test_hangs are")
        asked = run.expect("stack of rank 1:")
        run.type("\x03")
        run.expect("mnode: where the ranks of test_it.py::test_hangs are")
        status = run.wait()
        yield idle, asked, run.output, status


def test_sigusr1_while_no_test_runs(looked_at: tuple[str, str, str, int]) -> None:
    assert looked_at[0].endswith("mnode: no rank runs a test of this process")


def test_ranks_at_the_same_place_are_shown_together(
    looked_at: tuple[str, str, str, int],
) -> None:
    asked = looked_at[1]
    assert "[ranks 0,2 of 3 on local0,local2] wait in barrier at test_it.py:" in asked
    assert "[rank 1 of 3 on local1] at test_it.py:" in asked
    assert "threading.Event().wait(100)" in asked
    assert "_pytest" not in asked
    assert "pytest_mnode/" not in asked


def test_ctrl_c_shows_the_stacks_of_ranks_and_ends_the_run(
    looked_at: tuple[str, str, str, int],
) -> None:
    _, _, output, status = looked_at
    assert output.count("mnode: where the ranks of test_it.py::test_hangs are") == 2
    assert "!! KeyboardInterrupt !!" in output
    assert status == pytest.ExitCode.INTERRUPTED
