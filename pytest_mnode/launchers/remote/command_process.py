"""The process of a command on a node: how it starts the command, and its descendants.

Only the standard library: the text of this file is sent to nodes with remote_exec's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Container, Iterable, Mapping

OF_A_TASK = (
    *("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Prefixes of variables that describe a process's own task of a job. A job script is task 0 on the
first node, and so is each step of a launcher on its node; ranks must not inherit these."""
OF_THE_JOB = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID")
CHILDREN = "/proc/thread-self/children"
"""Missing on a kernel that was built without CONFIG_PROC_CHILDREN."""


def descendants(pid: int, but: Container[int] = ()) -> list[int]:
    """Pids of all processes below `pid`, but these and what is below them."""

    def below(pids: Iterable[int]) -> list[int]:
        return [one for one in pids if one not in but and may_be_killed(one)]

    found = [pid]
    known = None if os.path.exists(CHILDREN) else children_by_parent()  # noqa: PTH110
    for parent in found:
        if known is not None:
            found += below(known.get(parent, ()))
            continue
        try:
            tasks = os.listdir(f"/proc/{parent}/task")  # noqa: PTH208  pathlib costs 10 ms
        except OSError:
            continue
        for task in tasks:
            try:
                with open(f"/proc/{parent}/task/{task}/children") as file:  # noqa: PTH123
                    found += below(map(int, file.read().split()))
            except OSError:
                continue
    return found[1:]


def may_be_killed(pid: int) -> bool:
    """Whether it is not measuring.port_meanwhile, which restores a port and ends by itself."""
    try:
        with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123
            return file.read() != "mnode-port\n"
    except OSError:
        return True


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


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor above 2 that is not in `kept`: as many as are open, not may be."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if int(name) > 2 and int(name) not in kept:
                os.close(int(name))


def node_env(
    env: Mapping[str, str],
    own: Mapping[str, str],
    passed: Mapping[str, str],
    defaults: Mapping[str, str],
    removed: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The command's environment, by the rule of launchers.node_env.

    env: what the user set for the run. own: the node's. passed: of pytest's environment. defaults:
    what counts last. removed: what srun has passed on, and the command does not have.
    """
    found = {**defaults, **of_user(), **passed, **own}
    if "SLURM_STEP_ID" in own:  # srun has passed them on, without what Slurm takes away
        without = removed or {}  # another value is the node's own
        kept = {
            name: value
            for name, value in own.items()
            if name in OF_THE_JOB or not (name.startswith(OF_A_TASK) or without.get(name) == value)
        }
        found = {**defaults, **of_user(), **kept}
    folder, path = os.path.dirname(sys.executable), found.get("PATH", os.defpath)  # noqa: PTH120
    if folder and folder not in path.split(os.pathsep):  # as in an activated environment
        found["PATH"] = os.pathsep.join((folder, path))
    return {**found, **env}


def of_user() -> dict[str, str]:
    """HOME and USER of this process's user, for a node that sets none."""
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:  # a container's user may have no name
        return {}
    return {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}


def encoded(text: object) -> bytes:
    """The bytes that the caller sent as UTF-8 text, whatever this machine's locale."""
    return str(text).encode("utf-8", "surrogateescape")


def decoded(data: bytes) -> str:
    """The inverse of `encoded`."""
    return data.decode("utf-8", "surrogateescape")


def variables(order: dict[str, object], kind: str) -> dict[str, str]:
    found = order.get(kind, {})
    assert isinstance(found, dict)
    return found


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
    words = order["argv"]
    assert isinstance(words, list)
    argv = [encoded(word) for word in words]
    sent, passed, defaults = (variables(order, kind) for kind in ("env", "passed", "defaults"))
    own = {decoded(name): decoded(value) for name, value in os.environb.items()}
    merged = node_env(sent, own, passed, defaults, variables(order, "removed"))
    env = {encoded(n): encoded(value) for n, value in merged.items()}
    close_all_but(set())
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(125)
    directory = encoded(order["cwd"])
    try:
        os.chdir(directory)
    except OSError:
        directory = b"/"
        os.chdir(directory)
    env[b"PWD"] = directory
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        return 127, f"no such command: {words[0]}"
    except OSError as error:
        return 126, f"cannot run {words[0]}: {error.strerror}"
