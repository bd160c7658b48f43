"""Runs of which nothing may be left, however they end."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from pathlib import Path
from typing import Self

import psutil

from tests import warm
from tests.inner import clean_env, command
from tests.waiting import until
from tests.warm.run import MARK

GONE_LIMIT_S = 60.0
"""A limit far below the minutes for which remaining processes would sleep."""


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


class Watch:
    """What exists of programs that are started with `env`, by which they are found.

    Programs have `temporary`, which is made, for their files.
    """

    def __init__(self, temporary: Path) -> None:
        temporary.mkdir()
        self._mark = temporary / uuid.uuid4().hex
        self._mark.write_text("mapped by warm runs")
        self.temporary = temporary
        self.env = {MARK: str(self._mark), "TMPDIR": str(temporary)}
        self.interfaces = interfaces()

    def alive(self) -> list[str]:
        """The pid and name of each process."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if self._is_marked(process) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()}")
        return found

    def _is_marked(self, process: psutil.Process) -> bool:
        if process.environ().get(MARK) == str(self._mark):
            return True
        return str(self._mark).encode() in Path(f"/proc/{process.pid}/maps").read_bytes()

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
        argv, env = command("-q", *args), clean_env() | self.env
        with Path(os.devnull).open() as null, self._output.open("wb") as output:
            self.process = warm.start(argv, directory, env, null.fileno(), output.fileno())

    @property
    def _output(self) -> Path:
        return self.temporary / "output"

    def wait_until_busy(self, programs: int) -> None:
        def busy() -> bool:
            assert self.process.poll() is None, self._output.read_text()
            return len(list(self.directory.glob("busy*"))) == programs

        until(busy, "not all are busy", 60)

    def output(self, limit_s: float = 60.0) -> str:
        """Output of the run, once it has ended."""
        self.process.wait(limit_s)
        return self._output.read_text()

    def kill(self) -> None:
        """Kill the controller, and wait until nothing else of the run is there."""
        self.process.kill()
        self.process.wait(30)
        self.expect_nothing_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
