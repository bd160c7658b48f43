"""The files in which a rank leaves traces, and reading what matters of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_mnode.logs.causes import causes
from pytest_mnode.protocol.messages import WorldInfo

CUT = "…"
"""Stands for what came before the end that is shown."""
NCCL_SECTION = "NCCL's log"
"""Name of the section of a failed rank's report with what `nccl_causes` found."""
_TAIL_BYTES = 4096
_FAULT_BYTES = 64 * 1024
_NCCL_BYTES = 2**20


def world_dir(world: WorldInfo) -> Path:
    return Path(world.log_dir) / world.id


def gate_log(log_dir: str, gate: int, life: int) -> Path:
    """What a gate prints, a file for each time that it is started."""
    return Path(log_dir, f"gate{gate}.{life}.log")


def stack_file(world: WorldInfo, rank: int) -> Path:
    """Where faulthandler of this rank writes when asked for its stacks."""
    return world_dir(world) / f"rank{rank}.stacks"


def fault_file(world: WorldInfo, rank: int) -> Path:
    """Where faulthandler of this rank writes when it crashes."""
    return world_dir(world) / f"rank{rank}.fault"


def mark_file(world: WorldInfo, rank: int) -> Path:
    """Where this rank keeps which test and phase it is in."""
    return world_dir(world) / f"rank{rank}.mark"


def calls_file(world: WorldInfo, rank: int) -> Path:
    """Where this rank records the collectives that it calls."""
    return world_dir(world) / f"rank{rank}.calls"


def nccl_file(world: WorldInfo, rank: int) -> Path:
    """Where NCCL of this rank writes what it does."""
    return world_dir(world) / f"rank{rank}.nccl.log"


def size(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path) -> str:
    """`tail_of_fd` of a file by its path; "" where there is none."""
    try:
        with path.open("rb") as file:
            return tail_of_fd(file.fileno())
    except OSError:
        return ""


def head(path: Path) -> str:
    """What matters of a fault comes first, before a long list of loaded modules."""
    try:
        with path.open("rb") as file:
            return file.read(_FAULT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def tail_of_fd(fd: int) -> str:
    """The last whole lines of a file, after a line with CUT where there are more."""
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except OSError:
        return ""
    text = data.decode(errors="replace")
    if size <= _TAIL_BYTES:
        return text
    _, newline, lines = text.partition("\n")
    return f"{CUT}\n{lines if newline else text}"


def nccl_causes(path: Path, start: int = 0) -> str:
    """Lines of NCCL's own log from byte `start` on, which a rank does not print, that tell why it
    failed."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - _NCCL_BYTES))
            data = file.read(_NCCL_BYTES)
    except OSError:
        return ""
    return "".join(f"{cause.line}\n" for cause in causes(data))


def error_message(path: Path) -> str:
    """The message of torchrun's error file, where a rank's own loop raised."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return ""
    message = data.get("message", "")
    text = message.get("message", "") if isinstance(message, dict) else message
    return str(text)
