"""A run whose ranks are in a long test, for tests that break or end the run from outside."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.engines.inside import Engine, spec_for, start_pytest
from tests.inner import write_files

TEXT = """
    import pathlib, subprocess, time

    def test_long(world, process_group, request):
        # A child in a session of its own, as a stubborn data loader would be.
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        pathlib.Path(request.config.rootpath, f"busy{world.rank}").touch()
        time.sleep(120)

    def test_after(world): pass
"""


class RunProcess(NamedTuple):
    """A process of the run as it was when it was found."""

    pid: int
    name: str
    command: list[str]


class Busy:
    """A run on two nodes, both with their rank in a long test.

    options: pytest options that select the nodes.
    before: text of tests that run first.
    conftest: text of a conftest.py.
    """

    def __init__(
        self,
        engine: Engine,
        launcher: str,
        directory: Path,
        *options: str,
        before: str = "",
        conftest: str = "",
    ) -> None:
        write_files(directory, test_it=TEXT, test_before=before, conftest=conftest)
        self.directory, self.temporary = directory, directory / "tmp"
        self.temporary.mkdir()
        self.mark, self.secret = f"MNODE_MARK_{uuid.uuid4().hex}", uuid.uuid4().hex
        self._launcher = f"--mnode-launcher={launcher}"
        self.program = start_pytest(
            engine,
            directory,
            self._launcher,
            "--mnode-nodes=2",
            *("--mnode-env=TMPDIR SECRET", *options),
            spec_for(engine, directory, launcher, power=None),
            "test_before.py",
            "test_it.py",
            env={self.mark: "1", "SECRET": self.secret, "TMPDIR": str(self.temporary)},
        )
        try:
            self.until(self._ranks_are_in_it, 90.0, "ranks are busy")
        except BaseException:
            self.end()
            raise

    def _ranks_are_in_it(self) -> bool:
        if self.program.poll() is not None:
            pytest.fail(str(self.program.communicate()))
        return len(list(self.directory.glob("busy*"))) == 2

    def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Poll until `true` holds; fails after the limit."""
        began = time.monotonic()
        while not condition():
            took = time.monotonic() - began
            assert took < limit_s, f"not within {limit_s:g} s: {what}: {self.left()}"
            time.sleep(0.05)

    def processes(self) -> list[RunProcess]:
        """All processes of the run on all nodes, recognised by a variable in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if self.mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(RunProcess(process.pid, process.name(), process.cmdline()))
            except psutil.Error:  # it has ended meanwhile
                continue
        return found

    def left(self) -> list[str]:
        """Processes and files of the run that still exist."""
        files = [*self.temporary.glob("*mnode-*"), *self.directory.glob(".mnode-*")]
        return [*(f"{p.pid} {p.name}" for p in self.processes()), *map(str, files)]

    def controller(self) -> RunProcess:
        """The pytest process of the run, as seen from the test's namespace."""
        [found] = [p for p in self.processes() if self._launcher in p.command[:8]]
        return found

    def end(self) -> None:
        """Kill what remains of the run."""
        if self.program.poll() is None:
            self.program.kill()
        self.program.communicate()
