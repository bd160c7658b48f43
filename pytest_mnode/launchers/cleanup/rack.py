"""The daemon's task for a rack: the rack's first process; when it ends, the kernel ends the rack.

PID namespaces end with their first process, network namespaces with their last user, mounts with
their namespace. The daemon itself leaves the host's namespaces and forks that process.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Iterable
from typing import NoReturn

from pytest_mnode import processes
from pytest_mnode.launchers.rack import cgroups
from pytest_mnode.launchers.rack.protocol import PACKET_BYTES, Reply, Setup
from pytest_mnode.launchers.rack.rack_init import RackInit
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.pidfd import pidfd_open


class RackTask:
    """The rack whose channel is the socket with this descriptor. Implements Task."""

    busy = False
    on_nodes = False

    def __init__(self, channel_fd: int) -> None:
        self._channel = socket.socket(fileno=channel_fd)
        self._pid: int | None = None
        self._pidfd = -1
        setup = pickle.loads(self._channel.recv(PACKET_BYTES))
        assert isinstance(setup, Setup)
        os.chdir("/")
        try:
            namespaces.leave_host(setup.rootless)
            self._pid = _fork_first(self._channel, setup)
            self._pidfd = pidfd_open(self._pid)
        except OSError as error:
            self._channel.send(pickle.dumps(Reply(0, str(error))))
            self.end()

    def descriptors(self) -> Iterable[int]:
        return () if self._pid is None else (self._pidfd,)

    def turn(self) -> None:
        if self._pid is not None and os.waitid(
            os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            self.end()

    def end(self) -> None:
        """End the rack; returns when all of its processes are dead."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pidfd)
            self._pid = None
            cgroups.remove_all(os.getpid())
        self._channel.close()  # the controller notices the end of the channel


def _fork_first(channel: socket.socket, setup: Setup) -> int:
    """Start the rack's first process; its pid outside the rack."""
    name_read, name_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(name_write)
        _be_first(channel, setup, name_read)
    os.close(name_read)
    os.write(name_write, str(pid).encode())
    os.close(name_write)
    return pid


def _be_first(channel: socket.socket, setup: Setup, name_read: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        namespaces.die_with_parent()
        own_pid = os.read(name_read, 32)
        if own_pid:  # else the parent ended before `die_with_parent` could take effect
            os.close(name_read)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            processes.set_name("mnode-rack")
            RackInit(channel, setup).serve(int(own_pid))
    except Exception as error:
        channel.send(pickle.dumps(Reply(0, str(error))))
    finally:
        os._exit(0)
