"""Ends what a launcher started, when the controller ends or orders it: `daemon.py FD PID`.

Run by its path, without site-packages. FD is a connected packet socket, PID is the controller's.
Packets are JSON objects. The controller sends orders: a first key that names the order, and its
arguments (see `Daemon.obey`). The daemon sends events: {"of": task name, …}. When the controller
ends, or closes the socket without the order `close`, the daemon ends all tasks and removes the
directories of the order `remove`. After SIGTERM it leaves directories to the controller, if that
lives on.
"""

from __future__ import annotations

import contextlib
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
from pytest_mnode.launchers.cleanup.bridge_task import BridgeTask
from pytest_mnode.machine.pidfd import pidfd_open
from pytest_mnode.processes import set_name

PACKET_BYTES = 1 << 18
IDLE_S = 0.2
STILL_WRITING_S = 6.0
"""Time until a node notices that its connection ended, and stops writing to a shared directory."""
_TOGETHER_S = 2.0
"""A service or job that is stopped sends SIGTERM to the controller and to this process at once."""


class Task(Protocol):
    """A resource that would outlive the controller."""

    on_nodes: bool
    """Whether other machines notice its end only after a while."""

    @property
    def busy(self) -> bool:
        """Whether a change is expected soon, so that `turn` must be called often."""

    def descriptors(self) -> Iterable[int]:
        """Descriptors after whose events `turn` is called; it is also called after a timeout."""

    def turn(self) -> None:
        """Check for changes, and report them."""

    def end(self) -> None:
        """End it; nothing of it is left afterwards, as far as this machine can ensure that."""


class Daemon:
    """All tasks of one launcher, by name."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.tasks: dict[str, Task] = {}
        self.remove: list[str] = []
        self.terminated = self.closed = False
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._terminate)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _terminate(self, *_: object) -> None:
        self.terminated = True
        os.write(2, b"cleanup process ended by SIGTERM\n")  # for whoever misses it

    def serve(self, controller: int | None) -> None:
        """Serve until SIGTERM, or until the controller ends or hangs up. controller: its pidfd."""
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
        """Carry out an order of the controller."""
        match order:
            case {"remove": paths}:
                self.remove = paths
            case {"close": paths}:
                self.remove, self.closed = paths, True
            case {"bridge": name, **settings}:
                self.tasks[name] = BridgeTask(report=partial(self.tell, name), **settings)
            case {"rack": fd, "path": path}:
                sys.path[:] = path
                from pytest_mnode.launchers.cleanup.rack import RackTask

                self.tasks["rack"] = RackTask(fd)

    def tell(self, name: str, **event: object) -> None:
        """Report an event to the controller, which may have ended."""
        with contextlib.suppress(OSError):
            self.channel.send(json.dumps({"of": name, **event}).encode())

    def end(self, controller: int | None) -> None:
        """End all tasks; remove directories, unless SIGTERM left them to the controller."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM must not interrupt this
        for task in self.tasks.values():
            task.end()
        if self.terminated:
            self.channel.close()  # a controller that lives learns of the end now
            if controller is None or not select.select([controller], [], [], _TOGETHER_S)[0]:
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
    set_name("mnode-cleanup")
    controller = None
    with contextlib.suppress(OSError):  # without pidfds, the channel's end is enough
        controller = pidfd_open(int(pid))
    if os.getppid() != int(pid):
        return  # the controller is gone, and has ordered nothing
    daemon = Daemon(socket.socket(fileno=int(fd)))
    try:
        daemon.serve(controller)
    finally:
        daemon.end(controller)


if __name__ == "__main__":
    main(*sys.argv[1:])
