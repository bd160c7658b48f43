"""Ends what a launcher started, once the controller has ended or says so: `daemon.py FD PID`.

Run by its path, without site-packages. FD is a connected socket of packets, PID the controller's.
Packets are JSON objects. The controller sends orders: a first key that names the order, and its
arguments (see `Daemon.obey`). The daemon sends events: {"of": task name, …}. When the controller
hangs up without the order `close`, or is gone, all tasks are ended and the directories of the order
`remove` are removed. After SIGTERM tasks are ended, and directories are left to the controller.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[3])
from pytest_mnode.launchers.cleanup.salloc import Salloc
from pytest_mnode.launchers.cleanup.ssh_connections import SshConnections
from pytest_mnode.machine.pidfd import pidfd_open

PACKET_BYTES = 1 << 18
IDLE_S = 0.2
STILL_WRITING_S = 6.0
"""After a connection ended a node may write to a shared directory for so long, until it notices."""


class Task(Protocol):
    """Something that would outlive the controller."""

    on_nodes: bool
    """Whether its end takes other machines a while to notice."""

    @property
    def busy(self) -> bool:
        """Whether something is about to happen: `turn` is to be called often."""

    def descriptors(self) -> Iterable[int]:
        """Descriptors to wait for, besides time."""

    def turn(self) -> None:
        """Look what happened, and report it."""

    def end(self) -> None:
        """End it; nothing of it is left afterwards, as far as that is in this machine's hands."""


class Daemon:
    """All tasks of one launcher, by name."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.tasks: dict[str, Task] = {}
        self.ssh: SshConnections | None = None
        self.remove: list[str] = []
        self.terminated = self.closed = False
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._terminate)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _terminate(self, *_: object) -> None:
        self.terminated = True

    def serve(self, controller: int | None) -> None:
        """Until the controller has ended or hung up, or SIGTERM. controller: its pidfd."""
        while not self.terminated:
            poll = select.poll()
            watched = {self.channel.fileno(), self.wake, controller}
            for fd in watched.union(*(task.descriptors() for task in self.tasks.values())):
                if fd is not None:
                    poll.register(fd, select.POLLIN)
            busy = any(task.busy for task in self.tasks.values())
            ready = {fd for fd, _ in poll.poll(20 if busy else IDLE_S * 1000)}
            if self.wake in ready:
                os.read(self.wake, 4096)
            if self.channel.fileno() in ready:
                data = self.channel.recv(PACKET_BYTES)
                if not data:
                    return
                self.obey(json.loads(data))
            elif controller in ready:
                return
            for task in list(self.tasks.values()):
                task.turn()

    def obey(self, order: dict[str, Any]) -> None:
        """Do what the controller orders."""
        match order:
            case {"remove": paths}:
                self.remove = paths
            case {"close": paths}:
                self.remove, self.closed = paths, True
            case {"connect": name, "argv": argv, "socket": path, **limits}:
                if self.ssh is None:
                    self.tasks["ssh"] = self.ssh = SshConnections(self.tell)
                self.ssh.connect(name, argv, Path(path), **limits)
            case {"disconnect": name} if self.ssh is not None:
                self.ssh.disconnect(name)
            case {"allocate": name, "argv": argv}:
                self.tasks[name] = Salloc(argv, name, partial(self.tell, name))
            case {"rack": fd, "path": path}:
                sys.path[:] = path
                from pytest_mnode.launchers.cleanup.rack import RackTask

                self.tasks["rack"] = RackTask(fd)
            case {"end": name}:
                self.tasks.pop(name).end()

    def tell(self, name: str, **event: object) -> None:
        """Report an event to the controller, who may be gone."""
        with contextlib.suppress(OSError):
            self.channel.send(json.dumps({"of": name, **event}).encode())

    def end(self) -> None:
        """End all tasks; remove directories, if the controller is not there to do it."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut this short
        for task in self.tasks.values():
            task.end()
        if self.terminated:
            return
        on_nodes = any(task.on_nodes for task in self.tasks.values())
        again = time.monotonic() + (STILL_WRITING_S if on_nodes and not self.closed else 0.0)
        while True:
            for path in self.remove:
                shutil.rmtree(path, ignore_errors=True)
            if time.monotonic() > again:
                return
            time.sleep(0.5)


def main(fd: str, pid: str) -> None:
    ctypes.CDLL(None).prctl(15, b"mnode-cleanup", 0, 0, 0)  # PR_SET_NAME
    controller = None
    with contextlib.suppress(OSError):  # a kernel without it: the channel ends instead
        controller = pidfd_open(int(pid))
    if os.getppid() != int(pid):
        return  # the controller is gone, and has ordered nothing
    daemon = Daemon(socket.socket(fileno=int(fd)))
    try:
        daemon.serve(controller)
    finally:
        daemon.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
