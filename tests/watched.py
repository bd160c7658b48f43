"""Runs of which nothing may be left, however they end."""

from __future__ import annotations

import socket
import subprocess
import uuid
from pathlib import Path
from typing import Self

import psutil

from tests.inner import clean_env, command
from tests.waiting import until

GONE_LIMIT_S = 60.0
"""A limit far below the minutes for which remaining processes would sleep."""


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


class Watch:
    """What exists of programs that are started with `env`, a variable by which they are found.

    Programs have `temporary`, which is made, for their files.
    """

    def __init__(self, temporary: Path) -> None:
        temporary.mkdir()
        self.mark = f"MARK_{uuid.uuid4().hex}"
        self.temporary = temporary
        self.env = {self.mark: "1", "TMPDIR": str(temporary)}
        self.interfaces = interfaces()

    def alive(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if self.mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()}")
            except psutil.Error:
                continue
        return found

    def left(self) -> list[str]:
        """Processes, temporary files and interfaces that still exist."""
        names = ("mnode-*", "torchelastic*", "pytorch-errorfile*")
        files = [str(path) for name in names for path in self.temporary.glob(name)]
        return [*self.alive(), *files, *(interfaces() - self.interfaces)]

    def expect_nothing_left(self) -> None:
        until(lambda: not self.left(), self.left, GONE_LIMIT_S)


class Watched(Watch):
    """A pytest run in `directory`, in which its ranks and jobs make files named busy…"""

    def __init__(self, directory: Path, *args: str) -> None:
        super().__init__(directory / "tmp")
        self.directory = directory
        (directory / "pytest.ini").touch()
        self.process = subprocess.Popen(
            command("-q", *args),
            cwd=directory,
            env=clean_env() | self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_until_busy(self, programs: int) -> None:
        def busy() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            return len(list(self.directory.glob("busy*"))) == programs

        until(busy, "not all are busy", 60)

    def kill(self) -> None:
        """Kill the controller, and wait until nothing else of the run is there."""
        self.process.kill()
        self.process.communicate(timeout=30)
        self.expect_nothing_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
