"""Ranks that the kernel kills for memory, in memory cgroups made by the test."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.inner import need, run_pytest, write_files
from tests.waiting import until

LARGE_BYTES, SMALL_BYTES = 2**30, 2**26


def _is_empty(group: Path) -> bool:
    """Whether all of its processes have ended, which takes a moment."""
    return not (group / "cgroup.procs").read_text()


@contextlib.contextmanager
def memory_group(name: str, limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup with this limit, of either version; skips if none can be made."""
    for parent, file in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = parent / f"mnode-test-{os.getpid()}-{name}"
        try:
            group.mkdir()
            (group / file).write_text(str(limit_bytes))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        try:
            yield group
        finally:
            until(partial(_is_empty, group))
            group.rmdir()
        return
    if os.geteuid() == 0:
        need("no memory cgroup can be made")
    pytest.skip("no memory cgroup can be made without root")


TESTS = """
    import os, signal, subprocess, sys

    if "pytest_mnode.agent.fork_server" in sys.modules:  # all ranks are its children
        with open(os.environ["RANKS_GROUP"] + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    HOARD = "hoard = [bytearray(b'x' * 2**22) for _ in range(300)]"

    def test_ours(rank):
        if rank == 1:
            exec(HOARD)

    def test_anothers(rank):
        if rank == 1:
            into = f"open({os.environ['OTHER_GROUP']!r} + '/cgroup.procs', 'w').write('0')"
            other = subprocess.run([sys.executable, "-c", f"{into}; {HOARD}"])
            assert other.returncode == -9
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_for_memory_is_found_in_its_cgroup(tmp_path: Path) -> None:
    write_files(tmp_path, test_it=TESTS)
    with memory_group("ranks", LARGE_BYTES) as ranks, memory_group("other", SMALL_BYTES) as other:
        env = {"RANKS_GROUP": str(ranks), "OTHER_GROUP": str(other)}
        run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local", env=env)
    died = r"rank 1 of 2 on local1: killed by SIGKILL"
    ours = rf"{died} by the kernel: out of memory \(OOM kills in {ranks}: 1\), peak memory"
    anothers = rf"{died} \(not by pytest-mnode\), peak memory"
    for test, how in (("test_ours", ours), ("test_anothers", anothers)):
        failure = run.cases()[test].find("failure")
        assert failure is not None, run.output
        assert re.match(how, str(failure.get("message"))), failure.get("message")
