"""Programs of other packages that a reading asks: their output, or why there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

LIMIT_S = 8.0
"""Less than a whole reading may take, so that one program that hangs hides no other row."""
_PLACES = (
    *("/usr/sbin", "/sbin", "/usr/local/sbin"),  # not on the PATH of a login that is not root's
    *("/opt/mellanox/sharp/bin", "/usr/bin", "/bin"),
)


class NoOutput(OSError):
    """Why a program said nothing: it is missing, failed, or gave no answer."""


def output_of(*argv: str, package: str, may_fail: bool = False) -> str:
    """What a program wrote to its standard output, in English.

    package: where it comes from, such as "infiniband-diags". may_fail: a status other than 0 is a
    finding of the program, if it wrote anything. Raises NoOutput, in one line.
    """
    name, *rest = argv
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), *_PLACES)))
    program = shutil.which(name, path=path)
    if program is None:
        raise NoOutput(f"{name} is not installed: install {package}")
    try:
        done = subprocess.run(
            [program, *rest],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise NoOutput(f"{name} gave no answer within {LIMIT_S:g} s") from None
    except OSError as error:
        raise NoOutput(f"{name}: {error.strerror}") from None
    if done.returncode != 0 and not (may_fail and done.stdout.strip()):
        said = [line.strip() for line in (done.stderr, done.stdout) for line in line.splitlines()]
        said = [line for line in said if line]
        raise NoOutput(f"{name}: {said[-1] if said else f'status {done.returncode}'}")
    return done.stdout


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
