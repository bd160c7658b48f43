"""The process of a command on a node: how it starts the command, and its descendants.

Only the standard library: the text of this file is sent to nodes with remote_exec's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping

OF_THE_STEP = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    "TMPDIR",
)
"""Slurm sets these on each node, to the GPUs allocated there and to a directory of the node."""
OF_A_POD = "KUBERNETES_SERVICE_HOST"
"""The kubelet sets it in every container."""


CHILDREN = "/proc/thread-self/children"
"""Missing on a kernel that was built without CONFIG_PROC_CHILDREN."""


def descendants(pid: int) -> list[int]:
    """Pids of all processes below `pid`."""
    found = [pid]
    known = None if os.path.exists(CHILDREN) else children_by_parent()  # noqa: PTH110
    for parent in found:
        if known is not None:
            found += known.get(parent, ())
            continue
        try:
            tasks = os.listdir(f"/proc/{parent}/task")  # noqa: PTH208  pathlib costs 10 ms
        except OSError:
            continue
        for task in tasks:
            try:
                with open(f"/proc/{parent}/task/{task}/children") as file:  # noqa: PTH123
                    found += [int(word) for word in file.read().split()]
            except OSError:
                continue
    return found[1:]


def children_by_parent() -> dict[int, list[int]]:
    """Pids of the children of every process, by its pid."""
    found: dict[int, list[int]] = {}
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir("/proc")  # noqa: PTH208
    for name in names:
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The process name before the state may contain any character.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                found.setdefault(parent, []).append(int(name))
    return found


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def node_env(env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: the one sent, except for variables that are set on this node."""
    names = ["SSH_CONNECTION"] if "SSH_CONNECTION" in own else []
    # srun was started in the environment sent, and Slurm has set the variables that differ.
    names += OF_THE_STEP if "SLURM_STEP_ID" in own else []
    if OF_A_POD in own:  # image, template and device plugins set them; tests send PYTHONPATH
        names += [name for name in own if name != "PYTHONPATH" or name not in env]
    kept = {name: value for name, value in env.items() if name not in names}
    return kept | {name: own[name] for name in names if name in own}


def encoded(text: object) -> bytes:
    """The bytes that the proxy sent as UTF-8 text, whatever this machine's locale."""
    return str(text).encode("utf-8", "surrogateescape")


def decoded(data: bytes) -> str:
    """The inverse of `encoded`."""
    return data.decode("utf-8", "surrogateescape")


def become(order: dict[str, object], fds: list[int], parent: int) -> None:
    """In the forked child: become the command, or print why not; never return."""
    status, why = 125, ""
    try:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        status, why = run(order, parent)
    except BaseException as error:
        why = f"cannot run it: {type(error).__name__}: {error}"
    try:
        os.write(2, f"{order.get('where')}: {why}\n".encode(errors="replace"))
    finally:
        os._exit(status)  # to return would end this program with status 0


def run(order: dict[str, object], parent: int) -> tuple[int, str]:
    """Become the command; exit status and reason if that fails."""
    words, sent = order["argv"], order["env"]
    assert isinstance(words, list)
    assert isinstance(sent, dict)
    argv = [encoded(word) for word in words]
    own = {decoded(name): decoded(value) for name, value in os.environb.items()}
    env = {encoded(n): encoded(value) for n, value in node_env(sent, own).items()}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  as many as are open, not may be
        with contextlib.suppress(OSError):
            if int(name) > 2:
                os.close(int(name))
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(125)
    try:
        os.chdir(encoded(order["cwd"]))
    except OSError:
        os.chdir("/")
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        return 127, f"no such command: {words[0]}"
    except OSError as error:
        return 126, f"cannot run {words[0]}: {error.strerror}"
