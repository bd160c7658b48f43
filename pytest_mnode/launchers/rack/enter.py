"""Runs one command in the namespaces of a process: `enter.py PID START KINDS WHERE COMMAND…`.

Run by its path, without site-packages, to start in a few milliseconds. PID and START (its start
time) identify the process, KINDS is a list such as `net,uts,mnt`, WHERE is the name for messages.
Environment, working directory and standard streams are the caller's; the exit status is the
command's, or 128 + signal; 126 and 127 as in a shell if it cannot be run, 125 if the
namespaces cannot be entered. The command dies with this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

if not __package__:  # run by its path
    sys.path[0] = os.path.abspath(f"{__file__}/../../../..")  # noqa: PTH100
from pytest_mnode.machine import namespaces

PARENT_DIED = signal.SIGCONT
"""Also resumes a guard that was stopped, as whoever stops all processes of a node does to it."""
WATCHED = {
    PARENT_DIED,
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def main(arguments: Sequence[str]) -> NoReturn:
    """Run three processes: this one, which the caller signals and waits for; the command; and its
    parent, the guard, which outlives this process just long enough to reap the command.

    Without the guard, a kill of this process would leave a zombie to the host's init, and a PID
    namespace cannot end before its last zombie is reaped, however long that init takes.
    """
    # Signals are blocked from here on, so that none is lost between a fork and the first wait.
    mask: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the exit status is lost
    alive_read, alive_write = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(alive_write)
        guard_command(arguments, mask, alive_read)
    os.close(alive_read)
    os._exit(status_of(guard))


def guard_command(arguments: Sequence[str], mask: set[int], alive: int) -> NoReturn:
    """Enter the namespaces, start the command, and wait for it."""
    pid, start_time, kinds, where, *command = arguments
    parent = os.getppid()
    namespaces.die_with_parent(PARENT_DIED)
    stop_without_parent(alive)
    try:
        namespaces.enter_kinds(int(pid), kinds.split(","), int(start_time))
        alive_read, alive_write = os.pipe()
        child = os.fork()
    except (FileNotFoundError, ProcessLookupError):
        fail(125, f"{where}: the node is off, or was booted again after this command was made")
    except OSError as error:
        fail(125, f"{where}: cannot enter: {error.strerror} ({error.filename or 'fork'})")
    if child == 0:
        os.close(alive_write)
        namespaces.die_with_parent()
        os.read(alive_read, 1)  # wait until the guard has left the process group
        stop_without_parent(alive_read)
        run(command, where, mask)
    os.close(alive_read)
    os.setsid()  # a kill of the whole process group is for the command, not for its guard
    with contextlib.suppress(BrokenPipeError):  # the command was killed already
        os.write(alive_write, b"x")
    os._exit(status_of(child, parent))


def stop_without_parent(alive: int) -> None:
    """End if the parent, which holds the pipe's other end, ended before `die_with_parent`."""
    os.set_blocking(alive, False)
    try:
        if os.read(alive, 1) == b"":
            os._exit(125)
    except BlockingIOError:
        pass
    os.close(alive)


def run(command: list[str], where: str, mask: set[int]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Python ignores these; the command must get the defaults, as from a shell.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        fail(127, f"{where}: no such command: {command[0]}")
    except OSError as error:
        fail(126, f"{where}: cannot run {command[0]}: {error.strerror}")


def status_of(child: int, parent: int | None = None) -> int:
    """Wait for the child, and pass signals on to it; its status as a shell reports it.

    parent: the process with which the child is to die.
    """
    while True:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo == PARENT_DIED:
            if parent and os.getppid() != parent:  # otherwise somebody else continued this process
                os.kill(child, signal.SIGKILL)
        elif info.si_signo != signal.SIGCHLD:
            # A terminal's Ctrl-C (si_code > 0) has reached the whole process group.
            if info.si_code <= 0:
                os.kill(child, info.si_signo)
        else:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def fail(status: int, message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
