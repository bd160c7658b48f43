"""Modules that forked ranks cannot share are found by name, without affecting other modules."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import Call, Collect, Collected
from tests.inner import write_files

THREAD = """
    import threading, time
    threading.Thread(target=time.sleep, args=(99,), name="courier", daemon=True).start()
    def test_it(rank): pass
"""
FEEDER = """
    import multiprocessing
    QUEUE = multiprocessing.Queue()
    QUEUE.put(1)
    def test_it(rank): pass
"""
OPENMP = """
    import torch
    torch.set_num_threads(2)
    torch.rand(400, 400).sin()
    def test_it(rank): pass
"""
PLAIN = """
    import threading
    def test_it(rank): pass
    for other in threading.enumerate()[1:]:
        raise RuntimeError(f"{other.name} of another module is here")
"""
FORK_SERVER = """
import os, sys
from pytest_mnode.agent import fork_server
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import AgentOrder
root, *fds = sys.argv[1:]
fork_server.import_modules()
if os.fork():
    os.close(int(fds.pop(0)))
else:
    os.close(int(fds.pop(1)))
fork_server.main(AgentOrder(0, root, root), Pipe.from_fd(int(fds[0])))
"""
CUDA = """
    import torch
    torch.cuda.is_initialized = lambda: True
    def test_it(rank): pass
"""
CHILD = """
    import subprocess
    SLEEPS = subprocess.Popen(["sleep", "98"])
    def test_it(rank): pass
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("modules")
    (directory / "pytest.ini").touch()
    write_files(
        directory,
        test_a=PLAIN,
        test_thread=THREAD,
        test_feeder=FEEDER,
        test_openmp=OPENMP,
        test_child=CHILD,
        test_cuda=CUDA,
        test_z=PLAIN,
    )
    for name in ("below", "configures"):
        (directory / name).mkdir()
    write_files(directory / "below", conftest=THREAD, test_b="def test_it(rank): pass")
    text = "def pytest_configure():" + THREAD.replace("\n    ", "\n        ")
    write_files(directory / "configures", conftest=text, test_c="def test_it(rank): pass")
    return directory


Answer = Mapping[str, str] | str


@pytest.fixture(scope="module")
def found(files: Path) -> tuple[Answer, Answer]:
    """Files that two fork servers leave out, with the reason; or the reason why one failed."""
    some = ("test_a.py", "test_thread.py", "test_feeder.py", "test_openmp.py", "test_z.py")
    names = ((*some, "test_child.py", "below/test_b.py", "test_cuda.py"),
             ("test_a.py", "configures/test_c.py"))  # fmt: skip
    pairs = [socket.socketpair() for _ in names]
    fds = [theirs.fileno() for _, theirs in pairs]
    # Not forked from here: OpenMP fails in the child of a process that has used it.
    command = [sys.executable, "-c", FORK_SERVER, str(files), *map(str, fds)]
    with subprocess.Popen(command, pass_fds=fds):  # which ends with its pipe
        for _, theirs in pairs:
            theirs.close()
        try:
            first, second = (
                collected(files, Pipe(ours), *n) for (ours, _), n in zip(pairs, names, strict=True)
            )
        finally:
            for ours, _ in pairs:
                ours.close()
    return first, second


def collected(directory: Path, pipe: Pipe, *names: str) -> Answer:
    root, files = str(directory), tuple(str(directory / name) for name in names)
    ini, path = f"{root}/pytest.ini", tuple(sys.path)
    try:
        pipe.send(Call(0, "import_torch"))
        pipe.send(Collect(files, frozenset(files), {}, ini, root, root, path, f"{root}/tmp"))
        while not (payloads := pipe.receive()):
            pass
        answer = pickle.loads(payloads[0])
    finally:
        pipe.close()
    assert isinstance(answer, Collected)
    if answer.failure:
        return answer.failure
    return {os.path.relpath(file, root): why for file, why in answer.own_imports.items()}


REMEDY = (
    "forked ranks would not have it, so each rank imports these files itself (slower). "
    "To fork ranks again, start it in a fixture or test, not at import"
)


def test_modules_that_ranks_cannot_share_are_named_with_what_they_start(
    found: tuple[Answer, Answer],
) -> None:
    """Others are shared; and CUDA fails in the child of a process that has initialized it."""
    assert isinstance(found[0], dict)
    left_out = dict(found[0])
    openmp = left_out.pop("test_openmp.py")
    assert "libgomp" in openmp
    assert "libtorch_cpu.so" in openmp
    assert left_out == {
        "test_thread.py": f"its import starts thread 'courier'; {REMEDY}",
        "test_feeder.py": f"its import starts thread 'QueueFeederThread'; {REMEDY}",
        "below/test_b.py": f"below/conftest.py starts thread 'courier'; {REMEDY}",
        "test_cuda.py": f"its import starts a CUDA device in use; {REMEDY}",
    }


def test_a_plugin_that_starts_threads_affects_all_modules(found: tuple[Answer, Answer]) -> None:
    what = "a plugin or a conftest.py, when pytest was configured, starts thread 'courier'"
    why = f"{what}; {REMEDY}"
    assert found[1] == {"test_a.py": why, "configures/test_c.py": why}
