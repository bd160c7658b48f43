"""Command lines of the user's OpenSSH, and what it prints where a connection fails."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import Host
from pytest_mnode.launchers.remote import bootstrap

SSH_COMMAND = "MNODE_SSH_COMMAND"
"""Variable that names another ssh command, with options, such as `ssh -F lab.conf`."""
_ALWAYS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "RemoteCommand=none"),
    *("-o", "PermitLocalCommand=no", "-o", "ClearAllForwardings=yes"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
)
_EXCHANGE = "_exchange_identification: "
_NO_PEER = "UNKNOWN port 65535"
"""ssh's name for a peer that is a program and not a network connection."""
_CLOSED = ("Connection closed by ", "Connection reset by ")


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

    def command(self, host: Host, python: str, connect_s: float) -> list[str]:
        """Command that starts remote_exec in the host's Python, over a connection of its own."""
        limit = ("-o", f"ConnectTimeout={max(1.0, connect_s):.0f}")
        remote = shlex.join([python, "-I", "-S", "-c", bootstrap.BOOTSTRAP])
        return [*self.words, *_ALWAYS, *limit, *host.ssh_arguments, f"exec {remote}"]


def why_no_connection(lines: Sequence[str]) -> str:
    """Why ssh has no connection, from its output; "" if it printed nothing.

    The last line of an ssh through a jump host says only that the way through it has ended.
    """
    printed = [line.strip() for line in lines if line.strip()]
    own = [line for line in printed if not _follows(line)]
    if own and own[-1] != printed[-1]:  # own[-1] may be only a jump host's banner: show both
        return f"{own[-1]} ({printed[-1]})"
    return (printed or [""])[-1]


def was_dropped(lines: Sequence[str]) -> bool:
    """Whether an sshd closed the connection at once, because it has too many of them."""
    found = [line.strip() for line in lines]
    printed = [line for line in found if line and not line.startswith("Warning: ")]
    at_once = any(_EXCHANGE in line for line in printed)
    return at_once and all(_follows(line) or line.startswith(_CLOSED) for line in printed)


def _follows(line: str) -> bool:
    """Whether the line only says that the way through a jump host ended."""
    return _EXCHANGE in line or _NO_PEER in line or line == "stdio forwarding failed"
