"""Connections to a remote end over a pipe to a shell, in place of ssh."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from pytest_mnode.launchers.remote import bootstrap, remote_proxy

LIMIT_S = 30.0
Way = Callable[..., list[str]]
REMOTE_END = [sys.executable, "-I", "-S", "-c", bootstrap.BOOTSTRAP]
SLEEPS = ["sh", "-c", "echo ready; exec sleep 300"]


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        command, check=False, **{**settings, **options}
    )
    return done


@contextmanager
def ready(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed "ready"; it is ended afterwards."""
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(command, **options) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            yield program
        finally:
            program.kill()


def remote_end(program: subprocess.Popen[str]) -> psutil.Process:
    [found] = [p for p in psutil.Process(program.pid).children(True) if p.name() == "mnode-node"]
    return found


def proxy_command(
    directory: Path, reach: list[str], argv: list[str], daemon: int | None = None, **limits: Any
) -> list[str]:
    """The local command that runs argv on n1, which the command `reach` leads to."""
    config = directory / f"config-{len(list(directory.glob('config-*')))}"
    config.write_text(bootstrap.config(daemon, {"n1": reach}, **limits))
    return [sys.executable, "-S", "-E", "-s", remote_proxy.__file__, str(config), "n1", *argv]


def over(shell: str) -> str:
    """A shell that runs this first, and then becomes the remote end."""
    return f"{shell}; exec {shlex.join(REMOTE_END)}"
