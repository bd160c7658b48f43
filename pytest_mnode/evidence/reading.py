"""Readings of checks: ordered by the controller, made on a node, each with a limit."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.row import Row

_LIVE = Path("/")


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """A reading that a node is asked for.

    case: the check's. module, name: where its class is. promise: in plain values, as JSON has them.
    source: text of the module, if it is a file that nodes cannot import by its name, such as a
    conftest.py; else "".
    """

    case: str
    module: str
    name: str
    promise: Any = None
    source: str = ""

    @classmethod
    def of(cls, one: type[Check], promise: Any) -> ReadOrder:
        """The order for a check of this process."""
        module = sys.modules[one.__module__]
        file = Path(inspect.getfile(one))
        source = file.read_text() if file.name == "conftest.py" else ""
        plain = promise.model_dump(mode="json") if hasattr(promise, "model_dump") else promise
        return cls(one.case(), module.__name__, one.__qualname__, plain, source)


@dataclass(frozen=True, slots=True)
class CheckRows:
    """What a node read for a check; without rows, why."""

    case: str
    rows: tuple[Row, ...] = ()
    why: str = ""


def read(order: ReadOrder, root: Path = _LIVE) -> CheckRows:
    """The rows of a check on this machine. Raises nothing: an error is the reason."""
    try:
        check: type[Check] = getattr(_module(order), order.name)
        return CheckRows(order.case, tuple(check(_restored(check, order.promise)).read(root)))
    except ModuleNotFoundError as error:
        return CheckRows(order.case, why=f"no module {error.name!r}: install it on the node")
    except Exception as error:  # readings of other people may raise anything
        known = isinstance(error, OSError) and error.filename is not None
        text = f"{error.filename}: {error.strerror}" if known else repr(error)  # type: ignore[attr-defined]
        return CheckRows(order.case, why=text.lower() if known else text)


def _module(order: ReadOrder) -> ModuleType:
    if not order.source:
        return importlib.import_module(order.module)
    module = ModuleType(order.module)
    sys.modules[order.module] = module
    exec(compile(order.source, "conftest.py", "exec"), vars(module))
    return module


def _restored(check: type[Check], promise: Any) -> Any:
    """A promise as the spec has it: a model, if its type is one; models within it stay plain.

    It was validated by the controller: quantities are numbers by now, which a page may not have.
    """
    make: Callable[..., Any] | None = getattr(check.promise_type(), "model_construct", None)
    return promise if make is None or promise is None else make(**promise)
