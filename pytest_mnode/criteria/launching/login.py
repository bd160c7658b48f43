"""Runs commands on a node as an ordinary user after login. Its input is a plan, a JSON object.

It is run by path with `python -I -S`, so it uses only the standard library. `Direct` makes the
plan: first folders of PATH, LANG, whether to become an unprivileged user, files that this user must
be able to read and run, whether the node is another machine, with an environment of its own, and
processes with argv and variables. Each process gets that environment (launchers.node_env), HOME,
USER, PATH and LANG, and its own variables; nothing that this run has added. A plan of `Pods` has
"container": the user and the environment of the container are kept.

The first line of output is the user: {"login": {"node": …, "uid": …, "user": …, "why": …}}.
The program ends when all processes have ended, some time after one has failed, or at SIGTERM, and
then kills all descendants. Its exit status is the first status that is not 0; for a process that a
signal ended, the status is 128 + signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any, NoReturn

NOBODY = 65534
_SUBREAPER, _PARENT_DEATH = 36, 1
_FOLLOW_S = 20.0
"""Time that other processes of the node may run after one has failed, so that they can report
their own errors about the lost peer."""
_KILL_S = 10.0


def main(plan: dict[str, Any]) -> NoReturn:
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # this process adopts all orphans of the job
    libc.prctl(_PARENT_DEATH, signal.SIGTERM, 0, 0, 0)
    if plan.get("container"):
        uid = os.geteuid()
        why = "" if uid else "the container's user"
    else:
        uid, why = chosen_user(bool(plan["unprivileged"]), plan["must_read"], plan["must_run"])
    home, made = home_of(uid)
    user = name_of(uid)
    say({"login": {"node": socket.gethostname(), "uid": uid, "user": user, "why": why}})
    own = os.environ if plan.get("container") else of_node() if plan.get("remote") else {}
    path = os.pathsep.join(filter(None, (plan["path"], own.get("PATH"))))
    base = {"HOME": home, "USER": user, "LANG": plan.get("lang", "C.UTF-8"), **own, "PATH": path}
    if uid != os.geteuid():
        base |= {"HOME": home, "USER": user}
    ended: list[int] = []
    logs = ""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, interrupted)
        if any("{logs}" in word for one in plan["processes"] for word in one["argv"]):
            logs = tempfile.mkdtemp(prefix="mnode-logs-", dir=home if made else None)
            if uid != os.geteuid():
                os.chown(logs, uid, uid)
        children = {
            start([word.replace("{logs}", logs) for word in one["argv"]], base | one["env"], uid)
            for one in plan["processes"]
        }
        ended = wait_for(children)
    except KeyboardInterrupt:
        ended = [128 + signal.SIGTERM]
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        kill_descendants()
        for folder in filter(None, (home if made else "", logs)):
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(next((code for code in ended if code), 0))


def of_node() -> dict[str, str]:
    """The node's own environment: that of remote_exec, which has started this process."""
    with open(f"/proc/{os.getppid()}/environ", "rb") as file:  # noqa: PTH123
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    # A step of Slurm is one task on one node, unlike the job that is started here.
    of_a_task = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_")
    return {name: value for name, _, value in pairs if not name.startswith(of_a_task)}


def interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def chosen_user(unprivileged: bool, must_read: list[str], must_run: list[str]) -> tuple[int, str]:
    """The user of the processes, and why that is not an unprivileged one; "" if it is one."""
    uid = os.geteuid()
    if uid != 0 or not unprivileged:
        return uid, "" if uid else "no unprivileged user was requested"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, why_not(must_read, must_run).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        why = pipe.read()
    os.waitpid(child, 0)
    return (0, why) if why else (NOBODY, "")


def why_not(must_read: list[str], must_run: list[str]) -> str:
    """Why uid nobody cannot run the job, tried in this process; "" if it can."""
    try:
        become(NOBODY)
    except OSError as error:
        return (
            f"the node does not allow a switch to uid {NOBODY} ({(error.strerror or '').lower()})"
        )
    for paths, mode, doing in ((must_run, os.X_OK, "run"), (must_read, os.R_OK, "read")):
        for path in paths:
            if not os.access(path, mode):
                return f"uid {NOBODY} cannot {doing} {path}"
    return ""


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def home_of(uid: int) -> tuple[str, bool]:
    """The user's home, and whether it is temporary; uid nobody gets a temporary one in memory."""
    if uid == os.geteuid():
        try:
            return pwd.getpwuid(uid).pw_dir, False
        except KeyError:
            return "/", False
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112
    home = tempfile.mkdtemp(prefix="mnode-home-", dir=place)
    os.chown(home, uid, uid)
    return home, True


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def start(argv: list[str], env: dict[str, str], uid: int) -> int:
    """Start a process as user `uid` in its home, with only the environment `env`; its pid."""
    child = os.fork()
    if child:
        return child
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if uid != os.geteuid():
            become(uid)
        os.chdir(env["HOME"])
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        where = f" in {env['HOME']}" if error.filename == env["HOME"] else ""
        why = f"cannot run {argv[0]}{where}: {error.strerror}"
        sys.stderr.write(f"{socket.gethostname()}: {why}\n")
        sys.stderr.flush()
    finally:
        os._exit(127)


def wait_for(children: set[int]) -> list[int]:
    """Exit codes in the order of ending; waits at most _FOLLOW_S after a failure."""
    codes: list[int] = []
    left = set(children)
    limit: float | None = None
    while left and (limit is None or time.monotonic() < limit):
        pid, status = os.waitpid(-1, 0 if limit is None else os.WNOHANG)
        if pid == 0:
            time.sleep(0.02)
        elif pid in left:
            left.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            codes.append(code if code >= 0 else 128 - code)
            if code and limit is None:
                limit = time.monotonic() + _FOLLOW_S
    return codes


def kill_descendants() -> None:
    """Kill all descendants, round by round: children of a killed parent become ours."""
    limit = time.monotonic() + _KILL_S
    while time.monotonic() < limit:
        for pid in children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return


def children_of(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:  # noqa: PTH123
                    if int(file.read().rpartition(")")[2].split()[1]) == parent:
                        found.append(int(entry))
            except OSError:
                continue
    return found


def say(what: dict[str, Any]) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


if __name__ == "__main__":
    main(json.load(sys.stdin))
