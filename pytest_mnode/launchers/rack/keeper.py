"""Keeps a rack from outlasting its controller: `python -m …keeper FD`, FD a connected socket.

This outer process leaves the host's namespaces, forks the rack's first process into them and
from then on only waits: for the controller to end or hang up, or for the first process to end.
All that a rack is hangs on that one process by the kernel's own rules: PID namespaces end with
their first process, network namespaces with their last user, mounts with their namespace.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from pytest_mnode.launchers.rack import cgroups
from pytest_mnode.launchers.rack.inside import Inside
from pytest_mnode.launchers.rack.protocol import PACKET_BYTES, Reply, Setup
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.pidfd import pidfd_open


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    data = channel.recv(PACKET_BYTES)
    if not data:
        return
    setup = pickle.loads(data)
    assert isinstance(setup, Setup)
    os.chdir("/")
    namespaces.set_process_name("mnode-keeper")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # how the controller closes
    try:
        controller = pidfd_open(setup.controller_pid)
    except ProcessLookupError:
        controller = None
    # A pid that went to somebody else meanwhile is not our parent's.
    if controller is not None and os.getppid() == setup.controller_pid:
        keep(controller, channel, setup)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if setup.cleanup_dirs:
            await_first([controller])
    for directory in setup.cleanup_dirs:
        shutil.rmtree(directory, ignore_errors=True)


def keep(controller: int, channel: socket.socket, setup: Setup) -> None:
    """Run the rack until the controller or the rack itself ends; leaves nothing running."""
    inside: int | None = None
    try:
        namespaces.leave_host(setup.rootless)
        inside = fork_inside(channel, setup)
        await_first([controller, pidfd_open(inside)], channel)
    except OSError as error:
        channel.send(pickle.dumps(Reply(0, str(error))))
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut this short
        if inside is not None:
            os.kill(inside, signal.SIGKILL)
            os.waitpid(inside, 0)  # returns when all that was in the rack is dead
            cgroups.remove_all(os.getpid())
        channel.close()  # tells the controller


def fork_inside(channel: socket.socket, setup: Setup) -> int:
    """Start the rack's first process; its pid out here."""
    name_read, name_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(name_write)
        run_inside(channel, setup, name_read)
    os.close(name_read)
    os.write(name_write, str(pid).encode())
    os.close(name_write)
    return pid


def run_inside(channel: socket.socket, setup: Setup, name_read: int) -> NoReturn:
    """Be the rack's first process."""
    try:
        namespaces.die_with_parent()
        own_pid = os.read(name_read, 32)
        if own_pid:  # else the parent ended before it could be asked to take us along
            os.close(name_read)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            namespaces.set_process_name("mnode-rack")
            Inside(channel, setup).serve(int(own_pid))
    except Exception as error:
        channel.send(pickle.dumps(Reply(0, str(error))))
    finally:
        os._exit(0)


def await_first(processes: Sequence[int], channel: socket.socket | None = None) -> None:
    """Return when one of the processes (pidfds) has ended, or the channel is hung up."""
    poll = select.poll()
    for process in processes:
        poll.register(process, select.POLLIN)
    if channel is not None:
        poll.register(channel, 0)  # hanging up is told unasked
    poll.poll()


if __name__ == "__main__":
    main()
