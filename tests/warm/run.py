"""Runs pytest as `python -m pytest` does, with an agent and other processes that wait."""

from __future__ import annotations

import inspect
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
}
"""What agents have unless the user says otherwise."""
MARK = "MAPPED_BY_RUN"
"""Names a file that a run and its processes map, as long as they execute nothing."""
_READ_AT_START = (
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "OMP_",
    "MKL_",
    "TORCH",
    "PYTORCH_",
    "CUDA_HOME",
)
_PATH = "PYTHONPATH"
"""Not among them, unless its directories hold one of these: an agent is sent sys.path."""
_BEFORE = ("sitecustomize.py", "usercustomize.py", "pytest_mnode", "torch")
_ROOT = Path(__file__).parents[2]
AGENT = ["-m", "pytest_mnode.agent.agent"]
WORKER = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""As execnet starts a worker of pytest-xdist."""
FORK_WORKERS = "tests.warm.workers"
CLEANUP = ["-S", "-E", "-s", str(_ROOT / "pytest_mnode/launchers/cleanup/daemon.py")]


def same_start(env: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether variables agree that Python or torch read while they start."""

    def read(variables: Mapping[str, str]) -> dict[str, str]:
        found = {**DEFAULTS, **variables}
        if not any(map(_imported_before, found.get(_PATH, "").split(os.pathsep))):
            found.pop(_PATH, None)
        return {name: text for name, text in found.items() if name.startswith(_READ_AT_START)}

    return read(env) == read(other)


def _imported_before(directory: str) -> bool:
    if Path(directory) == _ROOT:
        return False  # the package that is there
    return any((Path(directory) / name).exists() for name in _BEFORE)


def use(agent: socket.socket, cleanup: socket.socket, workers: Sequence[socket.socket]) -> None:
    """Have the first agent, cleanup process and workers of this process be those that wait, if
    they can be."""
    waiting_workers = list(workers)
    popen: Any = subprocess.Popen
    execute = popen._execute_child
    parameters = inspect.signature(execute)

    def waiting_for(argv: Sequence[str], env: Mapping[str, str]) -> socket.socket | None:
        if argv[0] == sys.executable and argv[1:-2] == CLEANUP:
            return cleanup
        if argv == [sys.executable, *WORKER] and waiting_workers:
            return waiting_workers.pop()
        is_agent = argv[-2:] == AGENT and argv[0] == argv[-3] == sys.executable
        return agent if is_agent and len(argv) in (3, 12) and same_start(env, os.environ) else None

    def execute_child(self: Any, *args: Any, **kwargs: Any) -> None:
        given = parameters.bind(self, *args, **kwargs).arguments
        argv, env = given["args"], given["env"] or os.environ
        waiting = waiting_for(argv, env)
        if waiting is None or waiting.fileno() < 0:
            execute(self, *args, **kwargs)
            return
        streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        passed = sorted(given["pass_fds"])
        fds = [own if fd == -1 else fd for own, fd in enumerate(streams)] + passed
        asked = (argv, str(Path.cwd()), dict(env), given["start_new_session"], passed)
        with waiting:
            pid = int(waiting.recv(20))
            socket.send_fds(waiting, [b"a"], fds)
            waiting.sendall(repr(asked).encode())
            waiting.shutdown(socket.SHUT_WR)
        self._child_created, self.pid = True, pid
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))

    popen._execute_child = execute_child


def run_module(module: str, words: Sequence[str]) -> None:
    """Run a module in this process."""
    sys.path[0] = str(Path.cwd())
    sys.argv[:] = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_worker() -> None:
    sys.path[0] = ""
    sys.argv[:] = ["-c"]
    exec(WORKER[-1], vars(sys.modules["__main__"]))
