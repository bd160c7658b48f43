"""Readings of checks: ordered by the controller, made on a node, each with a limit.

`python -m pytest_mnode.evidence.reading ORDERS` makes those of a list of orders, in JSON, and
prints their rows as one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.row import Row, finite

_LIVE = Path("/")
READ_LIMIT_S = 20.0
"""A reading may call a program, and a call into a broken driver hangs."""


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """A reading that a node is asked for.

    case: the check's. module, name: where its class is. promise: in plain values, as JSON has them.
    source: text of the module, if it is a file that nodes cannot import by its name, such as a
    conftest.py; else "". limit_s, nodes, index: as of `Check`.
    """

    case: str
    module: str
    name: str
    promise: Any = None
    source: str = ""
    limit_s: float | None = None
    nodes: tuple[tuple[str, str], ...] = ()
    index: int = 0

    @classmethod
    def of(cls, one: type[Check], promise: Any) -> ReadOrder:
        """The order for a check of this process."""
        file = Path(one.file)
        source = file.read_text() if file.name == "conftest.py" else ""
        plain = promise.model_dump(mode="json") if hasattr(promise, "model_dump") else promise
        limit_s = one(promise).limit_s
        return cls(one.case(), one.__module__, one.__qualname__, plain, source, limit_s)


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
        made = check(_restored(check, order.promise))
        made.nodes, made.index = tuple((name, where) for name, where in order.nodes), order.index
        return CheckRows(order.case, tuple(map(finite, made.read(root))))
    except ModuleNotFoundError as error:
        return CheckRows(order.case, why=f"no module {error.name!r}: install it on the node")
    except Exception as error:  # readings of other people may raise anything
        return CheckRows(order.case, why=_reason(error))


def read_all(orders: Sequence[ReadOrder], limit_s: float = READ_LIMIT_S) -> list[CheckRows]:
    """The rows of checks on this machine, read at the same time, in the order of orders."""
    found: dict[str, CheckRows] = {}

    def read_one(order: ReadOrder) -> None:
        found[order.case] = read(order)

    threads = [threading.Thread(target=read_one, args=(one,), daemon=True) for one in orders]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"no answer within {limit_s:g} s"
    return [found.get(one.case) or CheckRows(one.case, why=late) for one in orders]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}".lower()
    # Without a number an OSError has words of its own.
    return str(error) if isinstance(error, OSError) and error.errno is None else repr(error)


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


if __name__ == "__main__":
    asked = [ReadOrder(**one) for one in json.loads(sys.argv[1])]
    print(json.dumps([asdict(one) for one in read_all(asked)]), flush=True)
    os._exit(0)  # without waiting for a driver that hangs
