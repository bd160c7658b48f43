"""How remote_exec gets onto a node: its source, its order, and a file with a command for each node.

Only the standard library: remote_proxy runs without site-packages.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mnode.launchers.remote import command_process, remote_exec, wire
from pytest_mnode.protocol import listening_clock

BOOTSTRAP = 'f=open(0,"rb",0,closefd=False);exec(f.readline())'
_FUTURE = b"from __future__ import annotations\n"
"""Python accepts this import only at the beginning of a text."""
OF_THE_SESSION = (
    *("SSH_", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS"),
    *("XDG_RUNTIME_DIR", "XDG_SESSION_", "XDG_SEAT", "XDG_VTNR"),
)
"""Prefixes of variables that hold for this machine only. Other XDG_ variables name directories of
the user's choice (XDG_CACHE_HOME)."""


def source() -> bytes:
    """Bytes that BOOTSTRAP reads: a line that reads the program, then the program."""
    text = _FUTURE
    for module in (listening_clock, wire, command_process, remote_exec):
        text += Path(module.__file__ or "").read_bytes().replace(_FUTURE, b"")
    read = (
        f"b=b''\nwhile len(b)<{len(text)}:\n c=f.read({len(text)}-len(b))\n"
        " if not c:raise SystemExit\n b+=c\nexec(compile(b,'remote_exec','exec'))"
    )
    return f"exec({read!r})\n".encode() + text


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of the caller's environment that a command on a node gets."""
    return {name: value for name, value in env.items() if not name.startswith(OF_THE_SESSION)}


def as_sent(text: str) -> str:
    """A text whose UTF-8 bytes are the bytes of `text` on this machine, whatever the locale."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def config(daemon: int | None, commands: Mapping[str, Sequence[str]], bridge: str = "") -> str:
    """Text of remote_proxy's CONFIG, made before the run raises its limit of open files.

    daemon: pid of the cleanup daemon; the run ends with it. commands: by host, the local command
    that runs BOOTSTRAP there; with `bridge`, the command that this bridge runs on the node.
    bridge: path of its socket; "" if there is none.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = {"daemon": daemon, "commands": dict(commands), "open_files": soft, "bridge": bridge}
    return json.dumps(found)


def order(node: str, argv: Sequence[str]) -> bytes:
    """The frame that makes remote_exec run a command as it would run here."""
    sent = {
        "argv": [as_sent(word) for word in argv],
        "env": {as_sent(n): as_sent(value) for n, value in environment(os.environ).items()},
        "cwd": as_sent(directory()),
        "where": node,
    }
    return wire.frame(wire.ORDER, json.dumps(sent).encode())


def directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # removed meanwhile
        return "/"


def give_back_files(soft: int | None) -> None:
    """Restore the run's first limit of open files, because srun passes the limit on to the node."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
