"""A node whose clock is wrong."""

from __future__ import annotations

import platform
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.faults.acting import all_undone, inside, undone_once
from pytest_mnode.faults.registry import Parameter, Undo, fault
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack

PRELOAD, OFFSET = "/etc/ld.so.preload", "/etc/faketimerc"
PLACES = (
    Path("/usr/lib/faketime"),
    Path("/usr/lib64/faketime"),
    Path("/usr/local/lib/faketime"),
)


def _seconds(text: str) -> float:
    value = float(text)
    if not abs(value) < 1e9:
        raise ValueError(text)
    return value


@fault(Parameter("SECONDS", "seconds, such as 5 or -0.5", _seconds, "5"))
def skewed_clock(rack: Rack, node: Node, seconds: float | None) -> Undo:
    """Programs started on a node see a clock that is ahead (or, below 0, behind).

    By libfaketime: programs linked statically, and processes that were forked rather than
    started, such as ranks, see the true time.
    """
    for path in (PRELOAD, OFFSET):
        if Path(path).exists():
            raise UsageError(f"this machine has a {path} of its own")
    library = _library()
    undos = []
    for path, text in (
        (OFFSET, f"{seconds if seconds is not None else 5.0:+f}\n"),
        (PRELOAD, f"{library}\n"),
    ):
        inside(rack, node, "add", path, data=text.encode())
        undos.append(undone_once(rack, lambda: _uncover(rack, node), node))
    return all_undone(undos)


def _uncover(rack: Rack, node: Node) -> None:
    inside(rack, node, "unmount", "/etc")


def _library() -> Path:
    multiarch = Path("/usr/lib", f"{platform.machine()}-linux-gnu", "faketime")
    for place in (multiarch, *PLACES):
        library = place / "libfaketimeMT.so.1"
        if library.exists():
            return library
    raise UsageError("this fault needs libfaketimeMT.so.1: install it (Debian: libfaketime)")
