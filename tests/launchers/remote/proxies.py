"""Connections to a remote end over a pipe to a shell, in place of ssh."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

LIMIT_S = 30.0
Way = Callable[..., list[str]]


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        command, check=False, **{**settings, **options}
    )
    return done
