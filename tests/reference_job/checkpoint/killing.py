"""Makes every single step of saving fail, or the last one of a process; run by test_killed.py.

The steps are the audit events of file operations below the directory in argv[1]. Prints one line
of JSON per step.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint import Store
from tests.reference_job.checkpoint.made import ALONE, loaded_value, save, state


class Steps:
    """Calls `at` before each step below the directory, with its number and the file."""

    def __init__(self) -> None:
        self.seen = 0
        self._directory: Path | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        directory = self._directory
        if directory and args and str(args[0]).startswith(str(directory)):
            self.seen += 1
            self._directory = None  # steps of `at` are its own
            self._at(self.seen, str(args[0]))
            self._directory = directory

    def save(self, directory: Path, step: int, at: Callable[[int, str], None]) -> None:
        self.seen, self._at, self._directory = 0, at, directory
        try:
            Store(directory).save(state(9), step=step, world=ALONE)
        finally:
            self._directory = None


def show(kill: bool, step: int, how: str, directory: Path) -> None:
    left = [path.name for path in directory.iterdir() if path.name.endswith(".partial")]
    assert how in ("killed", "ignored") or not left, left
    loaded, value = loaded_value(Store(directory))
    if how != "failed":  # which leaves nothing that a next one could remove
        save(Store(directory), 4)
    names = sorted(path.name for path in directory.iterdir())
    print(json.dumps([kill, step, how, loaded, value, names]), flush=True)


def killed(steps: Steps, old: Path, step: int) -> None:
    """What a process that is killed at a step leaves is what is there before it."""
    directory = old.with_name(f"killed-{step}")
    shutil.copytree(old, directory)
    copies = []

    def copy(number: int, file: str) -> None:
        copies.append(shutil.copytree(directory, f"{directory}-{number}"))

    steps.save(directory, step, copy)
    for one in copies:
        show(True, step, "killed", Path(one))
    show(True, step, "ended", directory)


def failed(steps: Steps, old: Path, step: int) -> None:
    """ "ignored": the step failed, and saving did not."""
    how, number = "", 0
    while how != "ended":
        number += 1
        directory = old.with_name(f"failed-{step}-{number}")
        shutil.copytree(old, directory)

        def fail(seen: int, file: str, number: int = number) -> None:
            if seen == number:
                raise OSError(errno.EIO, "Input/output error", file)

        try:
            steps.save(directory, step, fail)
            how = "ignored" if steps.seen >= number else "ended"
        except CheckpointError as error:
            how = "failed" if "Input/output error" in str(error) else str(error)
        show(False, step, how, directory)


def main() -> None:
    warnings.simplefilter("ignore")
    old = Path(sys.argv[1], "old")
    # A killed process loses nothing that it has written, synced or not.
    os.fsync = lambda fd: None
    save(Store(old), 1, 2)
    steps = Steps()
    # A later step, and the same step again, which replaces a complete checkpoint.
    for step in (3, 2):
        killed(steps, old, step)
        failed(steps, old, step)


if __name__ == "__main__":
    main()
