"""Test bodies that all peers run in their ranks, and the time stamps that judge them."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANKS = int(os.environ.get("MNODE_BENCH_RANKS", "2"))
TESTS = int(os.environ.get("MNODE_BENCH_TESTS", "1"))
FAULT = os.environ.get("MNODE_BENCH_FAULT", "")
LIMIT = timedelta(seconds=float(os.environ.get("MNODE_BENCH_LIMIT_S", "60")))
FOREVER_S = 3600.0


def stamp(what: str, rank: int) -> None:
    """Append a line, `what rank pid time.time()`, to the file that the benchmark reads."""
    line = f"{what} {rank} {os.getpid()} {time.time():.6f}\n"
    with Path(os.environ["MNODE_BENCH_STAMPS"]).open("a") as file:
        file.write(line)


def join() -> None:
    """Create a gloo group from the environment set by torchrun, or by a program like it."""
    dist.init_process_group("gloo", timeout=LIMIT)


def meet(size: int) -> None:
    """Run and check one all-reduce of one element."""
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size


def trivial(rank: int, size: int) -> None:
    """Check rank, world size, and a sum over all ranks."""
    if rank == 0:
        stamp("begin", rank)
    assert 0 <= rank < size == RANKS
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    meet(size)
    if rank == 0:
        stamp("end", rank)


def following(rank: int, size: int) -> None:
    """The test after the faulty one."""
    stamp("next", rank)
    meet(size)


def faulty(rank: int, size: int) -> None:
    """Rank 1 has the fault MNODE_BENCH_FAULT; the others behave like a test."""
    if rank == 1:
        stamp("fault", rank)
    FAULTS[FAULT](rank, size)


def _assertion(rank: int, size: int) -> None:
    loss = 0.25 + rank
    assert loss < 1.0
    meet(size)


def _two_errors(rank: int, size: int) -> None:
    if rank == 1:
        raise KeyError("weights of layer 7")
    raise ValueError(f"batch of {size} is empty")


def _hang(rank: int, size: int) -> None:
    if rank == 1:
        time.sleep(FOREVER_S)
    meet(size)


def _hang_holding_gil(rank: int, size: int) -> None:
    if rank == 1:
        ctypes.PyDLL(None).sleep(int(FOREVER_S))  # PyDLL, unlike CDLL, keeps the GIL
    meet(size)


def _exit_before(rank: int, size: int) -> None:
    if rank == 1:
        os._exit(3)
    meet(size)


def _exit_after(rank: int, size: int) -> None:
    meet(size)
    if rank == 1:
        os._exit(3)


def _segfault(rank: int, size: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    meet(size)


def _killed(rank: int, size: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    meet(size)


def _skip_one(rank: int, size: int) -> None:
    del size
    if rank == 1:  # pytest and unittest both support this way to skip
        raise unittest.SkipTest("rank 1 has no such device")


def _leave_child(rank: int, size: int) -> None:
    meet(size)
    if rank == 1:
        subprocess.Popen(["sleep", str(FOREVER_S)])


FAULTS: dict[str, Callable[[int, int], None]] = {
    "rank 1 asserts, rank 0 waits for it": _assertion,
    "both ranks raise, each its own": _two_errors,
    "rank 1 sleeps, rank 0 waits for it": _hang,
    "rank 1 hangs and holds the GIL": _hang_holding_gil,
    "rank 1 exits 3 before the collective": _exit_before,
    "rank 1 exits 3 after the collective": _exit_after,
    "rank 1: SIGSEGV before the collective": _segfault,
    "rank 1: SIGKILL before the collective": _killed,
    "rank 1 skips, rank 0 passes": _skip_one,
    "rank 1 leaves a child process": _leave_child,
}


def add_methods(case: Any, method: Callable[[Callable[[int, int], None]], Any]) -> None:
    """Add tests to a TestCase: the faulty test and the following one, or TESTS trivial ones.

    method: turns a body into a test method.
    """
    bodies = [faulty, following] if FAULT else [trivial] * TESTS
    for number, body in enumerate(bodies):
        setattr(case, f"test_{number:04}_{_word(body.__name__)}", method(body))


def _word(name: str) -> str:
    return re.sub(r"\W+", "_", name)
