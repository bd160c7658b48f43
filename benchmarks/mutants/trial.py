"""One mutation against its tests, in a copy of the project and in namespaces."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.apart import NAMESPACES
from benchmarks.mutants.operators import Mutation
from pytest_mnode.launchers.rack import cgroups
from pytest_mnode.machine.namespaces import GROUP_PREFIX

_INSIDE = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 9
mount -t tmpfs tmpfs /dev/shm || exit 9
(echo "$2" >/proc/sys/kernel/ns_last_pid) 2>/dev/null
shift 2
"$@"
exit $?
"""
"""The user's tree is read-only. Pids differ between copies: names of control groups have one."""
_PIDS = 3000
"""Distance of the first pids of two copies."""
_START_S = 60.0
_TRUSTED = 3
"""This many tests may fail without the mutation too, and are left out; more is a broken copy."""


class BrokenCopyError(Exception):
    """Tests fail or are not found without any mutation."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """by: the test that failed; "" if all passed. finished: whether all chosen tests ran."""

    by: str
    seconds: float
    finished: bool = True


class Copy:
    """A copy of the project's files, in which one mutation at a time is tried."""

    def __init__(self, project: Path, directory: Path, number: int, test_limit_s: float) -> None:
        self._project = project
        self._tree = directory / f"tree{number}"
        self._tmp = directory / f"tmp{number}"
        self._named = directory / f"test{number}"
        self._first_pid = 2000 + _PIDS * number
        self.test_limit_s = test_limit_s
        self._ended = False
        self._starting = threading.Lock()
        self._clean: dict[str, bool] = {}
        self._program: subprocess.Popen[bytes] | None = None
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=project, check=True, stdout=subprocess.PIPE).stdout
        for name in filter(None, names.decode().split("\0")):
            if (project / name).is_file():
                (self._tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(project / name, self._tree / name)

    def end(self) -> None:
        """End what runs now; nothing runs here again."""
        with self._starting:
            self._ended = True
            self._kill()

    def _kill(self) -> None:
        if self._program is not None:
            self._program.kill()

    def try_out(self, mutation: Mutation, tests: Sequence[str], limit_s: float) -> Outcome:
        """Whether a test fails with the mutation, and passes without it."""
        started = time.monotonic()
        source = (self._tree / mutation.path).read_text()
        untrusted: list[str] = []
        while True:
            self._write(mutation.path, mutation.apply(source))
            left_s = limit_s - (time.monotonic() - started)
            words = [*tests, *(f"--deselect={name}" for name in untrusted)]
            try:
                code, name = self._pytest(words, left_s)
            finally:
                self._write(mutation.path, source)
            seconds = time.monotonic() - started
            if code == pytest.ExitCode.OK:
                return Outcome("", seconds)
            if code is None:
                return Outcome("", seconds, finished=False)
            if self._passes(name, tests):
                return Outcome(name or "collection", seconds)
            untrusted.append(name)
            if len(untrusted) > _TRUSTED:
                raise BrokenCopyError(f"fail without a mutation: {', '.join(untrusted)}")

    def _passes(self, name: str, tests: Sequence[str]) -> bool:
        """Whether this test passes without a mutation; if none ran, whether tests are found."""
        key = name or " ".join(tests)
        if key not in self._clean:
            words = [name] if name else ["--collect-only", *tests]
            code, _ = self._pytest(words, _START_S + self.test_limit_s)
            if code != pytest.ExitCode.OK and not name:
                raise BrokenCopyError(f"no tests without a mutation (exit code {code}): {key}")
            self._clean[key] = code == pytest.ExitCode.OK
        return self._clean[key]

    def _write(self, path: str, source: str) -> None:
        """Write a module and forget its bytecode, which knows seconds and size alone."""
        file = self._tree / path
        file.write_text(source)
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def _pytest(self, words: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Exit code, None if the limit ended it; and the last test that began."""
        self._tmp.mkdir()
        self._named.write_text("")
        options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "benchmarks.mutants.in_copy")
        limit = f"faulthandler_timeout={self.test_limit_s:g}"
        limits = ("-o", limit, "-o", "faulthandler_exit_on_timeout=true")
        inside = ("sh", "-c", _INSIDE, "sh", str(self._project), str(self._first_pid))
        program = (sys.executable, "-m", "pytest", *options, *limits, *words)
        argv = [*NAMESPACES, *inside, *program]
        try:
            code = self._start(argv).wait(max(limit_s, 0))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self._kill()
            if self._program is not None:
                self._program.wait()
            shutil.rmtree(self._tmp, ignore_errors=True)
            self._remove_groups()
        if self._ended:
            raise InterruptedError("the trial was ended")
        return code, self._named.read_text()

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        added = {"PYTHONPATH": self._tree, "TMPDIR": self._tmp, "MUTANT_TEST": self._named}
        env = {name: value for name, value in os.environ.items() if name != "CI"}
        with self._starting:
            if self._ended:
                raise InterruptedError("the trial was ended")
            self._program = subprocess.Popen(
                argv,
                cwd=self._tree,
                env=env | {name: str(value) for name, value in added.items()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            return self._program

    def _remove_groups(self) -> None:
        for hierarchy in cgroups.hierarchies():
            for group in hierarchy.glob(f"{GROUP_PREFIX}[0-9]*-*"):
                pid = int(group.name.removeprefix(GROUP_PREFIX).partition("-")[0])
                if self._first_pid <= pid < self._first_pid + _PIDS:
                    with contextlib.suppress(OSError):
                        group.rmdir()
