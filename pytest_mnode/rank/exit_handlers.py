"""Handlers of atexit that tests and their modules register. Ranks end by SIGKILL, so Python would
not call them. Imports no torch, because the controller names `run`."""

from __future__ import annotations

import atexit
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NOT_OF_TESTS = ("weakref", "coverage")
"""weakref's handler would also remove temporary directories that a test module made when it was
imported, before the fork: all ranks share them. That of coverage would save again what the
controller got with each test."""
_handlers: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []


def install() -> None:
    """Note every handler from now on; those of torch and of Python's modules are older."""
    register, unregister = atexit.register, atexit.unregister

    def noted(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        register(function, *args, **kwargs)  # also checks that it can be called
        if (getattr(function, "__module__", "") or "").partition(".")[0] not in _NOT_OF_TESTS:
            _handlers.append((function, args, kwargs))
        return function

    def forgotten(function: Callable[..., Any], /) -> None:
        unregister(function)
        _handlers[:] = [handler for handler in _handlers if handler[0] != function]

    atexit.register, atexit.unregister = noted, forgotten


def run() -> list[str]:
    """Call the handlers, the last registered first; returns what they raised, a line each."""
    raised = []
    while _handlers:
        function, args, kwargs = _handlers.pop()
        try:
            function(*args, **kwargs)
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = "".join(traceback.format_exception_only(error)).strip()
            raised.append(f"{text} ({Path(place.filename).name}:{place.lineno})")
    return raised
