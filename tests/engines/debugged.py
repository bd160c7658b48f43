"""A user at a terminal of the login node: debugs one rank, looks at a hang, interrupts it."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.debugging.terminal import TerminalRun
from tests.engines.inside import Engine, environment
from tests.inner import command, write_files

TESTS = """
    import os, threading
    import torch, torch.distributed as dist

    def test_steps(world, process_group, shared_tmp_path):
        (shared_tmp_path / str(world.rank)).touch()
        total = torch.ones(1)
        breakpoint()
        dist.all_reduce(total)
        last = total.item()
        assert last == world.size == len(os.listdir(shared_tmp_path))

    def test_fails(world):
        wanted = 40 + world.rank
        assert wanted == 40

    def test_hangs(world, process_group):
        if world.rank == 1:
            print("rank 1 hangs now")
            threading.Event().wait(200)
        dist.barrier()
"""
PROMPT = "(Pdb rank 1 of 2 on node"
BARRIER_LIMIT_S = 60.0
"""Time until rank 0 waits in the barrier too."""
WHERE = "mnode: where the ranks of test_it.py::test_hangs are"


def debug(engine: Engine, directory: Path, *args: str) -> None:
    """args: options that select two nodes."""
    write_files(directory, test_it=TESTS)
    (directory / "pytest.ini").touch()
    options = ("-s", "--pdb", "--mnode-debug-rank=1", "--mnode-nodes=2", "test_it.py", *args)
    argv = engine.command(*command(*options))
    with TerminalRun(argv, directory, environment(engine)) as run:
        assert "-> dist.all_reduce(total)" in run.expect(PROMPT)
        where = run.ask("import socket; socket.gethostname(), os.isatty(0)", PROMPT)
        assert re.search(r"\n\('node\d', True\)\n", where), where
        assert "-> last = total.item()" in run.ask("n", PROMPT)  # rank 0 ended with it
        assert "tensor([2.])" in run.ask("p total", PROMPT)
        assert "entering PDB" in run.ask("c", PROMPT)
        assert run.ask("p wanted", PROMPT).endswith("\n41\n")
        run.type("c\r")
        assert "[rank 1 node" in run.expect("] rank 1 hangs now")
        end, asked = time.monotonic() + BARRIER_LIMIT_S, ""
        while not re.search(r"\[rank 0 of 2 on node\d\] waits in barrier at test_it.py:", asked):
            assert time.monotonic() < end, run.output
            os.kill(pytest_of(run), signal.SIGUSR1)
            run.expect(WHERE)
            asked = run.expect("stack of rank 1:")
        assert re.search(r"\[rank 1 of 2 on node\d\] at test_it.py:", asked), asked
        run.type("\x03")
        run.expect(WHERE)
        status = run.wait()
    assert status == pytest.ExitCode.INTERRUPTED, run.output
    assert "= 1 failed, 1 passed in " in run.output


def pytest_of(run: TerminalRun) -> int:
    """The pytest process behind the command that brings it to the login node."""
    below = psutil.Process(run.process.pid).children(recursive=True)
    return next(p.pid for p in below if p.cmdline()[1:3] == ["-m", "pytest"])
