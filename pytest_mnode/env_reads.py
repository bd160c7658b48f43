"""Records which test files read torchrun's variables while pytest collects them.

Such a file decides at import what its rank does. The controller and the process that ranks are
forked from import it without these variables, so each rank has to import it with its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

NAMES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    }
)
"""Variables that torchrun sets in each rank."""
WHOLE = "os.environ"
"""Recorded in place of names for a file that copies or lists the whole environment."""
_OWN = ("torch", "pytest_mnode", "_pytest", "pluggy")
"""Packages whose imports read the variables for themselves: torch is imported before any test."""


class EnvReads:
    """The recorded reads.

    shared: names read by modules that any test file may have imported; modules: these modules.
    """

    def __init__(self) -> None:
        self.shared: set[str] = set()
        self.modules: set[str] = set()
        self._by_path: dict[Path, set[str]] = {}
        self._file = ""
        self._watched: list[Any] = []

    def start(self) -> None:
        """Begin to record; does nothing if recording."""
        for environ in (os.environ, os.environb):
            if type(environ) is os._Environ:  # not if a program has put another object there
                environ.__class__ = _Watched
                self._watched.append(environ)

    def stop(self) -> None:
        while self._watched:
            self._watched.pop().__class__ = os._Environ

    def clear(self) -> None:
        self.shared.clear()
        self._by_path.clear()

    @contextlib.contextmanager
    def collecting(self, file: Path) -> Iterator[None]:
        """Attribute reads in the block to a test file, unless a conftest.py makes them."""
        before, self._file = self._file, str(file)
        try:
            yield
        finally:
            self._file = before

    @property
    def any(self) -> bool:
        return bool(self.shared or self._by_path)

    def alone(self, file: Path) -> list[str]:
        """Names that a test file itself, or a conftest.py above it, has read."""
        found = (names for path, names in self._by_path.items() if file.is_relative_to(path))
        return sorted(set().union(*found))

    def of(self, file: Path) -> list[str]:
        """Names on which a test file may depend."""
        return sorted({*self.alone(file), *self.shared})

    def note(self, name: str) -> None:
        frame = _caller(sys._getframe(1))
        if frame is None or _package(frame) in _OWN[1:]:
            return
        if name == WHOLE and "/lib/python3" in frame.f_code.co_filename:
            return  # other code copies it for the processes that it starts
        module: dict[str, Any] | None = None
        while frame is not None:
            if PurePath(frame.f_code.co_filename).name == "conftest.py":
                folder = Path(frame.f_code.co_filename).parent
                self._by_path.setdefault(folder, set()).add(name)
                return
            if module is None and frame.f_code.co_name == "<module>":
                module = frame.f_globals
                if _package(frame) in _OWN:
                    return
            frame = frame.f_back
        # pytest itself may be run by a module without a file, such as a worker of pytest-xdist.
        importing = str(module["__name__"]) if module is not None else "__main__"
        if module and importing != "__main__" and module.get("__file__", self._file) != self._file:
            self.shared.add(name)
            self.modules.add(importing)
        if self._file:
            self._by_path.setdefault(Path(self._file), set()).add(name)


class _Watched(os._Environ):  # type: ignore[type-arg]
    """Class of os.environ while reads are recorded."""

    def __getitem__(self, key: Any) -> Any:
        name = os.fsdecode(key) if isinstance(key, str | bytes) else ""
        if name in NAMES:
            READS.note(name)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        READS.note(WHOLE)
        return super().__iter__()


def _caller(frame: FrameType | None) -> FrameType | None:
    """The frame that uses the environment, outside of Python's own modules for it."""
    while frame is not None and frame.f_globals.get("__name__") in _THROUGH:
        frame = frame.f_back
    return frame


_THROUGH = (__name__, "os", "_collections_abc", "collections.abc")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


__tracebackhide__ = True  # in a test file's error of a variable that is not set
READS = EnvReads()
"""The reads of this process."""
