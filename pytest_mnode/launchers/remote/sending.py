"""What the near end of a command sends to the far end, and what itself is told of a run.

Imported by the near end, which runs without site-packages.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mnode.launchers.remote import far
from pytest_mnode.protocol import listening_clock

BOOTSTRAP = 'f=open(0,"rb",0,closefd=False);exec(f.readline())'
_FUTURE = b"from __future__ import annotations\n"
"""Python takes it at the beginning of a text only."""
OF_THE_SESSION = (
    *("SSH_", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS"),
    *("XDG_RUNTIME_DIR", "XDG_SESSION_", "XDG_SEAT", "XDG_VTNR"),
)
"""Beginnings of variables that mean something on this machine only. Other XDG_ ones name places
of the user's choice (XDG_CACHE_HOME)."""


def source() -> bytes:
    """What BOOTSTRAP reads: a line that reads the program, and the program."""
    text = _FUTURE
    for path in (listening_clock.__file__, far.__file__):
        text += Path(path or "").read_bytes().replace(_FUTURE, b"")
    read = (
        f"b=b''\nwhile len(b)<{len(text)}:\n c=f.read({len(text)}-len(b))\n"
        " if not c:raise SystemExit\n b+=c\nexec(compile(b,'far','exec'))"
    )
    return f"exec({read!r})\n".encode() + text


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """What of the caller's environment a command has on a node."""
    return {name: value for name, value in env.items() if not name.startswith(OF_THE_SESSION)}


def as_sent(text: str) -> str:
    """A text of the system's, whose bytes as UTF-8 are its bytes here, whatever the locale."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def told(keeper: int | None, commands: Mapping[str, Sequence[str]]) -> str:
    """The text of CONFIG, made before the run may open more files than others.

    keeper: pid of what ends with the run; commands: by node, that start our far end there.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    ways = {node: {"command": command} for node, command in commands.items()}
    return json.dumps({"keeper": keeper, "ways": ways, "open_files": soft})


def order(node: str, argv: Sequence[str]) -> bytes:
    """The frame that has a command run there as it would be run here."""
    sent = {
        "argv": [as_sent(word) for word in argv],
        "env": {as_sent(n): as_sent(value) for n, value in environment(os.environ).items()},
        "cwd": as_sent(directory()),
        "where": node,
    }
    return far.frame(far.ORDER, json.dumps(sent).encode())


def directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # removed meanwhile
        return "/"


def give_back_files(soft: int | None) -> None:
    """Be allowed as many open files as the run was: srun passes that on to the node."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
