"""Files from which NCCL reads its settings, and to which it writes its log."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

SYSTEM_FILE = "/etc/nccl.conf"


def settings_in(text: str) -> dict[str, str]:
    """NAME=value of each line of an nccl.conf, without lines that begin with #.

    NCCL takes both literally: a blank before or after the name makes the line ineffective, and one
    after the value, like a #, is part of the value. Source: NCCL, src/misc/param.cc, setEnvFile.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and re.fullmatch(r"\w+", name):
            found.setdefault(name, value)
    return found


def settings_of_files(
    environment: Mapping[str, str], root: Path = Path("/")
) -> dict[str, tuple[str, str]]:
    """Value and file of each setting that the environment does not override, by name.

    The user's file (NCCL_CONF_FILE, or .nccl.conf at home) takes precedence over the system's.
    """
    own = environment.get("NCCL_CONF_FILE") or str(
        Path(environment.get("HOME", "/")) / ".nccl.conf"
    )
    found: dict[str, tuple[str, str]] = {}
    for name in (own, SYSTEM_FILE):
        try:
            text = (root / name.lstrip("/")).read_text(errors="replace")
        except OSError:
            continue
        for key, value in settings_in(text).items():
            if key not in environment:
                found.setdefault(key, (value, name))
    return found


def log_of_process(pattern: str) -> bytes | None:
    """The log of this process in NCCL_DEBUG_FILE=`pattern`; None if it cannot be read.

    NCCL replaces %h by the host name, up to its first dot or whole, and %p by the process id.
    UCX, which forms file names alike, keeps its lines in a buffer of libc until the process ends.
    """
    ctypes.CDLL(None).fflush(None)
    host = socket.gethostname()
    filled = pattern.replace("%p", str(os.getpid()))
    for name in (host.partition(".")[0], host):
        with contextlib.suppress(OSError):
            return Path(filled.replace("%h", name)).read_bytes()
    return None
