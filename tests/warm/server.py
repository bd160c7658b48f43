"""Imports once, then starts a run and its agent for each request at standard input."""

from __future__ import annotations

import ast
import atexit
import contextlib
import fcntl
import importlib
import importlib.util
import io
import mmap
import os
import pkgutil
import re
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import pytest

from pytest_mnode import processes
from pytest_mnode.agent import agent, fork_server
from pytest_mnode.processes import made_to_stay
from pytest_mnode.rank import exit_handlers
from tests.warm.run import FORK_WORKERS, MARK, run_module, run_worker, use

_OF_RUNS = (
    "controller",
    "backends",
    "checks.node",
    "checks.devices",
    "launchers.cleanup",
    "launchers.rack",
)
"""Packages of pytest_mnode of which runs and their cleanup processes import most modules, and with
these all others."""
_LEFT = struct.Struct("i")
_LONGEST = 1 << 20
_mapped: list[mmap.mmap] = []
_exit = os._exit  # before coverage replaces it in a run


class Hidden(MetaPathFinder, Loader):
    """Modules that are there already, and are as if not, until they are imported."""

    def __init__(self, names: Iterable[str]) -> None:
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._specs = {name: module.__spec__ for name, module in self._modules.items()}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self._modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._specs[module.__name__]
        for name, other in self._modules.items():
            if _package(name) == _package(module.__name__):
                sys.modules.setdefault(name, other)


class Modules(NamedTuple):
    """Names of modules: of torch and the packages it imports, and of those that only runs have."""

    with_torch: set[str]
    of_runs: set[str]


def import_all() -> Modules:
    with made_to_stay():
        start = set(sys.modules)
        import torch.distributed.elastic.multiprocessing  # noqa: F401

        with_torch = {_package(name) for name in set(sys.modules) - start} - sys.stdlib_module_names
        fork_server.import_modules()
        of_agents = set(sys.modules)
        for name in _OF_RUNS:
            package = importlib.import_module(f"pytest_mnode.{name}")
            for found in pkgutil.iter_modules(package.__path__, f"pytest_mnode.{name}."):
                importlib.import_module(found.name)
        _build(importlib.import_module("pytest_mnode.spec.fields").Section)
    all(fork_server.prepared_step_by_step())  # as collectors do, which then find it done
    exit_handlers.disown()
    of_runs = {name for name in set(sys.modules) - of_agents if name.startswith("pytest_mnode.")}
    return Modules({name for name in sys.modules if _package(name) in with_torch}, of_runs)


def _build(section: Any) -> None:
    """As the first spec of a process does, but for sections to which checks of a site may add."""
    for one in section.__subclasses__():
        _build(one)
        if one.__name__ not in ("Spec", "Criteria", "CheckedCriterion") and not hasattr(one, "of"):
            one.model_rebuild()


def _package(name: str) -> str:
    return name.partition(".")[0]


def main() -> None:
    client = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    _streams(null)  # else runs would hold the connection open
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is for pytest, and for runs
    modules = import_all()
    serve(client, partial(execute, modules))


def serve(client: socket.socket, run: Callable[..., None]) -> None:
    """Fork a child for each request, which runs it with the descriptors that came along."""
    while True:
        request, fds, _, _ = socket.recv_fds(client, _LONGEST, 4)
        if not request:
            return
        if os.fork() == 0:
            client.close()
            value = ast.literal_eval(request.decode())
            _exit_after(partial(_start_and_wait, fds, partial(run, value)))
        for fd in fds:
            os.close(fd)
        processes.reap()


def _start_and_wait(fds: list[int], run: Callable[..., None]) -> None:
    reply, *others = fds
    pid = os.fork()
    if pid == 0:
        os.close(reply)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _exit_after(partial(run, *others))
    for fd in others:
        os.close(fd)
    with socket.socket(fileno=reply) as client:
        client.sendall(_LEFT.pack(pid))
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):  # its test is over
            client.sendall(_LEFT.pack(status))


Request = tuple[list[str], str, dict[str, str], bool]
"""argv, directory, environment, and whether the streams are a terminal of its own session."""


def execute(modules: Modules, request: Request, stdin: int, output: int, *others: int) -> None:
    """Become the run, whose agent, cleanup process and workers wait in children."""
    argv, directory, env, terminal = request
    os.chdir(directory)
    _set_environment(env)
    if argv[2] == FORK_WORKERS:
        requests, server = (socket.socket(fileno=fd) for fd in (stdin, *others))
        fork_workers(requests, server, output, argv[3:])
        return
    if MARK in env:
        with Path(env[MARK]).open() as file:
            _mapped.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    if terminal:
        os.setsid()
        fcntl.ioctl(stdin, termios.TIOCSCTTY, 0)
    null = os.open(os.devnull, os.O_RDWR)
    _streams(stdin, output, output)
    if terminal:  # as Python's own streams there
        for one in (sys.stdout, sys.stderr):
            assert isinstance(one, io.TextIOWrapper)
            one.reconfigure(line_buffering=True, write_through=False)
    os.close(stdin)
    os.close(output)
    workers = sum(int(word[2:]) for word in argv if re.fullmatch(r"-n\d", word))
    _run(modules, null, workers, partial(run_module, argv[2], argv[3:]))


def become_worker(modules: Modules, argv: list[str]) -> None:
    _run(modules, os.open(os.devnull, os.O_RDWR), 0, run_worker)


def _run(modules: Modules, null: int, workers: int, body: Callable[[], None]) -> None:
    ours = [_waiting_child(partial(become_agent_or_enter, modules), null)]
    ours.append(_waiting_child(become_cleanup, null, *ours))
    for _ in range(workers):
        ours.append(_waiting_child(partial(become_worker, modules), null, *ours))
    os.close(null)
    use(ours[0], ours[1], ours[2:])
    sys.meta_path.insert(0, Hidden(modules.with_torch))
    _forget_tests()
    _to_end(body)


def fork_workers(
    requests: socket.socket, server: socket.socket, stderr: int, args: list[str]
) -> None:
    """Import all tests, then fork workers; they have the server of this process too."""
    for one in (requests, server):
        one.set_inheritable(False)
    null = os.open(os.devnull, os.O_RDWR)
    _streams(null, null, stderr)
    _forget_tests()
    pytest.main([*args, "-n0", "--collect-only"], plugins=[_OnlyImports()])
    importlib.import_module("tests.warm").use_server(server)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(requests, become_forked_worker)


class _OnlyImports:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []


def become_forked_worker(request: None, stdin: int, output: int) -> None:
    _streams(stdin, output)
    os.close(stdin)
    os.close(output)
    _to_end(run_worker)


def _to_end(body: Callable[[], None]) -> None:
    try:
        body()
    finally:
        # As at the end of Python, and before what is printed last.
        getattr(threading, "_shutdown")()  # noqa: B009
        atexit._run_exitfuncs()


def _set_environment(env: dict[str, str]) -> None:
    """The environment of a program that is executed, and what Python reads of it at its start."""
    paths = [variables.get("PYTHONPATH", "").split(os.pathsep) for variables in (os.environ, env)]
    before, now = ([str(Path(path).absolute()) for path in some if path] for some in paths)
    sys.path[1:] = [*now, *(path for path in sys.path[1:] if path not in before)]
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    tempfile.tempdir = None


def _forget_tests() -> None:
    for name in [name for name in sys.modules if _package(name) == "tests"]:
        del sys.modules[name]


def _waiting_child(
    become: Callable[[list[str]], None], null: int, *ours: socket.socket
) -> socket.socket:
    """A connection to a child that becomes what the run asks for, unless the run ends before.

    ours: connections of the run alone.
    """
    here, there = socket.socketpair()
    if os.fork() == 0:
        for one in (here, *ours):
            one.close()
        _streams(null, null, null)
        os.close(null)
        _exit_after(partial(_wait, there, become))
    there.close()
    return here


def _wait(run: socket.socket, become: Callable[[list[str]], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run.sendall(str(os.getpid()).encode())
    head, fds, _, _ = socket.recv_fds(run, 1, 16)
    if not head:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with run, run.makefile() as rest:
        argv, directory, env, new_session, passed = ast.literal_eval(rest.read())
    targets = (0, 1, 2, *passed)
    # Beyond all targets first: one may be the number of another descriptor.
    beyond = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(targets) + 1) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, target in zip(beyond, targets, strict=True):
        os.dup2(fd, target)
        os.close(fd)
    if new_session:
        os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    become(argv)


def become_cleanup(argv: list[str]) -> None:
    from pytest_mnode.launchers.cleanup import daemon  # imported already, but not in agents

    daemon.main(*argv[-2:])


def become_agent_or_enter(modules: Modules, argv: list[str]) -> None:
    for name in modules.of_runs:
        del sys.modules[name]
        package, _, module = name.rpartition(".")
        if package in sys.modules:  # else `from package import module` finds it there
            vars(sys.modules[package]).pop(module, None)
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
    _forget_tests()
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
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    _exit(code)


if __name__ == "__main__":
    main()
