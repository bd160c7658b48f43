"""Imports torch once, then starts a run and its agent for each request at standard input."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
import io
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pytest_mnode.agent import agent

_RUN = str(Path(__file__).with_name("run.py"))
_LEFT = struct.Struct("i")
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python, which an executed program would inherit."""


def import_torch() -> None:
    """Import what a fork server does, and nothing else."""
    gc.disable()
    import encodings.idna  # noqa: F401
    import multiprocessing.popen_fork
    import multiprocessing.queues  # noqa: F401

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: F401

    from pytest_mnode.agent import elastic  # noqa: F401
    from pytest_mnode.rank import binding, entry  # noqa: F401

    gc.freeze()
    gc.enable()


def main() -> None:
    client = socket.socket(fileno=os.dup(0))
    import_torch()
    while True:
        head, fds, _, _ = socket.recv_fds(client, _LEFT.size, 1)
        if not head:
            return
        (size,) = _LEFT.unpack(head)
        argv, directory, env = ast.literal_eval(client.recv(size, socket.MSG_WAITALL).decode())
        pid = os.fork()
        if pid == 0:
            client.close()
            _exit_after(partial(execute, argv, directory, env, fds[0]))
        os.close(fds[0])
        client.sendall(_LEFT.pack(pid))
        _, status = os.waitpid(pid, 0)
        client.sendall(_LEFT.pack(status))


def execute(argv: list[str], directory: str, env: dict[str, str], output: int) -> NoReturn:
    """Become the run, whose agent waits in a child."""
    null = os.open(os.devnull, os.O_RDWR)
    _streams(null, output, output)
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        os.close(output)
        _streams(null, null, null)
        os.close(null)
        _exit_after(lambda: wait(theirs))
    theirs.close()
    os.chdir(directory)
    os.set_inheritable(ours.fileno(), True)
    os.closerange(3, ours.fileno())
    os.closerange(ours.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], [argv[0], _RUN, str(ours.fileno()), *argv[1:]], env)


def wait(run: socket.socket) -> None:
    """Become the agent, unless the run ends without one."""
    run.sendall(str(os.getpid()).encode())
    head, fds, _, _ = socket.recv_fds(run, 1, 3)
    if not head:
        return
    with run, run.makefile() as rest:
        argv, directory, env, new_session = ast.literal_eval(rest.read())
    _streams(*fds)
    for fd in fds:
        os.close(fd)
    if new_session:
        os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    if len(argv) == 3:
        become_agent()
        return
    # As enter.py does, but for the program that it executes. By its path, as there: the package
    # around it imports what a rank must not have.
    spec = importlib.util.spec_from_file_location("enter", argv[4])
    assert spec is not None
    assert spec.loader is not None
    enter: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(enter)
    enter.run = _run_agent
    enter.main(argv[5:])


def _run_agent(command: list[str], where: str, mask: set[int]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _exit_after(become_agent)


def become_agent() -> None:
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for fd, name in ((1, "stdout"), (2, "stderr")):
        errors = "backslashreplace" if fd == 2 else None
        stream = io.TextIOWrapper(
            io.FileIO(fd, "w", closefd=False), errors=errors, write_through=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv[:] = [agent.__file__]
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    sys.modules["__main__"] = sys.modules.pop(agent.__name__)
    agent.main()


def _streams(*fds: int) -> None:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)


def _exit_after(body: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        body()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
