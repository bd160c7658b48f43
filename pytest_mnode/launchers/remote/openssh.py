"""Command lines of the user's OpenSSH: for a connection, and for a command over one."""

from __future__ import annotations

import math
import os
import shlex
import shutil
from dataclasses import dataclass
from typing import Self

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import Host
from pytest_mnode.launchers.remote import bootstrap

SSH_COMMAND = "MNODE_SSH_COMMAND"
"""Variable that names another ssh command, with options, such as `ssh -F lab.conf`."""
CONNECT_S = 15.0
_ALWAYS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "RemoteCommand=none"),
    *("-o", "PermitLocalCommand=no", "-o", "ClearAllForwardings=yes"),
    *("-o", f"ConnectTimeout={CONNECT_S:.0f}"),
)
_ASKED = 3
"""How often ssh asks the node for a sign of life before it ends the connection itself."""
LONGEST_SOCKET_PATH = 80
"""ssh appends 17 bytes while it makes the socket, and the kernel allows 108 bytes."""


@dataclass(frozen=True, slots=True)
class OpenSsh:
    """The user's ssh command. words: the program and its options."""

    words: tuple[str, ...]

    @classmethod
    def named(cls) -> Self:
        """The command in MNODE_SSH_COMMAND, else `ssh`. Raises UsageError if it does not exist."""
        given = os.environ.get(SSH_COMMAND, "")
        try:
            words = shlex.split(given) or ["ssh"]
        except ValueError as error:
            raise UsageError(f"{SSH_COMMAND}={given}: {error}; accepted: a command") from None
        if shutil.which(words[0]) is None:
            raise UsageError(
                f"--mnode-launcher=ssh: no program {words[0]} here; install OpenSSH's client, or "
                f"name it by {SSH_COMMAND}"
            )
        return cls(tuple(words))

    def master(self, host: Host, socket: str, silence_s: float) -> list[str]:
        """Command that holds a connection, and makes this socket when the connection is up.

        It ends when the node has sent nothing for silence_s, in whole seconds.
        """
        alive = (
            f"ServerAliveInterval={math.ceil(silence_s / _ASKED)}",
            f"ServerAliveCountMax={_ASKED}",
        )
        options = [word for option in (*alive, "ControlPersist=no") for word in ("-o", option)]
        master = ("-M", "-N", *options, *_control(socket))
        return [*self.words, *_ALWAYS, *master, *host.ssh_arguments]

    def command(self, host: Host, socket: str, python: str) -> list[str]:
        """Command that starts remote_exec in the host's Python, over an open connection."""
        remote = shlex.join([python, "-I", "-S", "-c", bootstrap.BOOTSTRAP])
        over = ("-o", "ControlMaster=no", *_control(socket))
        return [*self.words, *_ALWAYS, *over, *host.ssh_arguments, f"exec {remote}"]


def _control(socket: str) -> tuple[str, str]:
    return "-o", f"ControlPath={socket.replace('%', '%%')}"
