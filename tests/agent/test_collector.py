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
import sys
from pytest_mnode.agent import fork_server
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import AgentOrder
root, fd = sys.argv[1:]
fork_server.main(AgentOrder(0, "", {}, root, root), Pipe.from_fd(int(fd)))
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


def collected(directory: Path, *names: str) -> Mapping[str, str] | str:
    """Files that a fork server leaves out, with the reason; or the reason why it failed."""
    root, files = str(directory), tuple(str(directory / name) for name in names)
    ini, path = f"{root}/pytest.ini", tuple(sys.path)
    collect = Collect(files, frozenset(files), {}, ini, root, root, path, f"{root}/tmp")
    ours, theirs = socket.socketpair()
    # Not forked from here: OpenMP fails in the child of a process that has used it.
    command = [sys.executable, "-c", FORK_SERVER, root, str(theirs.fileno())]
    with theirs:
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    pipe = Pipe(ours)
    try:
        pipe.send(Call(0, "import_torch"))
        pipe.send(collect)
        while not (payloads := pipe.receive()):
            pass
        answer = pickle.loads(payloads[0])
    finally:
        pipe.close()
        server.kill()
        server.wait()
    assert isinstance(answer, Collected)
    if answer.failure:
        return answer.failure
    return {os.path.relpath(file, root): why for file, why in answer.own_imports.items()}


REMEDY = (
    "forked ranks would not have it, so each rank imports these files itself (slower). "
    "To fork ranks again, start it in a fixture or test, not at import"
)


def test_modules_that_ranks_cannot_share_are_named_with_what_they_start(files: Path) -> None:
    """Others are shared; and CUDA fails in the child of a process that has initialized it."""
    names = ("test_a.py", "test_thread.py", "test_feeder.py", "test_openmp.py", "test_z.py")
    found = collected(files, *names, "test_child.py", "below/test_b.py", "test_cuda.py")
    assert isinstance(found, dict)
    openmp = found.pop("test_openmp.py")
    assert "libgomp" in openmp
    assert "libtorch_cpu.so" in openmp
    assert found == {
        "test_thread.py": f"its import starts thread 'courier'; {REMEDY}",
        "test_feeder.py": f"its import starts thread 'QueueFeederThread'; {REMEDY}",
        "below/test_b.py": f"below/conftest.py starts thread 'courier'; {REMEDY}",
        "test_cuda.py": f"its import starts a CUDA device in use; {REMEDY}",
    }


def test_a_plugin_that_starts_threads_affects_all_modules(files: Path) -> None:
    what = "a plugin or a conftest.py, when pytest was configured, starts thread 'courier'"
    why = f"{what}; {REMEDY}"
    found = collected(files, "test_a.py", "configures/test_c.py")
    assert found == {"test_a.py": why, "configures/test_c.py": why}
