"""Kills a process at every single step of saving, in turn: `python killing.py DIRECTORY`.

Steps are what the process asks of the file system, as told by audit events. Prints a line a kill.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from pytest_mnode.train.checkpoint import (
    Store,
    loading,  # noqa: F401  imports torch's part once
    saving,  # noqa: F401
)
from pytest_mnode.world.contract import World

ALONE = World(0, 1, 0, 1, "node0", ("node0",))
LIMIT = 200


def state(value: float) -> dict[str, Any]:
    return {"weight": torch.full((8, 8), value)}


def save(directory: Path, step: int, value: float) -> None:
    Store(directory, keep=2).save(state(value), step=step, world=ALONE)


def killed_at(directory: Path, number: int, step: int, value: float) -> bool:
    """Fork, save, and kill at that event; whether it came to that."""
    pid = os.fork()
    if pid == 0:
        seen = 0

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal seen
            if args and str(args[0]).startswith(str(directory)):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        save(directory, step, value)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("saving failed")
    return os.WIFSIGNALED(status)


def main() -> None:
    warnings.simplefilter("ignore")
    base = Path(sys.argv[1])
    # A later step, and the same step again, which takes the place of a complete one.
    for step in (3, 2):
        for number in range(1, LIMIT):
            directory = base / f"{step}-{number}"
            for old in (1, 2):
                save(directory, old, old)
            killed = killed_at(directory, number, step, 9)
            target = state(0)
            loaded = Store(directory).load(target, world=ALONE)
            assert loaded is not None
            value = float(target["weight"][0, 0])
            assert torch.equal(target["weight"], state(value)["weight"])
            save(directory, 4, 4)
            left = sorted(path.name for path in directory.iterdir())
            print(step, number, killed, loaded.step, value, " ".join(left), flush=True)
            if not killed:
                break


if __name__ == "__main__":
    main()
