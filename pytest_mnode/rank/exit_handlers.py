"""Handlers of atexit that tests and their modules register, and finalizers of their objects, such
as temporary directories. Processes that run or import tests end by SIGKILL or os._exit, so Python
would not call them. Imports no torch, because the controller names `run`."""

from __future__ import annotations

import atexit
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NOT_OF_TESTS = ("weakref", "coverage")
"""`finalize` calls weakref's handler. That of coverage would save again what the controller got
with each test."""
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


def disown() -> None:
    """In a forked child: leave objects to the process that made them, as all its children share
    them."""
    finalizers: Any = weakref.finalize
    for one in finalizers._registry:
        one.atexit = False


def finalize() -> None:
    """Call the finalizers of this process's objects, as Python does when it ends."""
    finalizers: Any = weakref.finalize
    finalizers._exitfunc()


def run() -> list[str]:
    """Call the handlers, the last registered first, then the finalizers; returns what the handlers
    raised, a line each."""
    raised = []
    while _handlers:
        function, args, kwargs = _handlers.pop()
        try:
            function(*args, **kwargs)
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = "".join(traceback.format_exception_only(error)).strip()
            raised.append(f"{text} ({Path(place.filename).name}:{place.lineno})")
    finalize()
    return raised
