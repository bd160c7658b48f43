"""Programs of other packages that a reading asks: their output, or why there is none; their end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

LIMIT_S = 8.0
"""Less than a whole reading may take, so that one program that hangs hides no other row."""
GRACE_S = 3.0
"""Time to end after SIGTERM: dcgmi tells its service to stop a diagnostic, which would go on."""
NVIDIA = "NVIDIA's driver (nvidia-utils)"
"""Package of nvidia-smi."""
_PLACES = (
    *("/usr/sbin", "/sbin", "/usr/local/sbin"),  # not on the PATH of a login that is not root's
    *("/opt/mellanox/sharp/bin", "/usr/bin", "/bin"),
)
_running: set[subprocess.Popen[str]] = set()
_lock = threading.Lock()


class NoOutput(OSError):
    """Why a program said nothing: it is missing, failed, or gave no answer."""


def output_of(
    *argv: str,
    package: str,
    may_fail: bool = False,
    limit_s: float | None = None,
    with_errors: bool = False,
) -> str:
    """What a program wrote to its standard output, in English.

    package: where it comes from, such as "infiniband-diags". may_fail: a status other than 0 is a
    finding of the program, if it wrote anything. limit_s: `LIMIT_S` if None. with_errors: what it
    wrote to standard error follows. Raises NoOutput, in one line. One that is late is ended, with
    its children.
    """
    name, *rest = argv
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), *_PLACES)))
    program = shutil.which(name, path=path)
    if program is None:
        raise NoOutput(f"{name} is not installed: install {package}")
    limit_s = LIMIT_S if limit_s is None else limit_s
    try:
        out, errors, status = _run([program, *rest], limit_s)
    except subprocess.TimeoutExpired:
        raise NoOutput(f"{name} gave no answer within {limit_s:g} s") from None
    except OSError as error:
        raise NoOutput(f"{name}: {error.strerror}") from None
    if with_errors:
        out = "\n".join(filter(None, (out, errors)))
    if status != 0 and not (may_fail and out.strip()):
        said = [line.strip() for line in (errors, out) for line in line.splitlines()]
        said = [line for line in said if line]
        raise NoOutput(f"{name}: {said[-1] if said else f'status {status}'}")
    return out


def _run(argv: list[str], limit_s: float) -> tuple[str, str, int]:
    with _lock:  # `end_all` meets it from its first moment
        program = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
            start_new_session=True,  # so that its children end with it
        )
        _running.add(program)
    try:
        out, errors = program.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end([program])
        raise
    finally:
        with _lock:
            _running.discard(program)
        for pipe in filter(None, (program.stdout, program.stderr)):
            pipe.close()
    return out, errors, program.returncode


def end_all() -> None:
    """End the programs whose output other threads of this process wait for."""
    with _lock:
        left = list(_running)
    _end(left)


def _end(programs: Iterable[subprocess.Popen[str]]) -> None:
    """SIGTERM to programs and their children; SIGKILL to those left after `GRACE_S`."""
    left = list(programs)
    for program in left:
        _signal(program, signal.SIGTERM)
    over = time.monotonic() + GRACE_S
    for program in left:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(max(0.0, over - time.monotonic()))
        _signal(program, signal.SIGKILL)  # its children may be left


def _signal(program: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


def json_in(text: str) -> Any:
    """The first JSON object or list in a text that may have other lines before and after it.

    Raises ValueError if there is none.
    """
    decoder = json.JSONDecoder()
    for at, letter in enumerate(text):
        if letter in "{[":
            try:
                return decoder.raw_decode(text, at)[0]
            except ValueError:
                continue
    raise ValueError("no JSON" if text.strip() else "an empty output")
