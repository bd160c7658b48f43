"""The first process of a rack: boots its nodes, reaps orphans, and answers requests.

It is PID 1 of the rack's PID namespace: when it ends, everything in the rack ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.launchers.rack import mounts, node_init
from pytest_mnode.launchers.rack.protocol import (
    PACKET_BYTES,
    Booted,
    Lost,
    Packet,
    Reply,
    Request,
    Setup,
)
from pytest_mnode.machine import namespaces
from pytest_mnode.protocol.launcher_requests import (
    LauncherRequest,
    PowerOff,
    PowerOn,
    SetLinkPresent,
    SetLinkRate,
    SetLinkUp,
    SetPairRate,
)

if TYPE_CHECKING:
    from pytest_mnode.launchers.rack.wiring import Switch

BOOT_LIMIT_S = 10.0
KILL_LIMIT_S = 10.0


@dataclass(slots=True)
class Booting:
    node: int
    pid: int
    report: int


class RackInit:
    """The running rack, as its first process sees it."""

    def __init__(self, channel: socket.socket, setup: Setup) -> None:
        self._channel = channel
        self._plan = setup.plan
        self._pids: dict[int, int] = {}
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        mounts.mount_proc()
        mounts.mount_sys()
        mounts.mount_names(self._plan.hosts())
        mounts.mount_shm(setup.plan.shm_bytes)
        node_init.without_ipv6()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        gc.collect()
        gc.freeze()  # keeps pages shared with the nodes' first processes
        booting = [self._fork(index) for index in range(self._plan.nodes)]
        self._switch = self._build_switch()  # while the nodes make their namespaces
        self._finish(booting)

    def _build_switch(self) -> Switch:
        try:
            from pytest_mnode.launchers.rack.wiring import Switch
        except ImportError as error:
            raise RuntimeError(f"links need pyroute2: {error}") from error
        return Switch(self._plan)

    def serve(self, own_pid: int) -> None:
        """Answer requests until the controller hangs up."""
        self._send(Reply(0, rack_pid=own_pid))
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._channel.fileno() in ready:
                data = self._channel.recv(PACKET_BYTES)
                if not data:
                    return
                request = pickle.loads(data)
                assert isinstance(request, Request)
                self._send(self._answer(request))

    def _answer(self, request: Request) -> Reply:
        try:
            self._do(request.what)
        except Exception as error:
            name, text = getattr(request.what, "node", "rack"), str(error)
            return Reply(request.id, text if text.startswith(name) else f"{name}: {text}")
        return Reply(request.id)

    def _do(self, request: LauncherRequest) -> None:
        index, switch = self._plan.index_of, self._switch
        match request:
            case PowerOff(name):
                self._power_off(index(name))
            case PowerOn(name):
                if index(name) not in self._pids:
                    self._finish([self._fork(index(name))])
            case SetLinkRate(name, link, rate, direction):
                pid = self._pids.get(index(name))
                switch.set_rate(index(name), pid, link, rate, direction)
            case SetPairRate(source, target, link, rate):
                plugged = index(target) in self._pids
                switch.set_pair_rate(index(source), index(target), plugged, link, rate or 0.0)
            case SetLinkUp(name, link, up):
                switch.set_link(index(name), index(name) in self._pids, link, up)
            case SetLinkPresent(name, link, present):
                pid = self._pids.get(index(name))
                switch.set_presence(index(name), pid, link, present)
                if pid is not None and present:
                    switch.await_forwarding([index(name)])
            case _:
                raise ValueError("no such request")

    def _fork(self, node: int) -> Booting:
        report_read, report_write = os.pipe()
        # The next child starts a PID namespace; setns makes it the only child that does.
        namespaces.unshare(namespaces.NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                node_init.run(self._plan, node, report_write)
        finally:
            namespaces.setns(self._own_pids, namespaces.NEWPID)
            os.close(report_write)
        return Booting(node, pid, report_read)

    def _finish(self, booting: list[Booting]) -> None:
        deadline = time.monotonic() + BOOT_LIMIT_S
        try:
            for boot in booting:
                self._await_ready(boot, deadline)
                self._switch.plug_in(boot.node, boot.pid)
            self._switch.await_forwarding([boot.node for boot in booting])
        except BaseException:
            for boot in booting:
                os.kill(boot.pid, signal.SIGKILL)
                self._switch.unplug(boot.node)
            raise
        finally:
            for boot in booting:
                os.close(boot.report)
        for boot in booting:
            self._pids[boot.node] = boot.pid
            self._send(Booted(boot.node, boot.pid))

    def _await_ready(self, boot: Booting, deadline: float) -> None:
        text = ""
        while not text.endswith(f"{node_init.READY}\n"):
            last = text.splitlines()[-1] if text else "fork"
            left = deadline - time.monotonic()
            poll = select.poll()
            poll.register(boot.report, select.POLLIN)
            if not poll.poll(max(0, left * 1000)):
                raise TimeoutError(
                    f"{self._plan.node_name(boot.node)} was not up after {BOOT_LIMIT_S:g} s; "
                    f"last step: {last}"
                )
            data = os.read(boot.report, 4096)
            if not data:
                raise RuntimeError(f"{self._plan.node_name(boot.node)} did not boot: {last}")
            text += data.decode()

    def _power_off(self, node: int) -> None:
        pid = self._pids.get(node)
        if pid is None:
            return
        self._switch.cut(node)
        del self._pids[node]
        os.kill(pid, signal.SIGKILL)
        self._send(Lost(node, "powered off"))
        deadline = time.monotonic() + KILL_LIMIT_S
        # A first process can be reaped only when everything else on its node is dead.
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes still run {KILL_LIMIT_S:g} s after SIGKILL")
            time.sleep(0.001)
        self._switch.unplug(node)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for node, init in list(self._pids.items()):
                if init == pid:
                    del self._pids[node]
                    self._switch.unplug(node)
                    code = os.waitstatus_to_exitcode(status)
                    how = signal.Signals(-code).name if code < 0 else f"status {code}"
                    self._send(Lost(node, f"its first process ended ({how})"))

    def _send(self, packet: Packet) -> None:
        self._channel.send(pickle.dumps(packet))
