"""Program that prints the machine it runs on: `python -m pytest_mnode.machine [PART …]`.

It writes the named parts, or all, as one line of JSON to standard output, and changes nothing.
"""

from __future__ import annotations

import os
import sys

from pytest_mnode.machine.encoding import encode
from pytest_mnode.machine.model import PARTS, Machine


def main(parts: list[str]) -> None:
    """Print `parts`, and exit without waiting for a driver that hangs."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        sys.exit(f"no part of a machine: {', '.join(unknown)}; accepted: {', '.join(PARTS)}")
    status = 0
    try:
        sys.stdout.write(encode(Machine.read(parts=parts or None)) + "\n")
        sys.stdout.flush()
    except Exception as error:
        sys.stderr.write(f"machine: {type(error).__name__}: {error}\n")
        status = 1
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
