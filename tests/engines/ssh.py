"""Real sshd on every node of a rack; a client on its last node that ignores the user's ssh files.

All of it belongs to the rack, and so ends with the process that made it, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pytest_mnode.launchers.rack import Link, Rack
from pytest_mnode.launchers.remote.openssh import SSH_COMMAND
from tests.engines.on_rack import COMMAND_LIMIT_S, OnRack
from tests.inner import need

COMPUTE_NODES = 4
PORT = 22
UP_LIMIT_S = 20.0
_SSHD = """\
Port {port}
ListenAddress {address}
HostKey {keys}/host
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile {keys}/authorized
UseDNS no
MaxSessions 3
LogLevel VERBOSE
"""
_CLIENT = """\
Host *
  User root
  Port {port}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {keys}/known
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
Host * !stranger
  IdentityFile {keys}/user
Host stranger
  IdentityFile {keys}/stranger
"""


def unavailable() -> str | None:
    """Why sshd cannot run on a rack here, in one line; None if it can."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    missing = [] if found else ["sshd"]
    missing += [program for program in ("ssh", "ssh-keygen") if shutil.which(program) is None]
    if missing:
        return f"no OpenSSH here: {', '.join(missing)} not found in PATH"
    if os.geteuid() != 0:
        return "sshd on the rack needs root"
    return Rack.unavailable("root")


def need_ssh() -> None:
    """Skip if sshd cannot run on a rack here."""
    need(unavailable())


class SshOnRack(OnRack):
    """`with SshOnRack() as ssh`: `ssh.run("ssh", "-F", …)` runs it on the login node.

    nodes: those with sshd, named node0 …; the login node comes after them.
    """

    def __init__(self, nodes: int = COMPUTE_NODES, links: Sequence[Link] = ()) -> None:
        super().__init__("ssh", nodes, links)
        self.config = self.directory / "client.conf"
        self.env = {SSH_COMMAND: f"ssh -F {self.config}"}

    def __enter__(self) -> SshOnRack:
        try:
            self._write()
            self.rack.start()
            for name in self.names:
                self.start_daemon_of(name)
            self.start_switch()
            for name in self.names:
                self.await_sshd(name)
        except BaseException:
            self.close()
            raise
        return self

    def hostfile(self, directory: Path, text: str = "") -> str:
        """--mnode-hostfile with all nodes, or with the given ones."""
        path = directory / "hosts"
        path.write_text(text or "".join(f"{name}\n" for name in self.names))
        return f"--mnode-hostfile={path}"

    # Faults and their repair.

    def clear(self) -> None:
        """Restore the initial state: every node on, its links up, its sshd listening."""
        for name in self.names:
            self.set_links(name, True)
            self.power_on(name)
        for name in self.names:
            self.await_sshd(name)

    def hang_up(self, name: str) -> int:
        """End all connections of a node, as its sshd does in a shutdown; their number."""
        below = psutil.Process(self._daemons[name].pid).children(recursive=True)
        sessions = [p for p in below if p.name() == "sshd" and "[listener]" not in str(p.cmdline())]
        for process in sessions:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return len(sessions)

    # Starting.

    def _write(self) -> None:
        keys = self.directory / "keys"
        keys.mkdir(mode=0o700)
        for name in ("host", "user", "stranger"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", keys / name],
                check=True,
                timeout=COMMAND_LIMIT_S,
            )
        shutil.copy(keys / "user.pub", keys / "authorized")
        host_key = " ".join((keys / "host.pub").read_text().split()[:2])
        known = [f"{node.name},{node.address} {host_key}\n" for node in self.rack.nodes]
        (keys / "known").write_text("".join(known))
        self.config.write_text(_CLIENT.format(port=PORT, keys=keys))
        for node in self.computes:
            conf = _SSHD.format(port=PORT, address=node.address, keys=keys)
            (self.directory / f"{node.name}.conf").write_text(conf)

    def start_daemon_of(self, name: str) -> None:
        """Start sshd, which needs a directory below the node's own /run."""
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
        conf = self.directory / f"{name}.conf"
        script = (
            "[ -d /run/sshd ] || { mount -t tmpfs none /run && mkdir /run/sshd; }; "
            f"exec {sshd} -D -e -f {conf}"
        )
        self.start_daemon(name, self.node(name), ["sh", "-c", script])

    def await_sshd(self, name: str) -> None:
        log, end = self.log(name), time.monotonic() + UP_LIMIT_S
        while "Server listening" not in log.read_text():
            if self._daemons[name].poll() is not None or time.monotonic() > end:
                pytest.fail(f"sshd of {name} did not come up: {log.read_text()[-500:]}")
            time.sleep(0.01)


@pytest.fixture(scope="session")
def ssh_on_rack() -> Iterator[SshOnRack]:
    """One rack for all tests that use ssh; tests take `ssh`, which is reset for each."""
    need_ssh()
    with SshOnRack() as ssh:
        yield ssh


@pytest.fixture
def ssh(ssh_on_rack: SshOnRack) -> Iterator[SshOnRack]:
    """Healthy nodes with sshd, restored after the test."""
    yield ssh_on_rack
    with contextlib.suppress(Exception):
        ssh_on_rack.clear()
