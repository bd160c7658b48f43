"""Runs one command in the namespaces of a process: `enter.py PID START KINDS WHERE COMMAND…`.

Run by its path, without site-packages, to start in a few milliseconds. PID and START (its start
time) name the process, KINDS is a list such as `net,uts,mnt`, WHERE is the word for messages.
Environment, working directory and standard streams are the caller's; the exit status is the
command's, or 128 + signal; 126 and 127 as in a shell where it cannot be run, 125 where the
namespaces cannot be entered. The command dies with this process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

if __package__:
    from pytest_mnode.cluster.rack import namespaces
else:  # run by path: this folder is sys.path[0], and the package need not be imported
    import namespaces  # type: ignore[import-not-found,no-redef]

WATCHED = {
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def main(arguments: Sequence[str]) -> NoReturn:
    pid, start_time, kinds, where, *command = arguments
    # Held back from here on, so that none is lost between the fork and the first wait.
    mask: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would cost us the exit status
    try:
        namespaces.enter_kinds(int(pid), kinds.split(","), int(start_time))
        alive_read, alive_write = os.pipe()
        child = os.fork()
    except (FileNotFoundError, ProcessLookupError):
        fail(125, f"{where}: gone, or booted again since this command was made")
    except OSError as error:
        fail(125, f"{where}: cannot enter: {error.strerror} ({error.filename or 'fork'})")
    if child == 0:
        os.close(alive_write)
        run(command, where, mask, alive_read)
    os.close(alive_read)
    os._exit(status_of(child))


def run(command: list[str], where: str, mask: set[int], alive: int) -> NoReturn:
    """Become the command."""
    namespaces.die_with_parent()
    os.set_blocking(alive, False)
    try:
        if os.read(alive, 1) == b"":
            os._exit(125)  # the parent ended before it could be asked to take us along
    except BlockingIOError:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Python ignores these; the command shall find what a shell would have given it.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        fail(127, f"{where}: no such command: {command[0]}")
    except OSError as error:
        fail(126, f"{where}: cannot run {command[0]}: {error.strerror}")


def status_of(child: int) -> int:
    """Wait for the child, passing on the signals that somebody sends; its status as a shell's."""
    while True:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo != signal.SIGCHLD:
            # A terminal's Ctrl-C (si_code > 0) has reached the whole group, the child too.
            if info.si_code <= 0:
                os.kill(child, info.si_signo)
            continue
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
