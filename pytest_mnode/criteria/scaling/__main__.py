"""The program that torchrun starts, with a plan as JSON.

`torchrun … -m pytest_mnode.criteria.scaling PLAN`.

Rank 0 prints one line with all that was measured. Ends with 2 for a plan that cannot be
used, or not here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pytest_mnode.criteria.scaling.facts import MARK
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.errors import EnvironmentContractError, UsageError

USAGE = "usage: python -m pytest_mnode.criteria.scaling PLAN, started by torchrun"


def main(argv: Sequence[str]) -> int:
    """One rank; the exit status."""
    if len(argv) != 1:
        raise UsageError(USAGE)
    plan = Plan.from_json(argv[0])
    from pytest_mnode.criteria.scaling.program import train

    facts = train(plan)
    if facts is not None:
        line = memoryview(f"\n{MARK}{facts.to_json()}\n".encode())
        sys.stdout.flush()
        while line:  # in one piece, as far as the system lets it
            line = line[os.write(1, line) :]
    return 0


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except (EnvironmentContractError, UsageError) as error:
        print(f"scaling: Error: {error}", file=sys.stderr)
        status = 2
    sys.exit(status)
